//! What is known of a collective when its cost is asked for: where it stands in a program, or inside an operator.

use crate::graph::{Collective, Graph};
use crate::placement::Placement;
use crate::program::{Conversion, Implementation};
use crate::validate::{Step, ValidProgram};

/// A collective, as far as its cost depends on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    /// What it is.
    pub conversion: Conversion,
    /// How it is carried out.
    pub implementation: Implementation,
    /// Bytes of the whole tensor; of each device's where there is no axis.
    pub bytes: f64,
    /// The axis that is gathered or scattered (for an all-to-all and a re-split, the one that is left), if any.
    pub axis: Option<usize>,
    /// The axis that becomes sharded by an all-to-all or a re-split; without one, shares are passed on round all
    /// devices.
    pub target: Option<usize>,
    /// Whether the shares before or behind lie one after another in memory: along a tensor's leading axis.
    pub leads: bool,
}

impl Transfer {
    /// The collective that converts a tensor.
    pub fn conversion(
        graph: &Graph,
        tensor: usize,
        from: &[Placement],
        to: &[Placement],
        implementation: Implementation,
    ) -> Self {
        let node = &graph.tensors[tensor];
        let conversion = Conversion::between(graph, tensor, from, to).expect("a conversion");
        let leads = |placement: &[Placement]| match placement {
            [Placement::Shard(occurrence)] => graph.leads(tensor, *occurrence as usize),
            _ => false,
        };
        Self {
            conversion,
            implementation,
            bytes: node.bytes,
            axis: Conversion::axis(node, from, to),
            target: match conversion {
                Conversion::AllToAll | Conversion::Resplit => Conversion::axis(node, to, &[]),
                _ => None,
            },
            leads: leads(from) || leads(to),
        }
    }

    /// The sum of so many bytes of each device.
    pub fn all_reduce(bytes: f64) -> Self {
        Self {
            conversion: Conversion::AllReduce,
            implementation: Implementation::Builtin,
            bytes,
            axis: None,
            target: None,
            leads: false,
        }
    }

    /// A collective inside a composite choice.
    pub fn inside(collective: &Collective) -> Self {
        let implementations = collective.conversion.implementations();
        Self {
            conversion: collective.conversion,
            implementation: *implementations.first().expect("a collective"),
            bytes: collective.bytes,
            axis: collective.axis,
            target: None,
            leads: false,
        }
    }

    /// Whether each device sends to all others at once. Shares may be passed on round all devices instead, and re-splits
    /// move most between neighbours.
    pub fn spreads(&self) -> bool {
        let passed_on = self.conversion == Conversion::AllToAll && self.target.is_none();
        self.implementation == Implementation::Exchange && self.conversion != Conversion::Resplit && !passed_on
    }

    /// The collective of one instruction, whatever its bucket: `None` for all that is no collective.
    pub fn step(graph: &Graph, program: &ValidProgram, step: &Step) -> Option<Self> {
        let Step::Convert {
            implementation: Some(how),
            read,
            write,
            ..
        } = step
        else {
            return None;
        };
        let (from, to) = (&program.values[*read], &program.values[*write]);
        Some(Self::conversion(
            graph,
            from.tensor,
            &from.placements,
            &to.placements,
            *how,
        ))
    }

    /// The collective that an instruction carries out, that of its whole bucket at the first instruction of one: `None`
    /// at a bucket's other instructions, and at all that is no collective.
    pub fn at(graph: &Graph, program: &ValidProgram, position: usize) -> Option<Self> {
        let together = program.together(position);
        if *together.start() != position {
            return None;
        }
        let mut parts = together.filter_map(|position| Self::step(graph, program, &program.steps[position]));
        let first = parts.next()?;
        Some(Self {
            bytes: first.bytes + parts.map(|part| part.bytes).sum::<f64>(),
            ..first
        })
    }
}
