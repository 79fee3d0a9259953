//! Checks of an operator: its bytes, and that its choices fit it and the axes of its tensors.

use crate::graph::{Choice, Graph, Operator};
use crate::placement::{Placement, Placements};
use crate::program::Conversion;
use crate::wellformed::{GraphError, not_negative, validate_placement};

impl Graph {
    pub(super) fn validate_operator(&self, operator: &Operator) -> Result<(), GraphError> {
        let name = &operator.name;
        not_negative(operator.flops, &format!("operator \"{name}\": flops"))?;
        let bytes = [
            ("operand_bytes", &operator.operand_bytes, operator.operands.len()),
            ("result_bytes", &operator.result_bytes, operator.results.len()),
        ];
        for (field, bytes, expected) in bytes {
            if bytes.len() != expected {
                let found = bytes.len();
                return Err(GraphError(format!(
                    "operator \"{name}\": {field} has {found} entries, expected {expected}"
                )));
            }
            bytes
                .iter()
                .try_for_each(|bytes| not_negative(*bytes, &format!("operator \"{name}\": {field}")))?;
        }
        if operator.layout && operator.operands.is_empty() {
            return Err(GraphError(format!(
                "operator \"{name}\" is a layout operator, but has no operand"
            )));
        }
        let Some(first) = operator.choices.first() else {
            return Err(GraphError(format!(
                "operator \"{name}\" has no choices, expected the replicated one at least"
            )));
        };
        let mut placements = first.inputs.iter().chain(&first.outputs).flatten();
        if first.axis.is_some()
            || first.composite.is_some()
            || placements.any(|placement| *placement != Placement::Replicate)
        {
            return Err(GraphError(format!(
                "operator \"{name}\": choice 0 is not the replicated one"
            )));
        }
        for (index, choice) in operator.choices.iter().enumerate() {
            let place = format!("operator \"{name}\", choice {index}");
            self.validate_placements(
                &operator.operands,
                &choice.inputs,
                choice.axis,
                &format!("{place}, inputs"),
            )?;
            self.validate_placements(
                &operator.results,
                &choice.outputs,
                choice.axis,
                &format!("{place}, outputs"),
            )?;
            if let Some(axis) = choice.axis.filter(|axis| *axis >= self.axes.len()) {
                let axes = self.axes.len();
                return Err(GraphError(format!(
                    "{place}: axis is {axis}, but there are {axes} axes"
                )));
            }
            self.validate_collectives(choice, &place)?;
        }
        Ok(())
    }

    fn validate_collectives(&self, choice: &Choice, place: &str) -> Result<(), GraphError> {
        if choice.composite.is_none() && !choice.collectives.is_empty() {
            return Err(GraphError(format!("{place}: it has collectives, but is no composite")));
        }
        for (index, collective) in choice.collectives.iter().enumerate() {
            let place = format!("{place}, collective {index}");
            let conversion = collective.conversion;
            not_negative(collective.bytes, &format!("{place}: bytes"))?;
            let fits = match (conversion, collective.axis) {
                (Conversion::AllReduce, axis) => axis.is_none(),
                (Conversion::AllGather, axis) => axis.is_none_or(|axis| axis < self.axes.len()),
                (Conversion::ReduceScatter | Conversion::AllToAll, axis) => {
                    axis.is_some_and(|axis| axis < self.axes.len())
                }
                (Conversion::Resplit, _) => return Err(GraphError(format!("{place}: {conversion} cannot be inside"))),
                _ => return Err(GraphError(format!("{place}: {conversion} moves nothing"))),
            };
            if !fits {
                let axis = collective.axis.map_or("none".into(), |axis| axis.to_string());
                return Err(GraphError(format!("{place}: {conversion} cannot have the axis {axis}")));
            }
        }
        Ok(())
    }

    fn validate_placements(
        &self,
        tensors: &[usize],
        placements: &[Placements],
        axis: Option<usize>,
        place: &str,
    ) -> Result<(), GraphError> {
        if placements.len() != tensors.len() {
            let (found, expected) = (placements.len(), tensors.len());
            return Err(GraphError(format!("{place}: {found} placements, expected {expected}")));
        }
        for (tensor, placements) in tensors.iter().zip(placements) {
            let tensor = &self.tensors[*tensor];
            validate_placement(tensor, placements).map_err(|message| GraphError(format!("{place}: {message}")))?;
            if let [Placement::Shard(occurrence)] = placements.as_slice()
                && axis != Some(tensor.occurrences[*occurrence as usize])
            {
                let (name, held) = (&tensor.name, &self.axes[tensor.occurrences[*occurrence as usize]].name);
                let shared = axis
                    .and_then(|axis| self.axes.get(axis))
                    .map_or("no axis", |axis| &axis.name);
                return Err(GraphError(format!(
                    "{place}: \"{name}\" is sharded along axis \"{held}\", but the work is shared along {shared}"
                )));
            }
        }
        Ok(())
    }
}
