//! Checks that a graph read from outside is what [`crate::graph`] promises, and finds its parts by name.

mod operators;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::graph::{Axis, Graph, InputKind, Output, OutputKind, Tensor};
use crate::placement::Placement;

/// What is wrong with a graph, and where.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct GraphError(String);

/// Indices of the parts of a graph by their unique names.
#[derive(Clone, Debug)]
pub struct Names {
    /// Index into [`Graph::axes`].
    pub axes: FxHashMap<String, usize>,
    /// Index into [`Graph::tensors`].
    pub tensors: FxHashMap<String, usize>,
    /// Index into [`Graph::operators`].
    pub operators: FxHashMap<String, usize>,
}

impl Graph {
    /// Reads and validates a graph from JSON.
    ///
    /// # Errors
    /// Names what is wrong, and where.
    pub fn from_json(json: &[u8]) -> Result<Self, GraphError> {
        let graph: Self =
            serde_json::from_slice(json).map_err(|error| GraphError(format!("the graph cannot be read: {error}")))?;
        graph.validate()?;
        Ok(graph)
    }

    /// Indices by name.
    pub fn names(&self) -> Names {
        fn index<T>(items: &[T], name: impl Fn(&T) -> &String) -> FxHashMap<String, usize> {
            items
                .iter()
                .enumerate()
                .map(|(index, item)| (name(item).clone(), index))
                .collect()
        }
        Names {
            axes: index(&self.axes, |axis| &axis.name),
            tensors: index(&self.tensors, |tensor| &tensor.name),
            operators: index(&self.operators, |operator| &operator.name),
        }
    }

    /// Checks the graph: unique names, indices in range, every tensor written once and before it is read, choices
    /// that fit their operator and the axes of its tensors.
    ///
    /// # Errors
    /// Names the first thing that is wrong.
    pub fn validate(&self) -> Result<(), GraphError> {
        if self.format != "hap-graph-1" {
            return Err(GraphError(format!(
                "format is \"{}\", expected \"hap-graph-1\"",
                self.format
            )));
        }
        unique("axes", self.axes.iter().map(|axis| &axis.name))?;
        unique("tensors", self.tensors.iter().map(|tensor| &tensor.name))?;
        unique("operators", self.operators.iter().map(|operator| &operator.name))?;
        self.axes.iter().try_for_each(|axis| validate_axis(axis, &self.axes))?;
        self.tensors
            .iter()
            .try_for_each(|tensor| self.validate_tensor(tensor))?;
        self.validate_order()?;
        self.operators
            .iter()
            .try_for_each(|operator| self.validate_operator(operator))?;
        self.validate_outputs()
    }

    fn validate_tensor(&self, tensor: &Tensor) -> Result<(), GraphError> {
        let name = &tensor.name;
        not_negative(tensor.bytes, &format!("tensor \"{name}\": bytes"))?;
        if let Some(axis) = tensor.occurrences.iter().find(|axis| **axis >= self.axes.len()) {
            let axes = self.axes.len();
            return Err(GraphError(format!(
                "tensor \"{name}\" has axis {axis}, but there are {axes} axes"
            )));
        }
        let count = |axis: usize| tensor.occurrences.iter().filter(|&&other| other == axis).count();
        for &axis in &tensor.occurrences {
            let Axis { name: class, of, .. } = &self.axes[axis];
            if let Some(of) = of.filter(|&of| count(of) != count(axis)) {
                let base = &self.axes[of].name;
                return Err(GraphError(format!(
                    "tensor \"{name}\" does not have axis \"{class}\" as often as \"{base}\", which it is a class of"
                )));
            }
        }
        if element_bytes(&tensor.dtype).is_none() {
            return Err(GraphError(format!(
                "tensor \"{name}\" has an unknown element type, \"{}\"",
                tensor.dtype
            )));
        }
        Ok(())
    }

    /// Every tensor is written once, and before it is read.
    fn validate_order(&self) -> Result<(), GraphError> {
        let mut written = vec![false; self.tensors.len()];
        let mut write = |tensor: usize, writer: &str| match written.get_mut(tensor) {
            None => Err(GraphError(format!(
                "{writer} writes tensor {tensor}, which does not exist"
            ))),
            Some(true) => Err(GraphError(format!(
                "{writer} writes \"{}\", which is already there",
                self.tensors[tensor].name
            ))),
            Some(written) => {
                *written = true;
                Ok(())
            }
        };
        for input in &self.inputs {
            write(input.tensor, &format!("input \"{}\"", input.name))?;
        }
        // Readers are checked by position: when an operator is reached, what later ones write is not there yet.
        let mut writer = vec![None; self.tensors.len()];
        for (position, operator) in self.operators.iter().enumerate() {
            for result in &operator.results {
                write(*result, &format!("operator \"{}\"", operator.name))?;
                writer[*result] = Some(position);
            }
        }
        for (position, operator) in self.operators.iter().enumerate() {
            for operand in &operator.operands {
                let name = &operator.name;
                let Some(tensor) = self.tensors.get(*operand) else {
                    return Err(GraphError(format!(
                        "operator \"{name}\" reads tensor {operand}, which does not exist"
                    )));
                };
                if writer[*operand].is_some_and(|writer| writer >= position) {
                    let tensor = &tensor.name;
                    return Err(GraphError(format!(
                        "operator \"{name}\" reads \"{tensor}\" before it is written"
                    )));
                }
            }
        }
        match written.iter().position(|written| !written) {
            Some(tensor) => {
                let name = &self.tensors[tensor].name;
                Err(GraphError(format!(
                    "tensor \"{name}\" is written by no input and no operator"
                )))
            }
            None => Ok(()),
        }
    }

