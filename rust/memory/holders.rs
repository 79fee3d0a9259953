//! What holds the most memory of a device at its peak.

use serde::{Deserialize, Serialize};

use super::{Local, Optimiser, Part, at, busiest, largest, needs, storages, trained, under_way};
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
    /// What the optimiser keeps and makes for a parameter.
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
    optimiser: Optimiser,
    count: usize,
) -> Vec<Vec<Holder>> {
    let until = under_way(graph, program);
    let (storages, needs) = (storages(graph, program, &until), needs(graph, devices, program, &until));
    let trained = trained(graph, program, &storages);
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
        let moment = busiest(&local.held(devices, program, &storages, &needs, (optimiser, &trained)));
        let mut found = Vec::new();
        for storage in storages.iter().filter(|storage| storage.lives_at(moment)) {
            let bytes = local.bytes(&program.values[storage.value]);
            let part = match storage.part {
                Part::Parameter => Purpose::Parameter,
                Part::Gradient => Purpose::Gradient,
                Part::Activation => Purpose::Activation,
            };
            found.push(holder(part, storage.value, bytes));
        }
        for (value, factor) in optimiser.held(&local, program, &trained, moment + 1 == program.steps.len()) {
            let bytes = factor * local.bytes(&program.values[value]);
            found.push(holder(Purpose::Optimiser, value, bytes));
        }
        for need in at(&needs, moment) {
            let made = match &program.steps[need.from] {
                Step::Convert { write, .. } => Some(write),
                Step::Compute { writes, .. } => writes.first(),
                _ => None,
            };
            let bytes = largest(&local, devices, need).0;
            found.extend(made.map(|made| holder(Purpose::Buffer, *made, bytes)));
        }
        found.retain(|holder| holder.bytes > 0.0);
        found.sort_by(|one, other| other.bytes.total_cmp(&one.bytes).then(one.part.cmp(&other.part)));
        found.truncate(count);
        found
    };
    (0..devices).map(of_device).collect()
}
