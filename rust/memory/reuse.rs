//! What a step writes to memory that nothing reads any more, and what it does not make at all.
//!
//! The graph says what each operator may do ([`Operator::reuses`](crate::graph::Operator), `fused`, `opaque`, `partial`);
//! the program, whether nobody reads the operand's memory later, or has it from outside.

use super::{Part, Storages};
use crate::graph::Graph;
use crate::validate::{Step, ValidProgram};

/// Lets results share the memory of the operands that they are written to, and drops what is never made.
pub(super) fn reuse(graph: &Graph, program: &ValidProgram, storages: &mut Storages) {
    let partial = partial(graph, program);
    let mut foreign = foreign(graph, program, storages);
    let mut written = vec![false; program.steps.len()];
    for (position, step) in program.steps.iter().enumerate() {
        let Step::Compute {
            operator,
            choice,
            reads,
            writes,
        } = step
        else {
            continue;
        };
        let node = &graph.operators[*operator];
        let (Some(place), &[write]) = (node.reuses, writes.as_slice()) else {
            continue;
        };
        if node.fused || node.choices[*choice].composite.is_some() {
            continue;
        }
        let read = reads[place];
        let (operand, result) = (storages.at(read), storages.at(write));
        let (from, to) = (&program.values[read], &program.values[write]);
        let held = &storages.list[operand];
        let others = reads.iter().filter(|other| storages.at(**other) == operand).count();
        if held.dies == position
            && held.part == Part::Activation
            && !foreign[operand]
            && !partial[read]
            && others == 1
            && operand != result
            && storages.list[result].born == position
            && from.placements == to.placements
            && graph.tensors[from.tensor].bytes == graph.tensors[to.tensor].bytes
        {
            storages.merge(operand, result);
            foreign[operand] |= foreign[result];
            written[position] = true;
        }
    }
    let unmade: Vec<usize> = (0..program.steps.len())
        .filter(|&position| is_unmade(graph, program, storages, &written, position))
        .flat_map(|position| match &program.steps[position] {
            Step::Compute { writes, .. } => writes.iter().map(|write| storages.at(*write)).collect(),
            _ => Vec::new(),
        })
        .collect();
    unmade
        .into_iter()
        .for_each(|storage| storages.list[storage].within = Some(storage));
}

/// Whether the results of an instruction are never made: at the end of their readers one writes to an operand.
fn is_unmade(graph: &Graph, program: &ValidProgram, storages: &Storages, written: &[bool], position: usize) -> bool {
    let Step::Compute { operator, writes, .. } = &program.steps[position] else {
        return false;
    };
    graph.operators[*operator].fused
        && writes.iter().all(|write| {
            let reader = storages.list[storages.at(*write)].dies;
            reader > position && (written[reader] || is_unmade(graph, program, storages, written, reader))
        })
}

/// By value: whether it may leave out elements of its memory, or show one at several places.
fn partial(graph: &Graph, program: &ValidProgram) -> Vec<bool> {
    let mut partial = vec![false; program.values.len()];
    for step in &program.steps {
        if let Step::Compute {
            operator,
            reads,
            writes,
            ..
        } = step
        {
            let node = &graph.operators[*operator];
            let shown = node.partial || (node.layout && reads.iter().any(|read| partial[*read]));
            writes.iter().for_each(|write| partial[*write] |= shown);
        }
    }
    partial
}

/// By storage: whether someone outside of the step's own operators may have it.
fn foreign(graph: &Graph, program: &ValidProgram, storages: &Storages) -> Vec<bool> {
    let mut foreign = vec![false; storages.list.len()];
    let mut mark = |value: &usize| foreign[storages.at(*value)] = true;
    for step in &program.steps {
        match step {
            Step::Input { write, .. } => mark(write),
            Step::Convert { read, write, .. } => [read, write].into_iter().for_each(&mut mark),
            Step::Compute {
                operator,
                reads,
                writes,
                ..
            } if graph.operators[*operator].opaque => reads.iter().chain(writes).for_each(&mut mark),
            _ => {}
        }
    }
    foreign
}
