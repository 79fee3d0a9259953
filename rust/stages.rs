//! The data of the linear program over the shares: a program's step as a sum of stages, each a maximum over the
//! devices of affine terms.
//!
//! A *stage* is a collective (also one inside a composite operator), or all computation between two collectives:
//! devices wait for each other only there.
//! Each term is linearised at given shares ([`crate::cost::Affine`]): its value there is the device's exact cost,
//! so the stages' maxima sum to the exact sum there. With no overlap, and where the next operator after each
//! collective reads its result, that is the simulated time. Memory is linearised likewise, at the moment of each
//! device's peak.
//!
//! What is alike is said once: terms stand for all devices of a kind, and stages that cost the same are one that is
//! counted.

use rustc_hash::FxHashMap;

use crate::cluster::Cluster;
use crate::cost::{Affine, CostModel, Transfer};
use crate::graph::{Choice, Graph};
use crate::memory::{self, Optimiser};
use crate::shares::Shares;
use crate::validate::{Step, ValidProgram};

/// A program's step and memory as the linear program sees them.
#[derive(Clone, Debug, PartialEq)]
pub struct Stages {
    /// Names of the axes whose shares matter, in alphabetical order.
    pub axes: Vec<String>,
    /// By device, the number of its kind. Devices of a kind have equal speeds and shares, so that their terms agree.
    pub kinds: Vec<usize>,
    /// The stages, in program order of the first of each sort.
    pub sorts: Vec<Sort>,
    /// By kind, of each stage the seconds of one of them, and last of the peak the bytes: a constant, and what it changes
    /// per unit share of each axis. A stage takes as long as its longest kind.
    pub terms: Vec<f64>,
}

/// Stages that cost the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sort {
    /// Whether they are computation; else each is one collective.
    pub computation: bool,
    /// How many there are.
    pub count: usize,
}

/// Stages of a program, linearised at shares (one list per axis of the graph, one fraction per device).
pub fn stages(
    graph: &Graph,
    cluster: &Cluster,
    shares: &Shares,
    program: &ValidProgram,
    optimiser: Optimiser,
) -> Stages {
    let costs = CostModel::new(graph, cluster, shares);
    let mut found = Sorts::default();
    let mut computation = Computation::new(&costs);
    for (position, step) in program.steps.iter().enumerate() {
        match step {
            Step::Compute { operator, choice, .. } => {
                let choice = &graph.operators[*operator].choices[*choice];
                computation.add(graph, *operator, choice);
                for collective in &choice.collectives {
                    computation.finish(&mut found);
                    found.add(false, waiting(&costs, &Transfer::inside(collective)));
                    computation.add(graph, *operator, choice);
                }
            }
            Step::Convert {
                implementation: Some(_),
                ..
            } => {
                let Some(transfer) = Transfer::at(graph, program, position).filter(|it| !costs.is_idle(it)) else {
                    continue;
                };
                computation.finish(&mut found);
                found.add(false, waiting(&costs, &transfer));
            }
            Step::Input { .. } | Step::Convert { .. } | Step::Free { .. } | Step::Output { .. } => {}
        }
    }
    computation.finish(&mut found);
    let (devices, kinds) = (costs.devices(), costs.kinds());
    let peaks = memory::peaks(graph, shares, devices, kinds, program, optimiser);
    found.sums.push(peaks.iter().map(Sum::of_peak).collect());
    let axes = matter(graph, found.sums.iter().flatten());
    let mut columns = vec![0; graph.axes.len()];
    (1..).zip(&axes).for_each(|(column, axis)| columns[*axis] = column);
    let width = 1 + axes.len();
    let mut terms = vec![0.0; kinds.len() * found.sums.len() * width];
    let mut term = terms.chunks_exact_mut(width);
    for (kind, &device) in kinds.iter().enumerate() {
        let sums = found.sums.iter().map(|sums| &sums[kind]);
        sums.zip(&mut term)
            .for_each(|(sum, term)| sum.write(shares, device, &columns, term));
    }
    Stages {
        axes: axes.iter().map(|axis| graph.axes[*axis].name.clone()).collect(),
        kinds: costs.kind_of(),
        sorts: found.list,
        terms,
    }
}

