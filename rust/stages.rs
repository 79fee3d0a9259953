//! The data of the linear program over the shares: a program's step as a sum of stages, each a maximum over the
//! devices of affine terms.
//!
//! A *stage* is a collective (also one inside a composite operator), or all computation between two collectives:
//! devices wait for each other only there.
//! Each term is linearised at given shares ([`crate::cost::Affine`]): its value there is the device's exact cost,
//! so the stages' maxima sum to the exact sum there. With no overlap, and where the next operator after each
//! collective reads its result, that is the simulated time. Memory is linearised likewise, at the moment of each
//! device's peak.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;
use crate::cost::{Affine, CostModel, Transfer};
use crate::graph::{Choice, Graph};
use crate::memory;
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

/// A stretch of the step that all devices end together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// What it is.
    pub kind: StageKind,
    /// The collective and its tensor, or the first and the last operator that cost anything.
    pub name: String,
    /// Seconds by device; the stage takes as long as the greatest.
    pub devices: Vec<Term>,
}

/// A program's step and memory as the linear program sees them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stages {
    /// The stages, in program order.
    pub stages: Vec<Stage>,
    /// Peak bytes by device.
    pub memory: Vec<Term>,
}

/// Stages of a program, linearised at shares (one list per axis of the graph, one fraction per device).
pub fn stages(
    graph: &Graph,
    cluster: &Cluster,
    shares: &Shares,
    program: &ValidProgram,
    optimiser_tensors: u32,
) -> Stages {
    let costs = CostModel::new(graph, cluster, shares);
    let devices = costs.devices();
    let mut stages = Vec::new();
    let mut computation = Computation::new(devices, graph.axes.len());
    for step in &program.steps {
        match step {
            Step::Compute { operator, choice, .. } => {
                let node = &graph.operators[*operator];
                let choice = &node.choices[*choice];
                computation.add(graph, &costs, *operator, choice);
                for collective in &choice.collectives {
                    stages.extend(computation.finish(graph, shares));
                    let name = format!("{} in {}", collective.conversion, node.name);
                    stages.push(waiting(graph, &costs, shares, &Transfer::inside(collective), name));
                    computation.add(graph, &costs, *operator, choice);
                }
            }
            Step::Convert {
                conversion,
                implementation: Some(how),
                read,
                write,
            } => {
                stages.extend(computation.finish(graph, shares));
                let (from, to) = (&program.values[*read], &program.values[*write]);
                let transfer = Transfer::conversion(graph, from.tensor, &from.placements, &to.placements, *how);
                let name = format!("{conversion} {}", graph.tensors[from.tensor].name);
                stages.push(waiting(graph, &costs, shares, &transfer, name));
            }
            Step::Input { .. } | Step::Convert { .. } | Step::Free { .. } | Step::Output { .. } => {}
        }
    }
    stages.extend(computation.finish(graph, shares));
    let peaks = memory::peaks(graph, shares, devices, program, optimiser_tensors);
    let memory = peaks.into_iter().enumerate().map(|(device, peak)| {
        Sum {
            value: peak.parts.total(),
            slopes: peak.slopes,
        }
        .term(graph, shares, device)
    });
    Stages {
        stages,
        memory: memory.collect(),
    }
}

/// The stage of a collective.
fn waiting(graph: &Graph, costs: &CostModel, shares: &Shares, transfer: &Transfer, name: String) -> Stage {
    let terms = (0..costs.devices()).map(|device| {
        let mut sum = Sum::new(graph.axes.len());
        sum.add(costs.transfer_affine(transfer, device));
        sum.term(graph, shares, device)
    });
    Stage {
        kind: StageKind::Collective,
        name,
        devices: terms.collect(),
    }
}

/// The operators since the last collective.
struct Computation {
    sums: Vec<Sum>,
    /// First and last operator that costs any device anything.
    names: Option<(usize, usize)>,
}

impl Computation {
    fn new(devices: usize, axes: usize) -> Self {
        Self {
            sums: vec![Sum::new(axes); devices],
            names: None,
        }
    }

    /// Adds one of the equal parts of an operator.
    fn add(&mut self, graph: &Graph, costs: &CostModel, operator: usize, choice: &Choice) {
        if graph.operators[operator].layout {
            return;
        }
        self.names = Some((self.names.map_or(operator, |(first, _)| first), operator));
        for (device, sum) in self.sums.iter_mut().enumerate() {
            sum.add(
                costs
                    .compute_affine(operator, choice, device)
                    .scaled(1.0 / choice.parts(), 0.0),
            );
        }
    }

    /// The stage, if there is one; begins the next.
    fn finish(&mut self, graph: &Graph, shares: &Shares) -> Option<Stage> {
        let (first, last) = self.names?;
        let done = std::mem::replace(self, Self::new(self.sums.len(), graph.axes.len()));
        let name = |operator: usize| &graph.operators[operator].name;
        Some(Stage {
            kind: StageKind::Compute,
            name: if first == last {
                name(first).clone()
            } else {
                format!("{} .. {}", name(first), name(last))
            },
            devices: done
                .sums
                .iter()
                .enumerate()
                .map(|(device, sum)| sum.term(graph, shares, device))
                .collect(),
        })
    }
}

/// A sum of affine functions: its value at the shares, and its slopes by axis.
#[derive(Clone)]
struct Sum {
    value: f64,
    slopes: Vec<f64>,
}

impl Sum {
    fn new(axes: usize) -> Self {
        Self {
            value: 0.0,
            slopes: vec![0.0; axes],
        }
    }

    fn add(&mut self, affine: Affine) {
        self.value += affine.value;
        for (axis, slope) in affine.slopes.into_iter().flatten() {
            self.slopes[axis] += slope;
        }
    }

    fn term(&self, graph: &Graph, shares: &Shares, device: usize) -> Term {
        let slopes = self.slopes.iter().enumerate().filter(|(_, slope)| **slope != 0.0);
        let there: f64 = slopes.clone().map(|(axis, slope)| slope * shares[axis][device]).sum();
        Term {
            constant: self.value - there,
            slopes: slopes
                .map(|(axis, slope)| (graph.axes[axis].name.clone(), *slope))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests;
