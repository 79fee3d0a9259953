//! Tensor classes: tensors that are one another's views, so that a placement of one is a placement of all.

use crate::graph::{Graph, Operator, Tensor};
use crate::placement::{Placement, Placements};

/// Number of placements that a tensor can have: replicated, one shard for each occurrence of an axis, and partial.
pub fn placement_count(tensor: &Tensor) -> usize {
    1 + tensor.occurrences.len() + usize::from(tensor.summable)
}

/// The placement with a number, which is below [`placement_count`].
pub fn placement_at(tensor: &Tensor, number: usize) -> Placement {
    match number.checked_sub(1) {
        None => Placement::Replicate,
        Some(occurrence) if occurrence < tensor.occurrences.len() => Placement::Shard(occurrence as u32),
        Some(_) => Placement::Partial,
    }
}

/// The number of a placement; none where the tensor cannot have it.
pub fn placement_number(tensor: &Tensor, placements: &Placements) -> Option<usize> {
    let shards = tensor.occurrences.len();
    match placements.as_slice() {
        [Placement::Replicate] => Some(0),
        [Placement::Shard(occurrence)] if (*occurrence as usize) < shards => Some(1 + *occurrence as usize),
        [Placement::Partial] if tensor.summable => Some(1 + shards),
        _ => None,
    }
}

/// How a tensor is a view of its class's root.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The layout operator that makes it, by index.
    pub operator: usize,
    /// The tensor that the operator reads.
    pub source: usize,
    /// By number of a placement of this tensor, the operator's choice that yields it.
    pub choices: Vec<usize>,
    /// By number of a placement of this tensor, the number of the source's placement that it is made from.
    pub from: Vec<usize>,
}

/// Tensors by class.
#[derive(Clone, Debug, PartialEq)]
pub struct Classes {
    /// By tensor, its class: the tensor at the root, of which it is a view (itself, mostly).
    pub root: Vec<usize>,
    /// By tensor, how it is made from another of its class; none for roots.
    pub view: Vec<Option<View>>,
    /// By tensor and number of a placement, the number of the root's placement.
    pub in_root: Vec<Vec<usize>>,
    /// By operator, whether it only makes views within a class.
    pub merged: Vec<bool>,
}

impl Classes {
    /// The classes of a graph. Layout operators are merged only where their choices map every placement of operand and
    /// result one to one and to the same kind and axis; with `merge` unset none is.
    pub fn new(graph: &Graph, merge: bool) -> Self {
        let mut classes = Self {
            root: (0..graph.tensors.len()).collect(),
            view: vec![None; graph.tensors.len()],
            in_root: graph
                .tensors
                .iter()
                .map(|tensor| (0..placement_count(tensor)).collect())
                .collect(),
            merged: vec![false; graph.operators.len()],
        };
        for (index, operator) in graph.operators.iter().enumerate() {
            let Some(view) = merge.then(|| view_of(graph, index, operator)).flatten() else {
                continue;
            };
            let result = operator.results[0];
            classes.root[result] = classes.root[view.source];
            classes.in_root[result] = view
                .from
                .iter()
                .map(|&number| classes.in_root[view.source][number])
                .collect();
            classes.view[result] = Some(view);
            classes.merged[index] = true;
        }
        classes
    }
}

/// The one-to-one map of placements that a layout operator stands for, if it is one.
fn view_of(graph: &Graph, index: usize, operator: &Operator) -> Option<View> {
    let ([source], [result]) = (operator.operands.as_slice(), operator.results.as_slice()) else {
        return None;
    };
    let (operand_tensor, result_tensor) = (&graph.tensors[*source], &graph.tensors[*result]);
    let count = placement_count(result_tensor);
    if !operator.layout || operand_tensor.bytes != result_tensor.bytes || placement_count(operand_tensor) != count {
        return None;
    }
    let mut choices = vec![None; count];
    let mut taken = vec![None; count];
    for (number, choice) in operator.choices.iter().enumerate() {
        let from = placement_number(operand_tensor, choice.inputs.first()?)?;
        let to = placement_number(result_tensor, choice.outputs.first()?)?;
        let same = match (placement_at(operand_tensor, from), placement_at(result_tensor, to)) {
            (Placement::Shard(old), Placement::Shard(new)) => {
                operand_tensor.occurrences[old as usize] == result_tensor.occurrences[new as usize]
            }
            (old, new) => old == new,
        };
        if !same || taken[from].is_some_and(|other| other != to) {
            return None;
        }
        taken[from] = Some(to);
        match choices[to] {
            None => choices[to] = Some((number, from)),
            Some((_, other)) if other != from => return None,
            Some(_) => {}
        }
    }
    let (choices, from) = choices.into_iter().collect::<Option<Vec<_>>>()?.into_iter().unzip();
    Some(View {
        operator: index,
        source: *source,
        choices,
        from,
    })
}
