//! The training step as the synthesiser sees it: tensors, operators, and the instructions that each operator offers.
//!
//! Python writes this as JSON (`hap-graph-1`); shapes and arguments stay there.

use serde::{Deserialize, Serialize};

use crate::placement::Placements;
use crate::program::Conversion;

/// A named index of the model. Splits belong to axes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// Unique name, such as `batch`.
    pub name: String,
    /// Number of units that can be given to devices.
    pub size: u64,
    /// Of a run of adjacent axes that are sharded as one: the axes that it is the product of, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<usize>,
    /// Of another split class of an axis: that axis. Both are the same index, which may be split in either way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<usize>,
}

impl Graph {
    /// Whether an input may be sharded: parameters, buffers and inputs of the call, and tangents of outputs that end as
    /// these lie. All else is whole on every device.
    pub fn sharded(&self, input: &Input) -> bool {
        match input.kind {
            InputKind::Parameter | InputKind::Buffer | InputKind::Input => true,
            InputKind::Tangent => self.outputs.iter().any(|output| output.of == Some(input.tensor)),
            InputKind::Constant | InputKind::Rng => false,
        }
    }

    /// The axis that an axis is a split class of: itself, where it is no other's.
    pub fn base(&self, axis: usize) -> usize {
        self.axes[axis].of.unwrap_or(axis)
    }

    /// The occurrence of the same index of a tensor in the first split class of its axis: the classes of an axis stand
    /// in a tensor equally often, in the same order. An occurrence that does not exist is of no other index.
    pub fn index(&self, tensor: usize, occurrence: usize) -> usize {
        let occurrences = &self.tensors[tensor].occurrences;
        let Some(&axis) = occurrences.get(occurrence) else {
            return occurrence;
        };
        let Some(base) = self.axes[axis].of else {
            return occurrence;
        };
        let before = occurrences[..occurrence].iter().filter(|&&other| other == axis).count();
        let mut same = (0..occurrences.len()).filter(|&other| occurrences[other] == base);
        same.nth(before).expect("a validated graph")
    }

    /// Whether the shares of an occurrence lie one after another in memory: it is the outermost axis of a tensor, another
    /// split class of it, or a run that begins with it.
    pub fn leads(&self, tensor: usize, occurrence: usize) -> bool {
        let occurrences = &self.tensors[tensor].occurrences;
        let occurrence = self.index(tensor, occurrence);
        let Some(&axis) = occurrences.get(occurrence) else {
            return false;
        };
        let parts = &self.axes[axis].parts;
        let run = !parts.is_empty() && occurrences.starts_with(parts) && !occurrences[..occurrence].contains(&axis);
        !self.tensors[tensor].scattered && (occurrence == 0 || run)
    }
}

/// A value of the training step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// Unique name.
    pub name: String,
    /// Element type, as PyTorch names it (`float32`).
    pub dtype: String,
    /// Size of the whole tensor in bytes.
    pub bytes: f64,
    /// Its axes, dimension by dimension, outermost first, then runs and other split classes: indices into
    /// [`Graph::axes`]. An *occurrence* is an index into this list.
    pub occurrences: Vec<usize>,
    /// Whether the shares of the outermost one lie scattered in memory all the same: its dimension consists of several
    /// blocks, or stands behind another that has no axis.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scattered: bool,
    /// Whether partial sums of it make sense (not for booleans).
    pub summable: bool,
}

/// What an input of the graph is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputKind {
    /// A trained parameter; kept on the devices in the placement that the program chooses.
    Parameter,
    /// A buffer; kept on the devices like a parameter.
    Buffer,
    /// An input of the module's call: whole on every rank, so that slicing is free.
    Input,
    /// The gradient of an output: whole on every rank; that of an [`Output`] ([`Output::of`]) lies as that does.
    Tangent,
    /// A constant of the module: whole on every rank.
    Constant,
    /// The state of the random numbers (seed, step): whole on every rank.
    Rng,
}

/// An input of the graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// What it is.
    pub kind: InputKind,
    /// The user's name for it (`transformer.wte.weight`).
    pub name: String,
    /// Index into [`Graph::tensors`].
    pub tensor: usize,
}

