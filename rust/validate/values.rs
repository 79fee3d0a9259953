//! The values that are there: how the validator finds, makes and frees them.

use super::{Step, Validator, Value};
use crate::placement::Placements;

impl Validator<'_> {
    /// The value of a tensor in a placement, if it is there.
    pub(super) fn find(&self, tensor: usize, placements: &Placements) -> Option<usize> {
        self.there[tensor]
            .iter()
            .copied()
            .find(|value| self.valid.values[*value].placements == *placements)
    }

    /// [`Self::find`], or a message that says what is there instead.
    pub(super) fn needed(&self, tensor: usize, placements: &Placements) -> Result<usize, String> {
        self.find(tensor, placements).ok_or_else(|| {
            let there = self.there[tensor]
                .iter()
                .map(|value| self.show(tensor, &self.valid.values[*value].placements));
            let there = there.collect::<Vec<_>>().join(", ");
            let there = if there.is_empty() {
                "nothing of it".into()
            } else {
                there
            };
            let same = |value: &Value| value.tensor == tensor && value.placements == *placements;
            let freed = if self.valid.values.iter().any(same) {
                "it was freed and "
            } else {
                ""
            };
            format!(
                "{} is needed, but {freed}{there} is there",
                self.show(tensor, placements)
            )
        })
    }

    /// [`Self::find`], or a new value.
    pub(super) fn gain(&mut self, tensor: usize, placements: &Placements) -> usize {
        self.find(tensor, placements).unwrap_or_else(|| {
            self.valid.values.push(Value {
                tensor,
                placements: placements.clone(),
                stored: false,
            });
            self.there[tensor].push(self.valid.values.len() - 1);
            self.valid.values.len() - 1
        })
    }

    /// A tensor in a placement as programs print it.
    pub(super) fn show(&self, tensor: usize, placements: &Placements) -> String {
        crate::program::value(&self.graph.tensors[tensor].name, placements)
    }

    /// What was made is no longer there; inputs as stored stay.
    pub(super) fn free(&mut self, name: &str, placements: &Placements) -> Result<Step, String> {
        let tensor = self.tensor(name)?;
        let read = self.needed(tensor, placements)?;
        if self.stored[tensor] == Some(read) {
            let kind = self.graph.inputs[self.inputs[&tensor]].kind;
            return Err(format!(
                "{} is how the {kind:?} is stored: it is the caller's and cannot be freed",
                self.show(tensor, placements)
            ));
        }
        self.there[tensor].retain(|value| *value != read);
        Ok(Step::Free { read })
    }
}
