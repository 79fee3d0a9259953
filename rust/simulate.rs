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
//! * Collectives other than all-reduces keep their operand, so that only one of them is under way: at the next collective
//!   the computation stream waits for its end.
//! * A bucket is one collective, reached where it stands, of all its operands and results.
//! * A reader of a collective's result waits for its end; a device that need not read it goes on.
//! * A composite operator is computed in equal parts with its collectives between them, each part a reader of the
//!   collective before it. A device without a share takes part in the collectives all the same.
//! * What costs nothing (layout operators, slices, devices without a share) occupies no stream; its result is there
//!   with its operand.
//!
//! A collective can only start after this device has reached it, so nothing that stands before it in the program is
//! slowed by it: one pass in program order suffices, and no queue of events is needed. Devices that are alike do the
//! same at the same time, so one of each kind is simulated (all, where the timeline is asked for).
//!
//! **Lower bound.** On each device `seconds >= compute_d + (1 - overlap) * communication`, and `seconds >=
//! communication`, since collectives follow each other. Hence for weights `w` that sum to one and `theta` in `[0,
//! 1]`: `theta * sum_d w_d compute_d + (1 - theta * overlap) * communication <= seconds`.

use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;
use crate::cost::{CostModel, Transfer};
use crate::graph::{Choice, Graph};
use crate::memory::{self, Holder, MemoryParts};
use crate::program::Conversion;
use crate::shares::Shares;
use crate::validate::{Step, ValidProgram};

/// What to simulate beside time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Tensors that the optimiser keeps per parameter; 2 for Adam.
    pub optimiser_tensors: u32,
    /// Whether to list what each stream does when, and what memory is held.
    pub timeline: bool,
    /// How many of the largest holders of memory at a device's peak to list.
    pub holders: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            optimiser_tensors: 2,
            timeline: false,
            holders: 0,
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
    /// By device, seconds since the step began and the bytes held from then on; empty unless the timeline was asked for.
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
    let costs = CostModel::new(graph, cluster, shares);
    let mut run = Run::new(graph, &costs, program, options.timeline);
    let mut begins = vec![Vec::new(); costs.devices()];
    for position in 0..program.steps.len() {
        run.step(position);
        if options.timeline {
            run.begun
                .iter()
                .zip(&mut begins)
                .for_each(|(begun, begins)| begins.push(*begun));
        }
    }
    let (devices, kinds, kind_of) = (costs.devices(), costs.kinds(), costs.kind_of());
    let peaks = memory::peaks(graph, shares, devices, kinds, program, options.optimiser_tensors);
    let holders = match options.holders {
        0 => Vec::new(),
        count => memory::holders(graph, shares, devices, program, options.optimiser_tensors, count),
    };
    let memory_parts: Vec<MemoryParts> = kind_of.iter().map(|&kind| peaks[kind].parts.clone()).collect();
    let compute = match options.timeline {
        true => run.compute,
        false => kind_of.iter().map(|&kind| run.compute[kind]).collect(),
    };
    Simulation {
        seconds: run.clock.iter().copied().fold(run.network, f64::max),
        compute,
        communication: run.communication,
        memory: memory_parts.iter().map(MemoryParts::total).collect(),
        memory_parts,
        holders,
        timeline: run.timeline,
        memory_timeline: match options.timeline {
            true => memory_timeline(graph, shares, program, options.optimiser_tensors, &begins),
            false => Vec::new(),
        },
    }
}

/// By device, when the bytes held change, and to what. An instruction's memory is held from its begin.
fn memory_timeline(
    graph: &Graph,
    shares: &Shares,
    program: &ValidProgram,
    optimiser_tensors: u32,
    begins: &[Vec<f64>],
) -> Vec<Vec<(f64, f64)>> {
    let held = memory::over_program(graph, shares, begins.len(), program, optimiser_tensors);
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

struct Run<'a> {
    graph: &'a Graph,
    costs: &'a CostModel<'a>,
    program: &'a ValidProgram,
    /// The devices that are simulated: the first of each kind, or all.
    members: Vec<usize>,
    /// By member: when its computation stream has done what it was given.
    clock: Vec<f64>,
    /// When the communication streams have done what they were given; collectives take all devices.
    network: f64,
    /// Start and end of the collectives so far, in order; they do not overlap each other.
    collectives: Vec<(f64, f64)>,
    /// When the last collective ends, if it keeps its operand.
    keeping: Option<f64>,
    /// By member: the first of [`Self::collectives`] that may end after its clock.
    pending: Vec<usize>,
    /// By member: when the last instruction began; never before the one ahead of it.
    begun: Vec<f64>,
    /// By value and member: when it is there.
    ready: Vec<Vec<f64>>,
    compute: Vec<f64>,
    communication: f64,
    record: bool,
    timeline: Vec<Event>,
}

impl<'a> Run<'a> {
    fn new(graph: &'a Graph, costs: &'a CostModel<'a>, program: &'a ValidProgram, record: bool) -> Self {
        let members = match record {
            true => (0..costs.devices()).collect(),
            false => costs.kinds().to_vec(),
        };
        let count = members.len();
        Self {
            graph,
            costs,
            program,
            members,
            clock: vec![0.0; count],
            network: 0.0,
            collectives: Vec::new(),
            keeping: None,
            pending: vec![0; count],
            begun: vec![0.0; count],
            ready: vec![vec![0.0; count]; program.values.len()],
            compute: vec![0.0; count],
            communication: 0.0,
            record,
            timeline: Vec::new(),
        }
    }

