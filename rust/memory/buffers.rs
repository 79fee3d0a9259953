//! What collectives need beside their operands and results.

use super::Local;
use crate::cost::Transfer;
use crate::graph::Graph;
use crate::program::{Conversion, Implementation};
use crate::validate::{Step, ValidProgram};

/// Bytes and their slopes by axis.
pub(super) type Bytes = (f64, Vec<(usize, f64)>);

/// The first of equal ones.
fn larger(one: Bytes, other: Bytes) -> Bytes {
    if other.0 > one.0 { other } else { one }
}

/// The collectives of an instruction, which may need a buffer.
pub(super) struct Need {
    /// The instruction.
    pub from: usize,
    /// The last one at which they may be under way.
    pub until: usize,
    /// Each, and whether it is inside of a composite operator: one of those at a time.
    collectives: Vec<(Transfer, bool)>,
}

/// What the instructions of a program need, in their order; `until` as by [`super::under_way()`].
pub(super) fn needs(graph: &Graph, devices: usize, program: &ValidProgram, until: &[usize]) -> Vec<Need> {
    let steps = program.steps.iter().zip(until).enumerate();
    let found = steps.map(|(from, (step, &until))| Need {
        from,
        until,
        collectives: collectives_of(graph, devices, program, step),
    });
    found.filter(|need| !need.collectives.is_empty()).collect()
}

/// What is needed at an instruction.
pub(super) fn at(needs: &[Need], moment: usize) -> impl Iterator<Item = &Need> {
    needs
        .iter()
        .filter(move |need| (need.from..=need.until).contains(&moment))
}

fn collectives_of(graph: &Graph, devices: usize, program: &ValidProgram, step: &Step) -> Vec<(Transfer, bool)> {
    match step {
        _ if devices == 1 => Vec::new(),
        Step::Compute { operator, choice, .. } => {
            let collectives = &graph.operators[*operator].choices[*choice].collectives;
            collectives.iter().map(|it| (Transfer::inside(it), true)).collect()
        }
        _ => Transfer::step(graph, program, step)
            .map(|it| (it, false))
            .into_iter()
            .collect(),
    }
}

/// The largest of an instruction's buffers.
pub(super) fn largest(local: &Local, devices: usize, need: &Need) -> Bytes {
    let buffers = need.collectives.iter().map(|(transfer, inside)| match inside {
        true => inner_buffer(local, devices, transfer),
        false => buffer(local, devices, transfer),
    });
    buffers.fold((0.0, Vec::new()), larger)
}

/// Bytes that a collective needs beside its operand and result.
fn buffer(local: &Local, devices: usize, transfer: &Transfer) -> Bytes {
    let Transfer { bytes, axis, .. } = *transfer;
    let Some(axis) = axis else {
        return (0.0, Vec::new());
    };
    let (count, shares) = (devices as f64, &local.shares[axis]);
    let share = shares[local.device];
    // The whole tensor as it is sent or received, where it does not lie so.
    let turned = if transfer.leads { 0.0 } else { bytes };
    match (transfer.conversion, transfer.implementation) {
        (Conversion::AllGather | Conversion::ReduceScatter, Implementation::Padded) => {
            let largest = shares.iter().copied().fold(0.0, f64::max);
            if shares.iter().all(|share| *share == largest) {
                return (turned, Vec::new());
            }
            // The padding follows the largest share: only the device that has it can change it.
            match share == largest {
                true => (count * bytes * largest, vec![(axis, count * bytes)]),
                false => ((count + 1.0) * bytes * largest, Vec::new()),
            }
        }
        (Conversion::AllGather, Implementation::Grouped) => (turned, Vec::new()),
        (Conversion::ReduceScatter, Implementation::Grouped) => (bytes * (1.0 - share), vec![(axis, -bytes)]),
        // A copy for each device, or what each sends.
        (Conversion::AllGather | Conversion::ReduceScatter, _) => {
            (turned + count * share * bytes, vec![(axis, count * bytes)])
        }
        // What is sent, and what is received: by another axis, or the share of the device before.
        (_, _) => {
            let target = transfer.target.unwrap_or(axis);
            let received = local.shares[target][local.device];
            (bytes * share + bytes * received, vec![(axis, bytes), (target, bytes)])
        }
    }
}

/// Bytes of a collective inside a composite operator: those of its buffer, and of a result that is no value of the
/// program. (Shares that are passed on are replaced in the buffer.)
fn inner_buffer(local: &Local, devices: usize, transfer: &Transfer) -> Bytes {
    let (held, slopes) = buffer(local, devices, transfer);
    match (transfer.conversion, transfer.axis) {
        (Conversion::AllGather, None) => ((devices + 1) as f64 * transfer.bytes, slopes),
        (Conversion::AllGather | Conversion::AllReduce, _) => (held + transfer.bytes, slopes),
        _ => (held, slopes),
    }
}
