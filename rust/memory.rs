//! Peak memory of a training step, by liveness over the program.
//!
//! On each device, in bytes:
//!
//! * *parameters*: parameters and buffers in the placements that they are stored in, all the time;
//! * *optimiser*: for each parameter with a gradient, so many times its local elements as the optimiser keeps tensors, of
//!   its own size but 4 bytes at least; at the last instruction, where it steps, also what it makes meanwhile
//!   ([`Optimiser`]);
//! * *gradients*: each in its stored placement, from the instruction that makes it to the end of the step;
//! * *activations*: every other value while it lives. Inputs other than parameters and buffers are the caller's and
//!   live all the time, in the placement of their input instruction; other values live from the instruction that
//!   makes them through their last reader; what an output is read from lives to the end. A converted copy is a
//!   value of its own. Results of layout operators alias their first operand: no memory of their own, but it lives
//!   as long as they do. What is freed and made again is two values, each with its own life: a free ends none by
//!   itself, since memory is given back at the last reader of a value and of its views; a result that is written to
//!   the memory of an operand takes none of its own ([`reuse`]);
//! * the operand of a collective that keeps it ([`ValidProgram::keeps`]) lives until that has ended: at the first reader
//!   of its result or where a later one waits for that ([`ValidProgram::ended`]);
//! * a bucket holds all its operands and results from its first instruction to its last;
//! * *buffers*: what a collective needs beside its operand and result, while it is under way (`buffers.rs`): what is
//!   sent, or what is received, with its padding. Where the shares lie one after another in
//!   memory, along the tensor's leading axis, what is received is the result itself, or what is sent the operand; an
//!   all-reduce works in its result. Inside a composite operator the result counts as well, since it is no value of the
//!   program.
//!
//! The peak is that of the sum, over the instructions.

mod buffers;
mod holders;
mod optimiser;
mod reuse;
mod under_way;

use serde::{Deserialize, Serialize};

use crate::graph::{Graph, InputKind, OutputKind};
use crate::placement::Placement;
use crate::shares::Shares;
use crate::validate::{Step, ValidProgram, Value};

use buffers::{Need, at, largest, needs};
pub use holders::{Holder, Purpose, holders};
use optimiser::trained;
pub use optimiser::{Optimiser, Temporaries, optimiser_factor};
use under_way::under_way;

/// What the peak of a device is made of, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryParts {
    /// Parameters and buffers.
    pub parameters: f64,
    /// Gradients of parameters.
    pub gradients: f64,
    /// State of the optimiser, and what it makes where the peak is its step.
    pub optimiser: f64,
    /// Inputs, intermediate values, converted copies, outputs.
    pub activations: f64,
    /// Communication buffers.
    pub buffers: f64,
}

impl MemoryParts {
    /// The sum.
    pub fn total(&self) -> f64 {
        self.parameters + self.gradients + self.optimiser + self.activations + self.buffers
    }
}

/// The peak of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct Peak {
    /// What it is made of.
    pub parts: MemoryParts,
    /// Its change per unit share of each axis of the graph on this device, with the moment of the peak and the
    /// sides of the buffer held.
    pub slopes: Vec<f64>,
}

/// Which part a storage counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Parameter,
    Gradient,
    Activation,
}

/// Memory that one or more values share.
#[derive(Clone, Debug)]
struct Storage {
    value: usize,
    part: Part,
    /// First and last instruction at which it is held, both included.
    born: usize,
    dies: usize,
    /// An earlier one that it is part of; itself, where it is never made.
    within: Option<usize>,
}

impl Storage {
    fn lives_at(&self, instruction: usize) -> bool {
        (self.born..=self.dies).contains(&instruction)
    }
}