    fn step(&mut self, position: usize) {
        let program = self.program;
        match &program.steps[position] {
            Step::Input { .. } | Step::Free { .. } | Step::Output { .. } => {}
            Step::Compute {
                operator,
                choice,
                reads,
                writes,
            } => self.operator(*operator, *choice, reads, writes),
            Step::Convert {
                read,
                write,
                implementation: None,
                ..
            } => self.ready[*write] = self.ready[*read].clone(),
            Step::Convert {
                conversion,
                read,
                write,
                implementation: Some(_),
                ..
            } => {
                // A bucket is carried out at its first instruction.
                let Some(transfer) = Transfer::at(self.graph, program, position) else {
                    return;
                };
                if self.costs.is_idle(&transfer) {
                    self.ready[*write] = self.ready[*read].clone();
                    return;
                }
                let ends = |position: usize| match &program.steps[position] {
                    Step::Convert { read, write, .. } => (*read, *write),
                    _ => unreachable!("a bucket consists of conversions"),
                };
                let (reads, writes): (Vec<usize>, Vec<usize>) = program.together(position).map(ends).unzip();
                let ready = reads.iter().flat_map(|read| &self.ready[*read]);
                let ready = ready.copied().fold(0.0, f64::max);
                let name = || collective_title(self.graph, program, *conversion, &reads);
                let end = self.collective(&transfer, ready, name);
                writes.iter().for_each(|write| self.ready[*write].fill(end));
            }
        }
    }

    /// A collective whose operand is `ready`; when it ends.
    fn collective(&mut self, transfer: &Transfer, ready: f64, name: impl Fn() -> String) -> f64 {
        let seconds = self.costs.transfer(transfer);
        if let Some(end) = self.keeping {
            self.clock.iter_mut().for_each(|clock| *clock = clock.max(end));
        }
        let start = self.clock.iter().copied().fold(self.network.max(ready), f64::max);
        let end = start + seconds;
        self.network = end;
        self.keeping = (transfer.conversion != Conversion::AllReduce).then_some(end);
        self.communication += seconds;
        self.collectives.push((start, end));
        self.begun.iter_mut().for_each(|begun| *begun = begun.max(start));
        if self.record {
            for &device in &self.members {
                self.timeline.push(Event {
                    device,
                    stream: Stream::Communication,
                    name: name(),
                    start,
                    end,
                });
            }
        }
        end
    }

    fn operator(&mut self, operator: usize, choice: usize, reads: &[usize], writes: &[usize]) {
        let node = &self.graph.operators[operator];
        let choice = &node.choices[choice];
        let there = |member: usize| reads.iter().map(|value| self.ready[*value][member]).fold(0.0, f64::max);
        let mut there: Vec<f64> = (0..self.members.len()).map(there).collect();
        self.part(operator, choice, &mut there);
        for collective in &choice.collectives {
            let ready = there.iter().copied().fold(0.0, f64::max);
            let name = || format!("{} in {}", collective.conversion, node.name);
            let end = self.collective(&Transfer::inside(collective), ready, name);
            there.fill(end);
            self.part(operator, choice, &mut there);
        }
        for value in writes {
            self.ready[*value].clone_from(&there);
        }
    }

    /// One of the equal parts of an operator. `there`: when each member's operands are there; becomes when its
    /// results are.
    fn part(&mut self, operator: usize, choice: &Choice, there: &mut [f64]) {
        let node = &self.graph.operators[operator];
        for (member, there) in there.iter_mut().enumerate() {
            let device = self.members[member];
            let seconds = self.costs.compute(operator, choice, device) / choice.parts();
            let mut done = *there;
            if seconds > 0.0 {
                let start;
                let ready = self.clock[member].max(*there);
                let pending = &mut self.pending[member];
                (start, done) = advance(&self.collectives, pending, self.costs.overlap(), ready, seconds);
                self.clock[member] = done;
                self.begun[member] = self.begun[member].max(start);
                self.compute[member] += seconds;
                if self.record {
                    let (stream, name) = (Stream::Computation, node.name.clone());
                    self.timeline.push(Event {
                        device,
                        stream,
                        name,
                        start,
                        end: done,
                    });
                }
            }
            *there = done;
        }
    }
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

/// Start and end of `work` seconds of computation that can start at `ready`, slowed to `rate` by the `collectives`
/// meanwhile. Those before `pending` have ended; it moves on past those that end before the computation does.
fn advance(collectives: &[(f64, f64)], pending: &mut usize, rate: f64, ready: f64, work: f64) -> (f64, f64) {
    let (mut start, mut now, mut left) = (ready, ready, work);
    while let Some(&(begin, end)) = collectives.get(*pending) {
        if now + left <= begin {
            break;
        }
        left -= (begin - now).max(0.0);
        now = now.max(begin);
        // The sum above rounds otherwise than the difference: nothing is left where the collective begins.
        if left <= 0.0 {
            return (start, now);
        }
        if now < end {
            if left <= rate * (end - now) {
                return (start, now + left / rate);
            }
            left -= rate * (end - now);
            now = end;
            // Nothing was done before or during it: the operator starts after it.
            if left == work {
                start = end;
            }
        }
        *pending += 1;
    }
    (start, now + left)
}

#[cfg(test)]
mod tests;
