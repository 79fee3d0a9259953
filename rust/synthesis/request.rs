//! What a synthesis is asked for, what it answers, and what can be wrong.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::solver::Limits;
use crate::memory::Temporaries;
use crate::placement::Placement;
use crate::program::{Program, Splits};

/// What a synthesis is asked for. Everything but the splits has a default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Units of every axis that each device gets.
    pub splits: Splits,
    /// How seconds of computation and of communication are weighed.
    #[serde(default)]
    pub prices: Prices,
    /// What the program must keep to.
    #[serde(default)]
    pub constraints: Constraints,
    /// A seed: every choice and conversion gets a random cost instead of its true one.
    #[serde(default)]
    pub random: Option<u64>,
    /// When the search gives up.
    #[serde(default)]
    pub limits: Limits,
}

/// Weights of the objective `theta * sum_d weights[d] * compute_d + (1 - theta * hidden) * communication`.
///
/// For any weights that sum to one and any theta in 0 ..= 1 it is a lower bound of the simulated time of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// Weight of each device's seconds of computation; by default even.
    #[serde(default)]
    pub weights: Option<Vec<f64>>,
    /// Weight of computation; by default the one at which computation and communication weigh the same.
    #[serde(default)]
    pub theta: Option<f64>,
    /// What memory costs. If given, operators may run again in the backward instead of keeping their results, and what
    /// is kept, stored or gathered twice is weighed against seconds.
    #[serde(default)]
    pub memory: Option<MemoryPrices>,
}

/// Prices of memory. See [`super::held`] for what they bound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryPrices {
    /// By device.
    pub seconds_per_byte: Vec<f64>,
    /// Weight of the moment between forward and backward, from 0 to 1; the end of the step has the rest.
    pub between: f64,
    /// Tensors that the optimiser keeps per parameter.
    pub optimiser_tensors: u32,
    /// What it makes beside them while it steps.
    #[serde(default)]
    pub temporaries: Temporaries,
    /// The forward is cut in so many segments: what crosses a cut runs once. Only without cuts does the bound hold for
    /// all programs.
    #[serde(default = "one")]
    pub segments: u32,
    /// Tensors early in the graph cost up to this fraction more, so that of many equal ones some are kept. The bound
    /// holds only for 0.
    #[serde(default)]
    pub skew: f64,
}

fn one() -> u32 {
    1
}

/// What the program must keep to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constraints {
    /// Axes that nothing may be sharded along.
    #[serde(default)]
    pub forbidden_axes: Vec<String>,
    /// If given: the only axes that anything may be sharded along.
    #[serde(default)]
    pub allowed_axes: Option<Vec<String>>,
    /// By the name of a tensor, the placements that it may be produced (an input: kept) in.
    #[serde(default)]
    pub placements: BTreeMap<String, Vec<Placement>>,
    /// By the name of an output of the module (losses apart, which are replicated), the placements that it may end in.
    #[serde(default)]
    pub outputs: BTreeMap<String, Vec<Placement>>,
    /// Operators that can share their work along this axis must do so.
    #[serde(default)]
    pub require_axis: Option<String>,
}

/// The answer of a synthesis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Synthesis {
    /// The program.
    pub program: Program,
    /// Its cost under the prices, in seconds; that of memory included.
    pub cost: f64,
    /// The bytes of it that are priced, by device; empty where memory has no price.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub priced_memory: Vec<f64>,
    /// A proven lower bound of the cost of every program that keeps to the constraints.
    pub bound: f64,
    /// `(cost - bound) / cost`; exactly 0.0 when the program is proven cheapest. More where a limit was reached, or where
    /// the program needs more sets of placements of one tensor than are told apart ([`super::Encoding::sets`]).
    pub search_gap: f64,
    /// Seconds that the synthesis took, tables included.
    pub seconds: f64,
    /// Table entries that the solver made.
    pub table_entries: u64,
    /// States that the solver expanded.
    pub states: u64,
}

/// Why there is no program.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SynthesisError {
    /// The request names an axis that the graph does not have.
    #[error("{field} names the axis \"{axis}\", which the graph does not have; its axes are {known}")]
    UnknownAxis {
        /// The field of the request.
        field: &'static str,
        /// The name.
        axis: String,
        /// The names that there are.
        known: String,
    },
    /// The request names a tensor that the graph does not have.
    #[error("constraints.placements names the tensor \"{tensor}\", which the graph does not have")]
    UnknownTensor {
        /// The name.
        tensor: String,
    },
    /// The request names an output that the graph does not have.
    #[error("constraints.outputs names the output \"{output}\", which the graph does not have")]
    UnknownOutput {
        /// The output.
        output: String,
    },
    /// Prices or limits are wrong.
    #[error("{field}: expected {expected}, got {got}")]
    Request {
        /// The field of the request.
        field: String,
        /// What was expected.
        expected: String,
        /// What was given.
        got: String,
    },
    /// The splits do not fit the graph or the cluster.
    #[error("splits: {0}")]
    Splits(String),
    /// The graph breaks a rule that the synthesis relies on.
    #[error("graph: {0}")]
    Graph(String),
    /// A constraint leaves an input of the graph no placement.
    #[error("{constraint} leaves the tensor \"{tensor}\" no placement to be kept in (without it: {placements})")]
    NoPlacement {
        /// The constraint, with its value.
        constraint: String,
        /// The tensor.
        tensor: String,
        /// The placements before the constraint.
        placements: String,
    },
    /// A constraint leaves an operator no choice.
    #[error("{constraint} leaves the operator \"{operator}\" ({target}) no way to run (without it: {choices})")]
    NoChoice {
        /// The constraint, with its value.
        constraint: String,
        /// The operator.
        operator: String,
        /// PyTorch's name of it.
        target: String,
        /// The choices before the constraint.
        choices: String,
    },
    /// No combination of choices can be joined by conversions.
    #[error("no program keeps to the constraints: {0}")]
    Infeasible(String),
    /// The observer stopped the synthesis.
    #[error("the observer stopped the synthesis")]
    Stopped,
    /// The limits were reached before any program was found.
    #[error(
        "no program was found within the limits (none costs less than {bound} s): raise limits.table_entries, limits.work or limits.seconds"
    )]
    LimitReached {
        /// No program costs less.
        bound: f64,
    },
}