/// What an output of the graph is, and so in which placement it must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputKind {
    /// A loss, or an output of a module without a loss: replicated.
    Loss,
    /// Another output: stays as it was produced, but never partial. Where a gradient comes back to it, in the placement
    /// of that ([`Output::of`]).
    Output,
    /// The gradient of a parameter: in the placement of that parameter ([`Output::of`]).
    Gradient,
    /// The new value of a buffer: in the placement of that buffer ([`Output::of`]).
    Buffer,
    /// The gradient of an input of the call: replicated.
    InputGradient,
}

/// An output of the graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// What it is.
    pub kind: OutputKind,
    /// The user's name for it.
    pub name: String,
    /// Index into [`Graph::tensors`].
    pub tensor: usize,
    /// For gradients and buffers: the tensor of the parameter or buffer. For other outputs that a gradient comes back to:
    /// that tangent.
    #[serde(default)]
    pub of: Option<usize>,
}

/// A collective that a composite choice carries out between its own computations. Gathers and scatters are padded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Collective {
    /// How data moves; one that moves some. An all-to-all passes each device's share on to all others, one after
    /// another (a ring).
    pub conversion: Conversion,
    /// Size of the whole tensor in bytes; without an axis, of the tensor that each device has.
    pub bytes: f64,
    /// The axis that is gathered, scattered, or passed on; none for an all-reduce, and for an all-gather of equal
    /// tensors.
    #[serde(default)]
    pub axis: Option<usize>,
}

/// One way to run an operator on all devices: a Hoare triple.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// Placement needed of each operand, in the order of [`Operator::operands`].
    pub inputs: Vec<Placements>,
    /// Placement gained of each result, in the order of [`Operator::results`].
    pub outputs: Vec<Placements>,
    /// The axis that the work is shared along; none where every device does the whole of it.
    #[serde(default)]
    pub axis: Option<usize>,
    /// The composite instruction that it is, by name: one that crosses an axis by collectives inside, or by knowing
    /// this device's range of it.
    #[serde(default)]
    pub composite: Option<String>,
    /// The collectives inside, in order, for composite choices. The computation is in equal parts before, between and
    /// behind them.
    #[serde(default)]
    pub collectives: Vec<Collective>,
}

impl Choice {
    /// Parts that the computation falls into.
    pub fn parts(&self) -> f64 {
        (1 + self.collectives.len()) as f64
    }
}

/// An operator of the training step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operator {
    /// Unique name.
    pub name: String,
    /// PyTorch's name of the operator, such as `aten.mm.default`.
    pub target: String,
    /// Tensors read; the same tensor may stand more than once.
    pub operands: Vec<usize>,
    /// Tensors written.
    pub results: Vec<usize>,
    /// Floating-point operations of the whole operator.
    pub flops: f64,
    /// Bytes that the whole operator touches of each operand.
    pub operand_bytes: Vec<f64>,
    /// Bytes that the whole operator touches of each result.
    pub result_bytes: Vec<f64>,
    /// Element type that decides the device's speed.
    pub dtype: String,
    /// Family of operators that devices are measured for, such as `matmul`; none for most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// Whether its results are views of its first operand (permute, slice, expand): it costs nothing.
    pub layout: bool,
    /// The operand whose memory the result is written to, where nothing reads that any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reuses: Option<usize>,
    /// Whether its results are not made, where the operator at the end of their readers writes to an operand.
    #[serde(default, skip_serializing_if = "is_false")]
    pub fused: bool,
    /// Whether it may keep or return its operands: nothing is written to memory that it has had.
    #[serde(default, skip_serializing_if = "is_false")]
    pub opaque: bool,
    /// Whether its results are views that leave out elements, or show one at several places.
    #[serde(default, skip_serializing_if = "is_false")]
    pub partial: bool,
    /// Every way to run it; the first is the replicated one.
    pub choices: Vec<Choice>,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// The training step: operators in program order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graph {
    /// Always `hap-graph-1`.
    pub format: String,
    /// The model's axes.
    pub axes: Vec<Axis>,
    /// All tensors.
    pub tensors: Vec<Tensor>,
    /// Inputs; each tensor is written by one input or one operator.
    pub inputs: Vec<Input>,
    /// Operators, in an order in which operands come before their readers.
    pub operators: Vec<Operator>,
    /// Outputs.
    pub outputs: Vec<Output>,
}
