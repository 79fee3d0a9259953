//! How long collectives are under way, which holds what they send and their buffers.

use crate::graph::Graph;
use crate::validate::{Step, ValidProgram};

/// By instruction, the last one at which a collective that stands there may be under way; itself for all others.
///
/// A collective ends right before the first instruction that reads its result, or before the one that waits for it
/// ([`ValidProgram::ended`]); at the end of the program where there is neither.
pub(super) fn under_way(graph: &Graph, program: &ValidProgram) -> Vec<usize> {
    let read_first = program.read_first();
    let steps = program.steps.iter().enumerate();
    let until = steps.map(|(position, step)| match step {
        Step::Convert {
            implementation: Some(_),
            write,
            ..
        } => read_first[*write] - 1,
        _ => position,
    });
    let mut until: Vec<usize> = until.collect();
    for (position, by) in program.ended(graph) {
        until[position] = until[position].min(by - 1);
    }
    until
}