/// Peak memory of some of the devices, such as the first of each kind.
pub fn peaks(
    graph: &Graph,
    shares: &Shares,
    devices: usize,
    members: &[usize],
    program: &ValidProgram,
    optimiser: Optimiser,
) -> Vec<Peak> {
    let until = under_way(graph, program);
    let (storages, needs) = (storages(graph, program, &until), needs(graph, devices, program, &until));
    let trained = trained(graph, program, &storages);
    members
        .iter()
        .map(|&device| {
            let local = Local { graph, shares, device };
            let mut peak = Peak {
                parts: MemoryParts::default(),
                slopes: vec![0.0; graph.axes.len()],
            };
            let moment = busiest(&local.held(devices, program, &storages, &needs, (optimiser, &trained)));
            for storage in storages.iter().filter(|storage| storage.lives_at(moment)) {
                let value = &program.values[storage.value];
                let bytes = local.add(value, 1.0, &mut peak.slopes);
                match storage.part {
                    Part::Parameter => peak.parts.parameters += bytes,
                    Part::Gradient => peak.parts.gradients += bytes,
                    Part::Activation => peak.parts.activations += bytes,
                }
            }
            for (value, factor) in optimiser.held(&local, program, &trained, moment + 1 == program.steps.len()) {
                peak.parts.optimiser += local.add(&program.values[value], factor, &mut peak.slopes);
            }
            for need in at(&needs, moment) {
                let (bytes, slopes) = largest(&local, devices, need);
                peak.parts.buffers += bytes;
                slopes.iter().for_each(|(axis, slope)| peak.slopes[*axis] += slope);
            }
            peak
        })
        .collect()
}

/// The instruction at which the most is held; the first of several.
fn busiest(held: &[f64]) -> usize {
    (1..held.len()).fold(0, |most, moment| if held[moment] > held[most] { moment } else { most })
}

/// The storages of a program, and who shares them.
struct Storages {
    list: Vec<Storage>,
    /// By value.
    of: Vec<Option<usize>>,
}

impl Storages {
    /// Gives a value memory of its own, unless it has some.
    fn store(&mut self, value: usize, part: Part, born: usize, dies: usize) {
        if self.of[value].is_none() {
            self.of[value] = Some(self.list.len());
            self.list.push(Storage {
                value,
                part,
                born,
                dies,
                within: None,
            });
        }
    }

    /// The storage of a value, or the one that this is part of.
    fn at(&self, value: usize) -> usize {
        let storage = self.of[value].expect("made before it is read");
        self.list[storage].within.unwrap_or(storage)
    }

    /// Makes one storage part of an earlier one, which is part of none.
    fn merge(&mut self, earlier: usize, later: usize) {
        let Storage { part, dies, .. } = self.list[later];
        self.list[later].within = Some(earlier);
        self.list[earlier].dies = dies;
        self.list[earlier].part = part;
    }

    /// Keeps the memory of a value until an instruction, that one included.
    fn hold(&mut self, value: usize, until: usize) -> &mut Storage {
        let storage = self.at(value);
        let storage = &mut self.list[storage];
        storage.dies = storage.dies.max(until);
        storage
    }
}

/// Who shares whose memory, and for how long.
fn storages(graph: &Graph, program: &ValidProgram, until: &[usize]) -> Vec<Storage> {
    let end = program.steps.len().saturating_sub(1);
    let mut storages = Storages {
        list: Vec::new(),
        of: vec![None; program.values.len()],
    };
    for (position, step) in program.steps.iter().enumerate() {
        match step {
            Step::Input { input, write } => {
                let stored = matches!(graph.inputs[*input].kind, InputKind::Parameter | InputKind::Buffer);
                storages.store(*write, if stored { Part::Parameter } else { Part::Activation }, 0, end);
            }
            Step::Compute {
                operator,
                reads,
                writes,
                ..
            } => {
                for read in reads {
                    storages.hold(*read, position);
                }
                for write in writes {
                    if graph.operators[*operator].layout && storages.of[*write].is_none() {
                        storages.of[*write] = storages.of[reads[0]];
                    }
                    storages.store(*write, Part::Activation, position, position);
                }
            }
            Step::Convert { read, write, .. } => {
                // A bucket is read and made as a whole.
                let together = program.together(position);
                let sent = if program.keeps(position) {
                    until[position]
                } else {
                    position
                };
                storages.hold(*read, sent.max(*together.end()));
                storages.store(*write, Part::Activation, *together.start(), position);
            }
            Step::Free { .. } => {}
            Step::Output { output, read } => {
                let storage = storages.hold(*read, end);
                if graph.outputs[*output].kind == OutputKind::Gradient && storage.part == Part::Activation {
                    storage.part = Part::Gradient;
                }
            }
        }
    }
    reuse::reuse(graph, program, &mut storages);
    storages.list.retain(|storage| storage.within.is_none());
    storages.list
}

