//! A distributed program: an ordered list of instructions that every device takes.
//!
//! Instructions name tensors and operators, so that a program can be read, stored and printed without its graph.
//!
//! A *value* is a tensor in a placement from the instruction that makes it to the one that frees it, if any. What was
//! freed may be made again, as a value of its own: an activation that the backward recomputes, a parameter that it
//! gathers again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::graph::{Graph, Tensor};
use crate::placement::{Placement, Placements};

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
    /// `Shard` to `Shard` of another index.
    AllToAll,
    /// `Shard` to `Shard` of the same index in another split class: what lies on other devices then moves.
    #[serde(rename = "re_split")]
    Resplit,
    /// `Replicate` to `Shard`: every device keeps its share. Moves nothing.
    Slice,
    /// `Replicate` to `Partial`: one device keeps the tensor, the others take zeros. Moves nothing.
    KeepOne,
    /// `Shard` to `Partial`: the share is padded with zeros. Moves nothing.
    Pad,
}

impl Conversion {
    /// The conversion from one placement to another; none where they are equal, or where no single step leads there.
    ///
    /// There is one level of the mesh today: lists of any other length have no conversion. The tensor is given by index.
    pub fn between(graph: &Graph, tensor: usize, from: &[Placement], to: &[Placement]) -> Option<Self> {
        use Placement::{Partial, Replicate, Shard};
        let ([from], [to]) = (from, to) else { return None };
        let index = |occurrence: &u32| graph.index(tensor, *occurrence as usize);
        match (from, to) {
            (Replicate, Shard(_)) => Some(Self::Slice),
            (Replicate, Partial) => Some(Self::KeepOne),
            (Shard(_), Partial) => Some(Self::Pad),
            (Shard(_), Replicate) => Some(Self::AllGather),
            (Partial, Replicate) => Some(Self::AllReduce),
            (Partial, Shard(_)) => Some(Self::ReduceScatter),
            (Shard(source), Shard(target)) if source == target => None,
            (Shard(source), Shard(target)) if index(source) == index(target) => Some(Self::Resplit),
            (Shard(_), Shard(_)) => Some(Self::AllToAll),
            _ => None,
        }
    }

    /// The axis that [`Instruction::Convert`] names: gathered, scattered, sliced or padded; for an all-to-all and a
    /// re-split the one that is left.
    ///
    /// `None` too where an occurrence does not exist on the tensor.
    pub fn axis(tensor: &Tensor, from: &[Placement], to: &[Placement]) -> Option<usize> {
        let occurrence = match (from, to) {
            ([Placement::Shard(source)], _) => source,
            (_, [Placement::Shard(target)]) => target,
            _ => return None,
        };
        tensor.occurrences.get(*occurrence as usize).copied()
    }

    /// The ways to carry it out, in the order in which ties are broken; empty where nothing moves.
    pub fn implementations(self) -> &'static [Implementation] {
        match self {
            Self::AllGather | Self::ReduceScatter => &[
                Implementation::Padded,
                Implementation::Grouped,
                Implementation::Exchange,
            ],
            Self::AllReduce => &[Implementation::Builtin],
            Self::AllToAll | Self::Resplit => &[Implementation::Exchange],
            Self::Slice | Self::KeepOne | Self::Pad => &[],
        }
    }

    /// Whether devices talk to each other.
    pub fn is_collective(self) -> bool {
        !self.implementations().is_empty()
    }
}

impl std::fmt::Display for Conversion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::AllGather => "all_gather",
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Resplit => "re_split",
            Self::Slice => "slice",
            Self::KeepOne => "keep_one",
            Self::Pad => "pad",
        })
    }
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

impl std::fmt::Display for Implementation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Padded => "padded",
            Self::Grouped => "grouped",
            Self::Exchange => "exchange",
            Self::Builtin => "builtin",
        })
    }
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
        /// Name of the composite instruction, where the choice is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        composite: Option<String>,
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
        /// Name of the axis that is gathered, scattered or sliced (for an all-to-all and a re-split, the one that is
        /// left).
        axis: Option<String>,
        /// How the collective is carried out; none where nothing moves.
        implementation: Option<Implementation>,
        /// All-reduces of one element type that follow each other with the same number are one collective.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bucket: Option<u32>,
    },
    /// A tensor is no longer there in a placement. An operator that is applied again, by any of its choices, or a
    /// conversion may make it anew.
    ///
    /// Only this one value goes: other placements of the tensor and views of the value stay until they are freed too
    /// (a view holds the memory of what it views). Inputs of the graph, as stored, are the caller's and never freed.
    Free {
        /// Name of the tensor.
        tensor: String,
        /// The placement that goes.
        placement: Placements,
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

impl std::fmt::Display for Instruction {
    /// One readable line: `%h:R = all_gather(%h:S0, axis=batch, padded)`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Input { tensor, placement } => write!(f, "{} = input()", value(tensor, placement)),
            Self::Compute {
                operator,
                target,
                inputs,
                outputs,
                axis,
                composite,
            } => {
                let list = |values: &[(String, Placements)]| {
                    values
                        .iter()
                        .map(|(tensor, placement)| value(tensor, placement))
                        .collect::<Vec<_>>()
                        .join(", ")
                };
                write!(f, "{} = {target}({})", list(outputs), list(inputs))?;
                write!(f, "  # {operator}")?;
                if let Some(axis) = axis {
                    write!(f, ", axis={axis}")?;
                }
                if let Some(composite) = composite {
                    write!(f, ", composite {composite}")?;
                }
                Ok(())
            }
            Self::Convert {
                conversion,
                tensor,
                from,
                to,
                axis,
                implementation,
                bucket,
            } => {
                write!(f, "{} = {conversion}({}", value(tensor, to), value(tensor, from))?;
                if let Some(axis) = axis {
                    write!(f, ", axis={axis}")?;
                }
                if let Some(implementation) = implementation {
                    write!(f, ", {implementation}")?;
                }
                if let Some(bucket) = bucket {
                    write!(f, ", bucket={bucket}")?;
                }
                f.write_str(")")
            }
            Self::Free { tensor, placement } => write!(f, "free({})", value(tensor, placement)),
            Self::Output {
                name,
                tensor,
                placement,
            } => write!(f, "output(\"{name}\", {})", value(tensor, placement)),
        }
    }
}