/// The axes that have a slope, by name.
fn matter<'a>(graph: &Graph, sums: impl Iterator<Item = &'a Sum>) -> Vec<usize> {
    let mut found = vec![false; graph.axes.len()];
    sums.flat_map(|sum| &sum.slopes)
        .for_each(|(axis, slope)| found[*axis] |= *slope != 0.0);
    let mut axes: Vec<usize> = (0..found.len()).filter(|axis| found[*axis]).collect();
    axes.sort_by_key(|axis| &graph.axes[*axis].name);
    axes
}

/// What a collective costs, by kind of device.
fn waiting(costs: &CostModel, transfer: &Transfer) -> Vec<Sum> {
    let kinds = costs.kinds().iter();
    kinds
        .map(|&device| {
            let mut sum = Sum::default();
            sum.add(costs.transfer_affine(transfer, device));
            sum
        })
        .collect()
}

/// The stages so far.
#[derive(Default)]
struct Sorts {
    list: Vec<Sort>,
    /// By sort and kind of device.
    sums: Vec<Vec<Sum>>,
    /// Numbers in the list, by the bits of what a stage costs.
    known: FxHashMap<(bool, Vec<u64>), usize>,
}

impl Sorts {
    fn add(&mut self, computation: bool, sums: Vec<Sum>) {
        let bits = (computation, sums.iter().flat_map(Sum::bits).collect());
        let number = *self.known.entry(bits).or_insert(self.list.len());
        if let Some(sort) = self.list.get_mut(number) {
            sort.count += 1;
        } else {
            self.list.push(Sort { computation, count: 1 });
            self.sums.push(sums);
        }
    }
}

/// The operators since the last collective.
struct Computation<'a> {
    costs: &'a CostModel<'a>,
    /// By kind of device.
    sums: Vec<Sum>,
    /// Whether any of them costs anything.
    any: bool,
}

impl<'a> Computation<'a> {
    fn new(costs: &'a CostModel<'a>) -> Self {
        Self {
            costs,
            sums: vec![Sum::default(); costs.kinds().len()],
            any: false,
        }
    }

    /// Adds one of the equal parts of an operator.
    fn add(&mut self, graph: &Graph, operator: usize, choice: &Choice) {
        if graph.operators[operator].layout {
            return;
        }
        self.any = true;
        for (&device, sum) in self.costs.kinds().iter().zip(&mut self.sums) {
            let whole = self.costs.compute_affine(operator, choice, device);
            sum.add(whole.scaled(1.0 / choice.parts(), 0.0));
        }
    }

    /// Ends the stage, if there is one; begins the next.
    fn finish(&mut self, found: &mut Sorts) {
        if self.any {
            let done = std::mem::replace(self, Self::new(self.costs));
            found.add(true, done.sums);
        }
    }
}

/// A sum of affine functions: its value at the shares, and its slopes by axis.
#[derive(Clone, Default)]
struct Sum {
    value: f64,
    /// Few axes matter to one stage. In the order of their first term.
    slopes: Vec<(usize, f64)>,
}

impl Sum {
    fn of_peak(peak: &memory::Peak) -> Self {
        Self {
            value: peak.parts.total(),
            slopes: peak.slopes.iter().copied().enumerate().collect(),
        }
    }

    fn add(&mut self, affine: Affine) {
        self.value += affine.value;
        for (axis, slope) in affine.slopes.into_iter().flatten() {
            match self.slopes.iter_mut().find(|(known, _)| *known == axis) {
                Some((_, sum)) => *sum += slope,
                None => self.slopes.push((axis, slope)),
            }
        }
    }

    fn bits(&self) -> impl Iterator<Item = u64> {
        let slopes = self
            .slopes
            .iter()
            .flat_map(|(axis, slope)| [*axis as u64, slope.to_bits()]);
        [self.value.to_bits(), self.slopes.len() as u64]
            .into_iter()
            .chain(slopes)
    }

    /// Writes the constant, and the slopes to the columns of their axes.
    fn write(&self, shares: &Shares, device: usize, columns: &[usize], term: &mut [f64]) {
        let slopes = self.slopes.iter().filter(|(_, slope)| *slope != 0.0);
        let there: f64 = slopes.clone().map(|(axis, slope)| slope * shares[*axis][device]).sum();
        term[0] = self.value - there;
        slopes.for_each(|(axis, slope)| term[columns[*axis]] = *slope);
    }
}

#[cfg(test)]
mod tests;