/// By device among `members` and by instruction: all bytes that it holds.
pub fn over_program(
    graph: &Graph,
    shares: &Shares,
    devices: usize,
    members: &[usize],
    program: &ValidProgram,
    optimiser: Optimiser,
) -> Vec<Vec<f64>> {
    let until = under_way(graph, program);
    let (storages, needs) = (storages(graph, program, &until), needs(graph, devices, program, &until));
    let trained = trained(graph, program, &storages);
    let lines = members.iter().map(|&device| {
        let local = Local { graph, shares, device };
        local.held(devices, program, &storages, &needs, (optimiser, &trained))
    });
    lines.collect()
}

/// What one device holds of values.
struct Local<'a> {
    graph: &'a Graph,
    shares: &'a Shares,
    device: usize,
}

impl Local<'_> {
    /// The bytes held at each instruction, with an optimiser of trained parameters.
    fn held(
        &self,
        devices: usize,
        program: &ValidProgram,
        storages: &[Storage],
        needs: &[Need],
        (optimiser, trained): (Optimiser, &[usize]),
    ) -> Vec<f64> {
        let mut change = vec![0.0; program.steps.len() + 1];
        for storage in storages {
            let bytes = self.bytes(&program.values[storage.value]);
            change[storage.born] += bytes;
            change[storage.dies + 1] -= bytes;
        }
        let optimised = |stepping: bool| -> f64 {
            let held = optimiser.held(self, program, trained, stepping);
            held.iter()
                .map(|&(value, factor)| factor * self.bytes(&program.values[value]))
                .sum()
        };
        let state = optimised(false);
        let mut held = state;
        let mut line: Vec<f64> = Vec::with_capacity(program.steps.len());
        for bytes in &change[..program.steps.len()] {
            held += bytes;
            line.push(held);
        }
        for need in needs {
            let bytes = largest(self, devices, need).0;
            // Most collectives need none, and may be under way for long.
            if bytes > 0.0 {
                line[need.from..=need.until].iter_mut().for_each(|held| *held += bytes);
            }
        }
        if let Some(last) = line.last_mut() {
            *last += optimised(true) - state;
        }
        line
    }

    /// The axis that a value is sharded along, if any.
    fn axis(&self, value: &Value) -> Option<usize> {
        match value.placements.as_slice() {
            [Placement::Shard(occurrence)] => Some(self.graph.tensors[value.tensor].occurrences[*occurrence as usize]),
            _ => None,
        }
    }

    /// Bytes of the local piece.
    fn bytes(&self, value: &Value) -> f64 {
        let share = self.axis(value).map_or(1.0, |axis| self.shares[axis][self.device]);
        self.graph.tensors[value.tensor].bytes * share
    }

    /// `factor` times the bytes of the local piece; adds their slope.
    fn add(&self, value: &Value, factor: f64, slopes: &mut [f64]) -> f64 {
        if let Some(axis) = self.axis(value) {
            slopes[axis] += factor * self.graph.tensors[value.tensor].bytes;
        }
        factor * self.bytes(value)
    }
}

#[cfg(test)]
mod tests;