/// A tensor in a placement, as instructions print it: `%h:S0`.
pub(crate) fn value(tensor: &str, placement: &[Placement]) -> String {
    let placement = placement.iter().map(Placement::to_string).collect::<Vec<_>>().join(",");
    format!("%{tensor}:{placement}")
}

/// Units that each device gets, by the name of the axis. Each list has one number per device, summing to the axis'
/// size.
pub type Splits = BTreeMap<String, Vec<u64>>;

/// A distributed program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// The instructions, in order. An operator may be applied more than once: in different placements, or after its
    /// results were freed.
    pub instructions: Vec<Instruction>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::InputKind;
    use crate::testing::{GraphBuilder, divided};

    #[test]
    fn instructions_print_as_one_readable_line() {
        let gather = Instruction::Convert {
            conversion: Conversion::AllGather,
            tensor: "h".into(),
            from: vec![Placement::Shard(0)],
            to: vec![Placement::Replicate],
            axis: Some("batch".into()),
            implementation: Some(Implementation::Padded),
            bucket: None,
        };
        assert_eq!(gather.to_string(), "%h:R = all_gather(%h:S0, axis=batch, padded)");
        let compute = Instruction::Compute {
            operator: "mm_1".into(),
            target: "aten.mm.default".into(),
            inputs: vec![
                ("x".into(), vec![Placement::Shard(0)]),
                ("w".into(), vec![Placement::Replicate]),
            ],
            outputs: vec![("y".into(), vec![Placement::Shard(0)])],
            axis: Some("batch".into()),
            composite: None,
        };
        assert_eq!(
            compute.to_string(),
            "%y:S0 = aten.mm.default(%x:S0, %w:R)  # mm_1, axis=batch"
        );
        let free = Instruction::Free {
            tensor: "h".into(),
            placement: vec![Placement::Shard(0)],
        };
        assert_eq!(free.to_string(), "free(%h:S0)");
        assert_eq!(
            serde_json::to_string(&free).expect("JSON"),
            r#"{"kind":"free","tensor":"h","placement":["S0"]}"#
        );
    }

    #[test]
    fn names_in_text_and_in_json_are_the_same() {
        for kind in [
            Conversion::AllGather,
            Conversion::KeepOne,
            Conversion::ReduceScatter,
            Conversion::Resplit,
        ] {
            assert_eq!(serde_json::to_string(&kind).expect("a string"), format!("\"{kind}\""));
            for how in kind.implementations() {
                assert_eq!(serde_json::to_string(how).expect("a string"), format!("\"{how}\""));
            }
        }
    }

    #[test]
    fn one_step_leads_between_any_two_placements_that_differ() {
        let mut builder = GraphBuilder::new(&[("batch", 4), ("hidden", 4)]);
        let x = builder.input(InputKind::Input, "x", &[0, 1]);
        let graph = divided(&builder.finish(), 0);
        let [replicate, partial, first, second] = [
            Placement::Replicate,
            Placement::Partial,
            Placement::Shard(0),
            Placement::Shard(1),
        ];
        for from in [replicate, partial, first, second] {
            for to in [replicate, partial, first, second] {
                assert_eq!(
                    Conversion::between(&graph, x, &[from], &[to]).is_none(),
                    from == to,
                    "{from} to {to}"
                );
            }
        }
        assert_eq!(
            Conversion::between(&graph, x, &[replicate, replicate], &[first, first]),
            None
        );
        let between =
            |from: u32, to: u32| Conversion::between(&graph, x, &[Placement::Shard(from)], &[Placement::Shard(to)]);
        assert_eq!([between(0, 2), between(2, 0)], [Some(Conversion::Resplit); 2]);
        assert_eq!([between(1, 2), between(0, 1)], [Some(Conversion::AllToAll); 2]);
        assert_eq!([between(2, 2), between(0, 0)], [None; 2]);
    }
}
