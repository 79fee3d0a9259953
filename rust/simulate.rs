//! Event-driven simulation of one training step.
//!
//! Each device has a computation and a communication stream, and takes the program's instructions in order.
//!
//! * An operator starts when the device's computation stream is free and its operands are there.
//! * A device *reaches* a collective when its computation stream has done all that stands before it (and the
//!   operand is there, if it is the result of another collective). The collective starts when all devices have
//!   reached it and the one before it has ended. It occupies the communication stream for its `t` seconds, and
//!   takes the part `1 - overlap` of the computation stream meanwhile: what is computed at that time proceeds at
//!   the rate `overlap`. So it costs the computation stream `(1 - overlap) * t`.
//! * Where there is something to compute before the first reader of its result, a collective takes longer by the
//!   cluster's contention.
//! * Of collectives that keep their operands few are under way: where the next one of them starts, the computation stream
//!   waits for the end of the first ones ([`ValidProgram::ended`]).
//! * A bucket is one collective, reached where it stands, of all its operands and results.
//! * A reader of a collective's result waits for its end; a device that need not read it goes on.
//! * A composite operator is computed in equal parts with its collectives between them, each part a reader of the
//!   collective before it. A device without a share takes part in the collectives all the same.
//! * What costs nothing (layout operators, slices, devices without a share) occupies no stream; its result is there
//!   with its operand.
//!
//! A collective can only start after this device has reached it, so nothing that stands before it in the program is
//! slowed by it: one pass in program order suffices, and no queue of events is needed. Devices that are alike do the
//! same at the same time, so one of each kind is simulated (all, where the timeline of all is asked for).
//!
//! **Lower bound.** On each device `seconds >= compute_d + (1 - overlap) * communication`, and `seconds >=
//! communication`, since collectives follow each other. Hence for weights `w` that sum to one and `theta` in `[0,
//! 1]`: `theta * sum_d w_d compute_d + (1 - theta * overlap) * communication <= seconds`.

mod run;

use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;
use crate::cost::CostModel;
use crate::graph::Graph;
use crate::memory::{self, Holder, MemoryParts, Optimiser, Temporaries};
use crate::program::Conversion;
use crate::shares::Shares;
use crate::validate::ValidProgram;

use run::Run;

/// What to simulate beside time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Tensors that the optimiser keeps per parameter; 2 for Adam.
    pub optimiser_tensors: u32,
    /// What it makes beside them while it steps.
    pub temporaries: Temporaries,
    /// Whether to list what each stream does when, and what memory is held.
    pub timeline: bool,
    /// Whether to list that for the first device of each kind alone: devices of a kind do the same at the same time.
    pub kinds: bool,
    /// How many of the largest holders of memory at a device's peak to list.
    pub holders: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            optimiser_tensors: 2,
            temporaries: Temporaries::default(),
            timeline: false,
            kinds: false,
            holders: 0,
        }
    }
}

impl Options {
    /// The optimiser.
    pub fn optimiser(&self) -> Optimiser {
        Optimiser {
            tensors: self.optimiser_tensors,
            temporaries: self.temporaries,
        }
    }
}

/// A stream of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Operators.
    Computation,
    /// Collectives.
    Communication,
}

/// A stretch of a stream's time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Rank of the device.
    pub device: usize,
    /// Which stream.
    pub stream: Stream,
    /// Position in the program; of a bucket, its first.
    pub instruction: usize,
    /// The operator, or the collective and its tensor.
    pub name: String,
    /// Seconds since the step began.
    pub start: f64,
    /// Seconds since the step began.
    pub end: f64,
}

/// A simulated step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Simulation {
    /// Seconds of the step: until every stream of every device is done.
    pub seconds: f64,
    /// Seconds of computation by device, waiting excluded.
    pub compute: Vec<f64>,
    /// Seconds of all collectives.
    pub communication: f64,
    /// Peak bytes by device: the sum of its parts.
    pub memory: Vec<f64>,
    /// What the peak is made of, by device.
    pub memory_parts: Vec<MemoryParts>,
    /// What holds the most of it at the peak, by device; empty unless it was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Vec<Holder>>,
    /// What each stream does, in program order; empty unless it was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<Event>,
    /// By device, the first one of its kind; empty unless kinds were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<usize>,
    /// By device (by kind, where these were asked for), seconds since the step began and the bytes held from then on;
    /// empty unless the timeline was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory_timeline: Vec<Vec<(f64, f64)>>,
}

