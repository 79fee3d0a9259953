//! A program in a form that is quick to walk: indices in place of names.

use std::ops::RangeInclusive;

use crate::placement::Placements;
use crate::program::{Conversion, Implementation};

/// A tensor in a placement that a program makes. What is made again after it was freed is another value.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Index into [`crate::graph::Graph::tensors`].
    pub tensor: usize,
    /// How it lies.
    pub placements: Placements,
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
