//! A distributed program: an ordered list of instructions that every device takes.
//!
//! Instructions name tensors and operators, so that a program can be read, stored and printed without its graph.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::placement::Placements;

/// How a conversion moves data. See [`Instruction::Convert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conversion {
    /// `Shard` to `Replicate`.
    AllGather,
    /// `Partial` to `Replicate`.
    AllReduce,
    /// `Partial` to `Shard`.
    ReduceScatter,
    /// `Shard` to `Shard` of another occurrence.
    AllToAll,
    /// `Replicate` to `Shard`: every device keeps its share. Moves nothing.
    Slice,
    /// `Replicate` to `Partial`: one device keeps the tensor, the others take zeros. Moves nothing.
    KeepOne,
    /// `Shard` to `Partial`: the share is padded with zeros. Moves nothing.
    Pad,
}

/// How a collective is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Implementation {
    /// Every share is padded to the largest.
    Padded,
    /// One broadcast (gathers) or one reduction (reduce-scatters) per device with a share.
    Grouped,
    /// One uneven all-to-all (reduce-scatters: and a local sum).
    Exchange,
    /// The backend's own all-reduce.
    Builtin,
}

/// A step that all devices take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Instruction {
    /// An input of the graph is there, in this placement.
    Input {
        /// Name of the tensor.
        tensor: String,
        /// Its placement.
        placement: Placements,
    },
    /// An operator is applied to local pieces.
    Compute {
        /// Name of the operator.
        operator: String,
        /// PyTorch's name of the operator.
        target: String,
        /// Names of the operands and the placements that are read.
        inputs: Vec<(String, Placements)>,
        /// Names of the results and the placements that are gained.
        outputs: Vec<(String, Placements)>,
        /// Name of the axis that the work is shared along.
        axis: Option<String>,
    },
    /// A tensor gains another placement.
    Convert {
        /// How.
        conversion: Conversion,
        /// Name of the tensor.
        tensor: String,
        /// The placement that is there.
        from: Placements,
        /// The placement that is gained.
        to: Placements,
        /// Name of the axis that is gathered, scattered or sliced (for an all-to-all, the one that becomes whole).
        axis: Option<String>,
        /// How the collective is carried out; none where nothing moves.
        implementation: Option<Implementation>,
    },
    /// An output of the graph: what it is read from.
    Output {
        /// The user's name for the output.
        name: String,
        /// Name of the tensor.
        tensor: String,
        /// The placement that it is read in.
        placement: Placements,
    },
}

/// Units that each device gets, by the name of the axis. Each list has one number per device, summing to the axis' size.
pub type Splits = BTreeMap<String, Vec<u64>>;

/// A distributed program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// The instructions, in order. An operator may be applied more than once, in different placements.
    pub instructions: Vec<Instruction>,
}
