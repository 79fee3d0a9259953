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

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;
use crate::cost::{Affine, CostModel, Transfer};
use crate::graph::{Choice, Graph};
use crate::memory::{self, Optimiser};
use crate::shares::Shares;
use crate::validate::{Step, ValidProgram};

/// `constant + sum over axes of slope * share of that axis`, for one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Term {
    /// Seconds or bytes.
    pub constant: f64,
    /// Seconds or bytes per unit share, by the name of the axis.
    pub slopes: BTreeMap<String, f64>,
}

/// What a stage is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageKind {
    /// All operators between two collectives.
    Compute,
    /// One collective.
    Collective,
}

/// A stretch of the step that all devices end together, or several that cost the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// What it is.
    pub kind: StageKind,
    /// The collective and its tensor, or the first and the last operator that cost anything; of the first of several.
    pub name: String,
    /// How many there are.
    pub count: usize,
    /// Seconds of one of them, by kind of device; it takes as long as the greatest.
    pub terms: Vec<Term>,
}

/// A program's step and memory as the linear program sees them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stages {
    /// By device, the number of its kind. Devices of a kind have equal speeds and shares, so that their terms agree.
    pub kinds: Vec<usize>,
    /// The stages, in program order of the first of each sort.
    pub stages: Vec<Stage>,
    /// Peak bytes by kind of device.
    pub memory: Vec<Term>,
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
                let node = &graph.operators[*operator];
                let choice = &node.choices[*choice];
                computation.add(graph, *operator, choice);
                for collective in &choice.collectives {
                    computation.finish(graph, &mut found);
                    let transfer = Transfer::inside(collective);
                    let name = || format!("{} in {}", collective.conversion, node.name);
                    found.add(StageKind::Collective, waiting(&costs, &transfer), name);
                    computation.add(graph, *operator, choice);
                }
            }
            Step::Convert {
                conversion,
                implementation: Some(_),
                read,
                ..
            } => {
                let Some(transfer) = Transfer::at(graph, program, position).filter(|it| !costs.is_idle(it)) else {
                    continue;
                };
                computation.finish(graph, &mut found);
                let name = || format!("{conversion} {}", graph.tensors[program.values[*read].tensor].name);
                found.add(StageKind::Collective, waiting(&costs, &transfer), name);
            }
            Step::Input { .. } | Step::Convert { .. } | Step::Free { .. } | Step::Output { .. } => {}
        }
    }
    computation.finish(graph, &mut found);
    let terms = |sums: &[Sum]| {
        let kinds = costs.kinds().iter().zip(sums);
        kinds.map(|(&device, sum)| sum.term(graph, shares, device)).collect()
    };
    let (devices, kinds) = (costs.devices(), costs.kinds());
    let peaks = memory::peaks(graph, shares, devices, kinds, program, optimiser);
    let held: Vec<Sum> = peaks.iter().map(Sum::of_peak).collect();
    let stage = |sort: Sort| Stage {
        kind: sort.kind,
        name: sort.name,
        count: sort.count,
        terms: terms(&sort.sums),
    };
    Stages {
        kinds: costs.kind_of(),
        stages: found.list.into_iter().map(stage).collect(),
        memory: terms(&held),
    }
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

/// Stages that cost the same.
struct Sort {
    kind: StageKind,
    name: String,
    count: usize,
    sums: Vec<Sum>,
}

/// The stages so far.
#[derive(Default)]
struct Sorts {
    list: Vec<Sort>,
    /// Numbers in the list, by the bits of what a stage costs.
    known: FxHashMap<(bool, Vec<u64>), usize>,
}

impl Sorts {
    fn add(&mut self, kind: StageKind, sums: Vec<Sum>, name: impl FnOnce() -> String) {
        let bits = (kind == StageKind::Compute, sums.iter().flat_map(Sum::bits).collect());
        let number = *self.known.entry(bits).or_insert(self.list.len());
        match self.list.get_mut(number) {
            Some(sort) => sort.count += 1,
            None => self.list.push(Sort {
                kind,
                name: name(),
                count: 1,
                sums,
            }),
        }
    }
}

/// The operators since the last collective.
struct Computation<'a> {
    costs: &'a CostModel<'a>,
    /// By kind of device.
    sums: Vec<Sum>,
    /// First and last operator that costs any device anything.
    names: Option<(usize, usize)>,
}

impl<'a> Computation<'a> {
    fn new(costs: &'a CostModel<'a>) -> Self {
        Self {
            costs,
            sums: vec![Sum::default(); costs.kinds().len()],
            names: None,
        }
    }

    /// Adds one of the equal parts of an operator.
    fn add(&mut self, graph: &Graph, operator: usize, choice: &Choice) {
        if graph.operators[operator].layout {
            return;
        }
        self.names = Some((self.names.map_or(operator, |(first, _)| first), operator));
        for (&device, sum) in self.costs.kinds().iter().zip(&mut self.sums) {
            let whole = self.costs.compute_affine(operator, choice, device);
            sum.add(whole.scaled(1.0 / choice.parts(), 0.0));
        }
    }

    /// Ends the stage, if there is one; begins the next.
    fn finish(&mut self, graph: &Graph, found: &mut Sorts) {
        let Some((first, last)) = self.names else { return };
        let done = std::mem::replace(self, Self::new(self.costs));
        let name = |operator: usize| &graph.operators[operator].name;
        found.add(StageKind::Compute, done.sums, || match first == last {
            true => name(first).clone(),
            false => format!("{} .. {}", name(first), name(last)),
        });
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

    fn term(&self, graph: &Graph, shares: &Shares, device: usize) -> Term {
        let slopes = self.slopes.iter().filter(|(_, slope)| *slope != 0.0);
        let there: f64 = slopes.clone().map(|(axis, slope)| slope * shares[*axis][device]).sum();
        Term {
            constant: self.value - there,
            slopes: slopes
                .map(|(axis, slope)| (graph.axes[*axis].name.clone(), *slope))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests;
