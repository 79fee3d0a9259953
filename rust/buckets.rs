//! Which all-reduces are one: those of gradients, in *buckets* of one element type.
//!
//! A collective of few bytes is mostly latency. Where nothing but the step's outputs reads what an all-reduce yields, it
//! can wait for others of its kind, and they pay for one latency together. What waits longer hides less: of a bucket of
//! `b` bytes, the part `overlap` of its time may be lost behind the backward's last operator. So `total / b * latency +
//! overlap * b * seconds per byte` is least at `b = sqrt(total * latency / (overlap * seconds per byte))`; no bucket is
//! larger than [`LARGEST`], as its operands and results are held at once. What is larger by itself is reduced alone.
//!
//! **Lower bound.** An all-reduce of `b` bytes in a bucket of at most `most` bytes ([`largest`]) pays for `b / most` of a
//! latency at least. That is what [`CostModel::conversion`] says it costs.

use std::collections::BTreeSet;

use crate::cluster::Cluster;
use crate::cost::CostModel;
use crate::graph::{Graph, OutputKind};
use crate::program::{Conversion, Instruction, Program};
use crate::simulate::{Options, Simulation, seconds, simulate_with};
use crate::validate::{ValidProgram, validate_with};
use crate::wellformed::Names;

/// Bytes of a bucket, at most.
pub const LARGEST: f64 = 25e6;
/// Where memory allows no such buckets, smaller ones are tried: so many halvings.
const HALVINGS: i32 = 4;
/// By this fraction more may be held where memory is overrun in any case: such a program is but a start for other splits,
/// and what it takes without buckets, a latency for each gradient, says nothing of it.
const BEYOND: f64 = 0.05;

/// By tensor: whether it is a gradient that nothing but outputs read, itself or as views.
pub fn gradients(graph: &Graph) -> Vec<bool> {
    let mut outputs = vec![false; graph.tensors.len()];
    let mut others = vec![false; graph.tensors.len()];
    for output in &graph.outputs {
        match output.kind {
            OutputKind::Gradient => outputs[output.tensor] = true,
            _ => others[output.tensor] = true,
        }
    }
    for operator in graph.operators.iter().rev() {
        let last = operator.layout
            && operator
                .results
                .iter()
                .all(|&result| outputs[result] && !others[result]);
        for &operand in &operator.operands {
            match last {
                true => outputs[operand] = true,
                false => others[operand] = true,
            }
        }
    }
    outputs
        .into_iter()
        .zip(others)
        .map(|(output, other)| output && !other)
        .collect()
}

/// Bytes of a bucket, at most: no more than all gradients have, each of them or what it is a view of.
pub fn largest(graph: &Graph, gradients: &[bool]) -> f64 {
    let mut viewed: Vec<usize> = (0..graph.tensors.len()).collect();
    for operator in graph.operators.iter().filter(|it| it.layout) {
        if let Some(&operand) = operator.operands.first() {
            for &result in &operator.results {
                if gradients[operand] && gradients[result] {
                    viewed[result] = viewed[operand];
                }
            }
        }
    }
    let mut bytes = vec![0.0_f64; graph.tensors.len()];
    for (tensor, entry) in graph
        .tensors
        .iter()
        .enumerate()
        .filter(|(tensor, _)| gradients[*tensor])
    {
        let held = &mut bytes[viewed[tensor]];
        *held = held.max(entry.bytes);
    }
    bytes.iter().sum::<f64>().min(LARGEST)
}

/// A program that was proven right, and a step of it.
#[derive(Debug)]
pub struct Proven {
    /// The program.
    pub program: Program,
    /// The same, quick to walk.
    pub valid: ValidProgram,
    /// A step of it.
    pub simulation: Simulation,
}

impl Proven {
    /// Whether no device holds more than it may, unless another program holds as much there.
    pub fn fits(&self, other: &Self, capacities: &[f64]) -> bool {
        self.fits_nearly(other, capacities, 0.0)
    }

    /// The same, or by this fraction more than that program.
    fn fits_nearly(&self, other: &Self, capacities: &[f64], beyond: f64) -> bool {
        let held = self.simulation.memory.iter().zip(&other.simulation.memory);
        held.zip(capacities)
            .all(|((held, other), capacity)| *held <= capacity.max(*other * (1.0 + beyond)))
    }
}

