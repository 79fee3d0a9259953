//! A program in a form that is quick to walk: indices in place of names.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use crate::graph::Graph;
use crate::placement::Placements;
use crate::program::{Conversion, Implementation};

/// Bytes of operands that collectives under way keep at most beside the largest, in parts of that.
const KEPT: f64 = 0.125;

/// A tensor in a placement that a program makes. What is made again after it was freed is another value.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Index into [`crate::graph::Graph::tensors`].
    pub tensor: usize,
    /// How it lies.
    pub placements: Placements,
    /// Whether it is an input as stored: the caller's, there all the time.
    pub stored: bool,
}

/// An instruction with indices in place of names. Reads and writes are indices into [`ValidProgram::values`].
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// An input is there.
    Input {
        /// Index into [`crate::graph::Graph::inputs`].
        input: usize,
        /// The value.
        write: usize,
    },
    /// An operator is applied.
    Compute {
        /// Index into [`crate::graph::Graph::operators`].
        operator: usize,
        /// Index into the operator's choices.
        choice: usize,
        /// Its operands.
        reads: Vec<usize>,
        /// Its results.
        writes: Vec<usize>,
    },
    /// A tensor gains a placement.
    Convert {
        /// How.
        conversion: Conversion,
        /// How the collective is carried out.
        implementation: Option<Implementation>,
        /// The bucket that it is part of.
        bucket: Option<u32>,
        /// The placement that is there.
        read: usize,
        /// The placement that is gained.
        write: usize,
    },
    /// A value is no longer there.
    Free {
        /// The value.
        read: usize,
    },
    /// An output is read.
    Output {
        /// Index into [`crate::graph::Graph::outputs`].
        output: usize,
        /// The value.
        read: usize,
    },
}

/// A program that was proven right, in a form that is quick to walk.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValidProgram {
    /// Everything that is ever there.
    pub values: Vec<Value>,
    /// The instructions, in order.
    pub steps: Vec<Step>,
}

impl ValidProgram {
    /// Whether the collective at a position keeps memory for what it sends until it has ended. Sums are made in a copy,
    /// and inputs are there all the time.
    pub fn keeps(&self, position: usize) -> bool {
        matches!(
            &self.steps[position],
            Step::Convert { implementation: Some(how), read, .. }
                if *how != Implementation::Builtin && !self.values[*read].stored
        )
    }

    /// By value, the position of the first instruction that reads it, frees aside; that behind the last one if none does.
    pub fn read_first(&self) -> Vec<usize> {
        let mut first = vec![self.steps.len(); self.values.len()];
        for (position, step) in self.steps.iter().enumerate().rev() {
            match step {
                Step::Compute { reads, .. } => reads.iter().for_each(|&read| first[read] = position),
                Step::Convert { read, .. } | Step::Output { read, .. } => first[*read] = position,
                Step::Input { .. } | Step::Free { .. } => {}
            }
        }
        first
    }

    /// Of the collectives that keep their operands, in order, those that must have ended before a later one starts, and
    /// that one: so many are under way that their operands, whole, have few bytes beside the largest ([`KEPT`]).
    pub fn ended(&self, graph: &Graph) -> Vec<(usize, usize)> {
        let mut ended = Vec::new();
        let mut under_way: VecDeque<(usize, f64)> = VecDeque::new();
        for (position, step) in self.steps.iter().enumerate() {
            let Step::Convert { read, .. } = step else { continue };
            if !self.keeps(position) {
                continue;
            }
            under_way.push_back((position, graph.tensors[self.values[*read].tensor].bytes));
            let many = |under_way: &VecDeque<(usize, f64)>| {
                let bytes = under_way.iter().map(|(_, bytes)| *bytes);
                bytes.clone().sum::<f64>() > (1.0 + KEPT) * bytes.fold(0.0, f64::max)
            };
            while many(&under_way) {
                ended.extend(under_way.pop_front().map(|(other, _)| (other, position)));
            }
        }
        ended
    }

    /// The positions of the instructions that are one collective with that at a position, which is among them.
    pub fn together(&self, position: usize) -> RangeInclusive<usize> {
        let bucket = |position: usize| match self.steps.get(position) {
            Some(Step::Convert { bucket, .. }) => *bucket,
            _ => None,
        };
        let own = bucket(position);
        if own.is_none() {
            return position..=position;
        }
        let first = (0..position).rev().take_while(|&other| bucket(other) == own).last();
        let last = (position..).take_while(|&other| bucket(other) == own).last();
        first.unwrap_or(position)..=last.unwrap_or(position)
    }
}