    fn validate_outputs(&self) -> Result<(), GraphError> {
        let mut names = FxHashSet::default();
        for output in &self.outputs {
            let name = &output.name;
            if output.tensor >= self.tensors.len() {
                let tensor = output.tensor;
                return Err(GraphError(format!(
                    "output \"{name}\" is tensor {tensor}, which does not exist"
                )));
            }
            if !names.insert((output.kind as u8, name)) {
                return Err(GraphError(format!(
                    "there are two outputs of kind {:?} named \"{name}\"",
                    output.kind
                )));
            }
            let stored = match output.kind {
                OutputKind::Gradient => InputKind::Parameter,
                OutputKind::Buffer => InputKind::Buffer,
                OutputKind::Output if output.of.is_some() => InputKind::Tangent,
                _ => continue,
            };
            self.validate_stored(output, stored)?;
        }
        Ok(())
    }

    /// A gradient or new buffer must be able to take every placement of the parameter or buffer that it belongs to, an
    /// output those of its tangent.
    fn validate_stored(&self, output: &Output, kind: InputKind) -> Result<(), GraphError> {
        let name = &output.name;
        let stored = self
            .inputs
            .iter()
            .find(|input| input.kind == kind && Some(input.tensor) == output.of);
        let Some(stored) = stored else {
            let of = output.of;
            return Err(GraphError(format!(
                "output \"{name}\" ({:?}) is of tensor {of:?}, which is no input of kind {kind:?}",
                output.kind
            )));
        };
        let (stored, tensor) = (&self.tensors[stored.tensor], &self.tensors[output.tensor]);
        if stored.occurrences != tensor.occurrences {
            return Err(GraphError(format!(
                "output \"{name}\": \"{}\" has axes {:?}, but \"{}\" has {:?}: they must agree",
                tensor.name, tensor.occurrences, stored.name, stored.occurrences
            )));
        }
        Ok(())
    }
}

/// Whether a tensor can lie like this: one level, an occurrence that exists, no partial sums where they make no
/// sense.
///
/// # Errors
/// Says why not.
pub fn validate_placement(tensor: &Tensor, placements: &[Placement]) -> Result<(), String> {
    let name = &tensor.name;
    match placements {
        [Placement::Replicate] => Ok(()),
        [Placement::Partial] if tensor.summable => Ok(()),
        [Placement::Partial] => Err(format!(
            "\"{name}\" cannot be partial: sums of {} make no sense",
            tensor.dtype
        )),
        [Placement::Shard(occurrence)] if (*occurrence as usize) < tensor.occurrences.len() => Ok(()),
        [Placement::Shard(occurrence)] => {
            let found = tensor.occurrences.len();
            Err(format!(
                "\"{name}\" cannot be S{occurrence}: it has {found} occurrences of axes"
            ))
        }
        _ => Err(format!(
            "\"{name}\" is placed on {} levels, expected 1",
            placements.len()
        )),
    }
}

/// Bytes of one element of a type that PyTorch names: `bfloat16` is 2, `bool` is 1. `None` for what is no such name.
pub fn element_bytes(dtype: &str) -> Option<f64> {
    if dtype == "bool" {
        return Some(1.0);
    }
    let digits: String = dtype
        .chars()
        .skip_while(|c| !c.is_ascii_digit())
        .take_while(char::is_ascii_digit)
        .collect();
    digits
        .parse::<u32>()
        .ok()
        .filter(|bits| *bits > 0)
        .map(|bits| f64::from(bits) / 8.0)
}

fn validate_axis(axis: &Axis, axes: &[Axis]) -> Result<(), GraphError> {
    let name = &axis.name;
    if axis.size == 0 {
        return Err(GraphError(format!(
            "axis \"{name}\" has no units, expected one at least"
        )));
    }
    let mut product = Some(1u64);
    for &part in &axis.parts {
        match axes.get(part) {
            Some(part) if part.parts.is_empty() => product = product.and_then(|product| product.checked_mul(part.size)),
            _ => {
                return Err(GraphError(format!(
                    "axis \"{name}\" is a run with {part}, which is no axis of its own"
                )));
            }
        }
    }
    if !axis.parts.is_empty() && product != Some(axis.size) {
        let size = axis.size;
        return Err(GraphError(format!(
            "axis \"{name}\" has {size} units, which is not the product of its parts' sizes"
        )));
    }
    let Some(of) = axis.of else { return Ok(()) };
    match axes.get(of) {
        Some(base) if base.of.is_none() && base.size == axis.size && axis.parts.is_empty() => Ok(()),
        _ => Err(GraphError(format!(
            "axis \"{name}\" is a split class of {of}, which is no axis of as many units that is no such class itself"
        ))),
    }
}

fn unique<'a>(kind: &str, names: impl Iterator<Item = &'a String>) -> Result<(), GraphError> {
    let mut seen = FxHashSet::default();
    for name in names {
        if !seen.insert(name) {
            return Err(GraphError(format!("two {kind} are named \"{name}\"")));
        }
    }
    Ok(())
}

fn not_negative(value: f64, place: &str) -> Result<(), GraphError> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(GraphError(format!(
        "{place} is {value}, expected a number that is not negative"
    )))
}

#[cfg(test)]
mod tests;
