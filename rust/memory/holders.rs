//! What holds the most memory of a device at its peak.

use serde::{Deserialize, Serialize};

use super::{Local, Part, buffer_of, needs, optimiser_factor, storages, trained};
use crate::graph::Graph;
use crate::placement::Placements;
use crate::shares::Shares;
use crate::validate::{Step, ValidProgram};

/// What memory is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// A parameter or buffer.
    Parameter,
    /// The gradient of a parameter.
    Gradient,
    /// The optimiser's state of a parameter.
    Optimiser,
    /// An input, an intermediate value, a converted copy, an output.
    Activation,
    /// What a collective needs beside its operand and result.
    Buffer,
}

/// Something that holds memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Holder {
    /// What for.
    pub part: Purpose,
    /// Name of the tensor; of a buffer, of the tensor that its collective makes.
    pub tensor: String,
    /// Its placement.
    pub placement: Placements,
    /// Bytes on this device.
    pub bytes: f64,
}

/// By device, the `count` largest holders at its peak, the largest first.
pub fn holders(
    graph: &Graph,
    shares: &Shares,
    devices: usize,
    program: &ValidProgram,
    optimiser_tensors: u32,
    count: usize,
) -> Vec<Vec<Holder>> {
    let storages = storages(graph, program);
    let (trained, needs) = (trained(graph), needs(graph, devices, program));
    let holder = |part: Purpose, value: usize, bytes: f64| {
        let value = &program.values[value];
        Holder {
            part,
            tensor: graph.tensors[value.tensor].name.clone(),
            placement: value.placements.clone(),
            bytes,
        }
    };
    let of_device = |device: usize| {
        let local = Local { graph, shares, device };
        let moment = local.busiest(devices, program, &storages, &needs);
        let mut found = Vec::new();
        for storage in storages.iter().filter(|storage| storage.lives_at(moment)) {
            let value = &program.values[storage.value];
            let bytes = local.bytes(value);
            let part = match storage.part {
                Part::Parameter => Purpose::Parameter,
                Part::Gradient => Purpose::Gradient,
                Part::Activation => Purpose::Activation,
            };
            found.push(holder(part, storage.value, bytes));
            if storage.part == Part::Parameter && trained[value.tensor] {
                let factor = optimiser_factor(&graph.tensors[value.tensor], optimiser_tensors);
                found.push(holder(Purpose::Optimiser, storage.value, factor * bytes));
            }
        }
        let step = program.steps.get(moment);
        let made = match step {
            Some(Step::Convert { write, .. }) => Some(*write),
            Some(Step::Compute { writes, .. }) => writes.first().copied(),
            _ => None,
        };
        if let (Some(step), Some(made)) = (step, made) {
            found.push(holder(
                Purpose::Buffer,
                made,
                buffer_of(&local, devices, program, step).0,
            ));
        }
        found.retain(|holder| holder.bytes > 0.0);
        found.sort_by(|one, other| other.bytes.total_cmp(&one.bytes).then(one.part.cmp(&other.part)));
        found.truncate(count);
        found
    };
    (0..devices).map(of_device).collect()
}
