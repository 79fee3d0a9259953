//! Forward and backward: which operators run behind the boundary between them, and which may run again there.

use super::classes::Classes;
use super::segments::crossing;
use crate::graph::{Graph, OutputKind};

/// One way to run an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The choice, by index.
    pub choice: usize,
    /// Whether it runs a second time, in the backward.
    pub again: bool,
}

/// The phases of a graph's operators.
#[derive(Clone, Debug, PartialEq)]
pub struct Phases {
    /// Whether there is a boundary at all; if not, all is one phase.
    pub boundary: bool,
    /// By operator, whether it runs in the backward: no loss, output or new buffer needs it.
    pub backward: Vec<bool>,
    /// By operator, whether it may run a second time, in the backward: it is a forward one, and the backward may read a
    /// result of it. Random operators too: what they draw depends on the seed and the step alone.
    pub again: Vec<bool>,
}

impl Phases {
    /// All operators in one phase, each run once.
    pub fn one(graph: &Graph) -> Self {
        let none = vec![false; graph.operators.len()];
        Self {
            boundary: false,
            backward: none.clone(),
            again: none,
        }
    }

    /// The two phases of a graph. What crosses the cuts between so many segments of the forward runs once.
    pub fn two(graph: &Graph, classes: &Classes, segments: usize) -> Self {
        let mut needed = vec![false; graph.tensors.len()];
        // By root of a class, whether the backward may read it.
        let mut read = vec![false; graph.tensors.len()];
        for output in &graph.outputs {
            match output.kind {
                OutputKind::Loss | OutputKind::Output | OutputKind::Buffer => needed[output.tensor] = true,
                OutputKind::Gradient | OutputKind::InputGradient => read[classes.root[output.tensor]] = true,
            }
        }
        let mut phases = Self {
            boundary: true,
            ..Self::one(graph)
        };
        for (index, operator) in graph.operators.iter().enumerate().rev() {
            phases.backward[index] = !operator.results.iter().any(|&result| needed[result]);
            for &operand in &operator.operands {
                needed[operand] |= !phases.backward[index];
                read[classes.root[operand]] |= phases.backward[index] && !classes.merged[index];
            }
        }
        let once = crossing(graph, classes, &phases.backward, segments);
        for (index, operator) in graph.operators.iter().enumerate().rev() {
            if phases.backward[index] || classes.merged[index] || once[index] {
                continue;
            }
            phases.again[index] = operator.results.iter().any(|&result| read[classes.root[result]]);
            for &operand in &operator.operands {
                read[classes.root[operand]] |= phases.again[index];
            }
        }
        phases
    }

    /// The ways to run an operator (by index) by these choices: once, then, if it may, twice.
    pub fn runs(&self, operator: usize, choices: &[usize]) -> Vec<Run> {
        let again = [false, true].into_iter().take(1 + usize::from(self.again[operator]));
        again
            .flat_map(|again| choices.iter().map(move |&choice| Run { choice, again }))
            .collect()
    }
}