/// A valid program with the all-reduces of its gradients in buckets, where that makes no step longer and the devices'
/// memory allows it.
///
/// # Panics
/// If the program is not valid.
pub fn merged(cluster: &Cluster, costs: &CostModel, names: &Names, options: &Options, program: Program) -> Proven {
    let proven = |program: &Program| {
        validate_with(costs.graph(), names, program).unwrap_or_else(|error| unreachable!("a wrong program: {error}"))
    };
    let simulated = |program, valid| Proven {
        simulation: simulate_with(costs, &valid, options),
        program,
        valid,
    };
    let buckets = |program: &Program, halvings| Merger::new(costs, names, program, halvings).run(program);
    let valid = proven(&program);
    let mut merged = buckets(&program, 0);
    if merged == program {
        return simulated(program, valid);
    }
    let most = seconds(costs, &valid);
    let capacities = cluster.capacities();
    let mut without: Option<Proven> = None;
    for halvings in 1..=HALVINGS + 1 {
        let merged_valid = proven(&merged);
        let with = simulated(merged, merged_valid);
        if with.simulation.seconds > most {
            break;
        }
        let fits = |(held, capacity): (&f64, &f64)| held <= capacity;
        if with.simulation.memory.iter().zip(&capacities).all(fits) {
            return with;
        }
        let without = without.get_or_insert_with(|| simulated(program.clone(), valid.clone()));
        let overrun = !without.simulation.memory.iter().zip(&capacities).all(fits);
        if with.fits_nearly(without, &capacities, if overrun { BEYOND } else { 0.0 }) {
            return with;
        }
        merged = buckets(&program, halvings);
    }
    without.unwrap_or_else(|| simulated(program, valid))
}

struct Merger<'a> {
    graph: &'a Graph,
    names: &'a Names,
    gradients: Vec<bool>,
    /// Bytes of a bucket, at most.
    most: f64,
    /// Buckets that wait for more, by element type in the order of their first: bytes, and what they consist of.
    open: Vec<(&'a str, f64, Vec<Instruction>)>,
    /// The tensors in them.
    waiting: BTreeSet<String>,
    buckets: u32,
    merged: Program,
}

impl<'a> Merger<'a> {
    /// With buckets of at most [`LARGEST`] bytes, halved so many times.
    fn new(costs: &CostModel<'a>, names: &'a Names, program: &Program, halvings: i32) -> Self {
        let graph = costs.graph();
        let mut merger = Self {
            graph,
            names,
            gradients: gradients(graph),
            most: 0.0,
            open: Vec::new(),
            waiting: BTreeSet::new(),
            buckets: 0,
            merged: Program::default(),
        };
        let sizes = program.instructions.iter().filter_map(|it| merger.candidate(it));
        let total: f64 = sizes.map(|(_, bytes)| bytes).sum();
        let (latency, per_byte) = costs.all_reduce();
        // Infinite where nothing hides.
        merger.most = (total * latency / (costs.overlap() * per_byte)).sqrt().min(LARGEST) * 0.5_f64.powi(halvings);
        merger
    }

    /// Element type and bytes of what an instruction reduces, where that may wait for others.
    fn candidate(&self, instruction: &Instruction) -> Option<(&'a str, f64)> {
        let Instruction::Convert {
            conversion: Conversion::AllReduce,
            tensor,
            ..
        } = instruction
        else {
            return None;
        };
        let number = *self.names.tensors.get(tensor)?;
        let tensor = &self.graph.tensors[number];
        self.gradients[number].then_some((tensor.dtype.as_str(), tensor.bytes))
    }

    fn run(mut self, program: &Program) -> Program {
        for instruction in &program.instructions {
            match self.candidate(instruction) {
                Some((dtype, bytes)) if bytes < self.most => self.wait(instruction, dtype, bytes),
                _ => {
                    if self.touches(instruction) {
                        self.close(|_| true);
                    }
                    self.merged.instructions.push(instruction.clone());
                }
            }
        }
        self.close(|_| true);
        self.merged
    }

    /// Puts an all-reduce into the bucket of its element type, into a new one where it is full.
    fn wait(&mut self, instruction: &Instruction, dtype: &'a str, bytes: f64) {
        let most = self.most;
        self.close(|(other, held, _)| *other == dtype && held + bytes > most);
        if let Instruction::Convert { tensor, .. } = instruction {
            self.waiting.insert(tensor.clone());
        }
        match self.open.iter_mut().find(|(other, ..)| *other == dtype) {
            Some((_, held, parts)) => {
                *held += bytes;
                parts.push(instruction.clone());
            }
            None => self.open.push((dtype, bytes, vec![instruction.clone()])),
        }
    }

    /// Whether an instruction needs, or ends, what waits.
    fn touches(&self, instruction: &Instruction) -> bool {
        match instruction {
            Instruction::Input { .. } => false,
            Instruction::Compute { inputs, .. } => inputs.iter().any(|(tensor, _)| self.waiting.contains(tensor)),
            Instruction::Convert { tensor, .. }
            | Instruction::Free { tensor, .. }
            | Instruction::Output { tensor, .. } => self.waiting.contains(tensor),
        }
    }

    /// Emits the open buckets that are asked for.
    fn close(&mut self, which: impl Fn(&(&'a str, f64, Vec<Instruction>)) -> bool) {
        let (closed, open) = std::mem::take(&mut self.open).into_iter().partition(which);
        self.open = open;
        for (_, _, mut parts) in closed {
            let number = (parts.len() > 1).then_some(self.buckets);
            self.buckets += u32::from(parts.len() > 1);
            for part in &mut parts {
                if let Instruction::Convert { tensor, bucket, .. } = part {
                    self.waiting.remove(tensor);
                    *bucket = number;
                }
            }
            self.merged.instructions.extend(parts);
        }
    }
}

#[cfg(test)]
mod tests;