/// Simulates a step of a program under shares (one list per axis of the graph, one fraction per device).
pub fn simulate(
    graph: &Graph,
    cluster: &Cluster,
    shares: &Shares,
    program: &ValidProgram,
    options: &Options,
) -> Simulation {
    simulate_with(&CostModel::new(graph, cluster, shares), program, options)
}

/// [`simulate`], for callers that have the costs.
pub fn simulate_with(costs: &CostModel, program: &ValidProgram, options: &Options) -> Simulation {
    let (graph, shares, devices) = (costs.graph(), costs.shares(), costs.devices());
    let every = options.timeline && !options.kinds;
    let mut run = Run::new(costs, program, options.timeline, every);
    let mut begins = vec![Vec::new(); run.members.len()];
    for position in 0..program.steps.len() {
        run.step(position);
        if options.timeline {
            run.begun
                .iter()
                .zip(&mut begins)
                .for_each(|(begun, begins)| begins.push(*begun));
        }
    }
    let (kinds, kind_of) = (costs.kinds(), costs.kind_of());
    let peaks = memory::peaks(graph, shares, devices, kinds, program, options.optimiser());
    let holders = match options.holders {
        0 => Vec::new(),
        count => memory::holders(graph, shares, devices, program, options.optimiser(), count),
    };
    let memory_parts: Vec<MemoryParts> = kind_of.iter().map(|&kind| peaks[kind].parts.clone()).collect();
    let seconds = run.seconds();
    let members = run.members;
    let compute = match every {
        true => run.compute,
        false => kind_of.iter().map(|&kind| run.compute[kind]).collect(),
    };
    Simulation {
        seconds,
        compute,
        communication: run.communication,
        memory: memory_parts.iter().map(MemoryParts::total).collect(),
        memory_parts,
        holders,
        timeline: run.timeline,
        kinds: match options.kinds {
            true => kind_of.iter().map(|&kind| kinds[kind]).collect(),
            false => Vec::new(),
        },
        memory_timeline: match options.timeline {
            true => {
                let held = memory::over_program(graph, shares, devices, &members, program, options.optimiser());
                memory_timeline(&begins, held)
            }
            false => Vec::new(),
        },
    }
}

/// Seconds of a step alone.
pub fn seconds(costs: &CostModel, program: &ValidProgram) -> f64 {
    let mut run = Run::new(costs, program, false, false);
    (0..program.steps.len()).for_each(|position| run.step(position));
    run.seconds()
}

/// By device, when the bytes held change, and to what. An instruction's memory is held from its begin.
fn memory_timeline(begins: &[Vec<f64>], held: Vec<Vec<f64>>) -> Vec<Vec<(f64, f64)>> {
    let lines = begins.iter().zip(held).map(|(begins, held)| {
        let mut line: Vec<(f64, f64)> = Vec::new();
        for (&begin, bytes) in begins.iter().zip(held) {
            match line.last_mut() {
                // What happens at one time counts with its most.
                Some(last) if last.0 == begin => last.1 = last.1.max(bytes),
                _ => line.push((begin, bytes)),
            }
        }
        line.dedup_by(|next, one| next.1 == one.1);
        line
    });
    lines.collect()
}

/// What a conversion of these values is called.
pub(crate) fn collective_title(
    graph: &Graph,
    program: &ValidProgram,
    conversion: Conversion,
    reads: &[usize],
) -> String {
    let name = &graph.tensors[program.values[reads[0]].tensor].name;
    match reads.len() {
        1 => format!("{conversion} {name}"),
        count => format!("{conversion} {name} and {} more", count - 1),
    }
}

#[cfg(test)]
mod tests;
