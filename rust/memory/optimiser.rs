//! What the optimiser holds: its state, and what it makes while it steps.

use serde::{Deserialize, Serialize};

use super::{Local, Part, Storage};
use crate::graph::{Graph, OutputKind, Tensor};
use crate::validate::ValidProgram;
use crate::wellformed::element_bytes;

/// Tensors of a parameter's shape that the optimiser makes while it steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Temporaries {
    /// For all parameters at a time.
    pub together: u32,
    /// For one parameter after the other.
    pub in_turn: u32,
    /// What is left of the parameter before, meanwhile.
    pub carried: u32,
}

/// Tensors of a parameter's shape that the optimiser holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Optimiser {
    /// Kept for each parameter all the time.
    pub tensors: u32,
    /// Made while it steps.
    pub temporaries: Temporaries,
}

/// Bytes of an optimiser's tensor for a byte of a trained parameter: elements have its size, but 4 bytes at least.
///
/// # Panics
/// If the element type is unknown; a validated graph has none such.
pub fn optimiser_factor(parameter: &Tensor) -> f64 {
    let element = element_bytes(&parameter.dtype).expect("a validated graph");
    (4.0 / element).max(1.0)
}

/// The values of trained parameters as they are stored, in the order of the program.
pub(super) fn trained(graph: &Graph, program: &ValidProgram, storages: &[Storage]) -> Vec<usize> {
    let mut trained = vec![false; graph.tensors.len()];
    for output in &graph.outputs {
        if output.kind == OutputKind::Gradient {
            trained[output.of.expect("a validated graph")] = true;
        }
    }
    let stored = storages.iter().filter(|storage| storage.part == Part::Parameter);
    let values = stored.map(|storage| storage.value);
    values.filter(|&value| trained[program.values[value].tensor]).collect()
}

impl Optimiser {
    /// One that keeps so many tensors, and makes none.
    pub fn keeping(tensors: u32) -> Self {
        Self {
            tensors,
            ..Self::default()
        }
    }

    /// What it holds on a device: for values of trained parameters, the bytes for a byte of each. That is its state, and
    /// what it makes where it is `stepping`.
    pub(super) fn held(
        self,
        local: &Local,
        program: &ValidProgram,
        trained: &[usize],
        stepping: bool,
    ) -> Vec<(usize, f64)> {
        let Temporaries {
            together,
            in_turn,
            carried,
        } = self.temporaries;
        let always = if stepping {
            self.tensors + together
        } else {
            self.tensors
        };
        let factor = |value: usize| optimiser_factor(&local.graph.tensors[program.values[value].tensor]);
        let mut held: Vec<(usize, f64)> = trained
            .iter()
            .map(|&value| (value, f64::from(always) * factor(value)))
            .collect();
        if !stepping || in_turn == 0 {
            return held;
        }
        let made = |place: usize, count: u32| f64::from(count) * factor(trained[place]);
        let bytes = |place: usize, count: u32| made(place, count) * local.bytes(&program.values[trained[place]]);
        let all = |place: usize| bytes(place, in_turn) + if place > 0 { bytes(place - 1, carried) } else { 0.0 };
        // The first of equal ones.
        let most = (0..trained.len())
            .rev()
            .max_by(|&one, &other| all(one).total_cmp(&all(other)));
        if let Some(place) = most {
            held[place].1 += made(place, in_turn);
            if place > 0 {
                held[place - 1].1 += made(place - 1, carried);
            }
        }
        held
    }
}
