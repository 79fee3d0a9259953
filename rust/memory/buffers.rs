//! What collectives need beside their operands and results.
//!
//! A result is not there yet while its collective is under way, and what was sent is freed before what has arrived is put
//! together (`tests/runtime/test_buffers.py` counts both). What arrives may be larger than the result: shares with their
//! padding, summands. Operands are taken to lie in order in memory, but for the own share in a gather, which stays.

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
    let Transfer {
        bytes, axis, target, ..
    } = *transfer;
    let Some(axis) = axis else {
        return nothing();
    };
    let (count, shares) = (devices as f64, &local.shares[axis]);
    let share = shares[local.device];
    let of_share = |factor: f64| (factor * bytes * share, vec![(axis, factor * bytes)]);
    // The whole tensor as it is sent or received, where it does not lie so.
    let turned = if transfer.leads { nothing() } else { (bytes, Vec::new()) };
    match (transfer.conversion, transfer.implementation) {
        (Conversion::AllGather | Conversion::ReduceScatter, Implementation::Padded) => {
            let largest = shares.iter().copied().fold(0.0, f64::max);
            // The padding follows the largest share: only the device that has it can change it.
            let follows = |factor: f64| (axis, if share == largest { factor * bytes } else { 0.0 });
            if shares.iter().all(|share| *share == largest) {
                turned
            } else if transfer.conversion == Conversion::AllGather {
                (count * bytes * largest, vec![follows(count)])
            } else {
                // The sum arrives padded, and the share of it is cut out.
                let padded = (count + 1.0) * bytes * largest;
                (padded - bytes * share, vec![follows(count + 1.0), (axis, -bytes)])
            }
        }
        // The own share is put into its place with what arrives, from a copy where it does not lie in order.
        (Conversion::AllGather, Implementation::Grouped) => turned,
        (Conversion::ReduceScatter, Implementation::Grouped) => (bytes * (1.0 - share), vec![(axis, -bytes)]),
        // A copy for each device, or where the shares are put together, what the others send.
        (Conversion::AllGather, _) if transfer.leads => of_share(count),
        (Conversion::AllGather, _) => larger(turned, of_share(count - 1.0)),
        // What each device sends of the share.
        (Conversion::ReduceScatter, _) if transfer.leads => of_share(count),
        (Conversion::ReduceScatter, _) => sum(turned, of_share(count - 1.0)),
        (Conversion::Resplit, _) if transfer.leads || target.is_some_and(|target| local.shares[target] == *shares) => {
            nothing()
        }
        // What is sent, then what is received.
        (_, _) => match target {
            Some(target) => larger(
                of_share(1.0),
                (bytes * local.shares[target][local.device], vec![(target, bytes)]),
            ),
            // Shares are passed on round all devices: one is sent while another is received, the two largest at most.
            None => {
                let mut sorted = shares.clone();
                sorted.sort_by(f64::total_cmp);
                let (second, largest) = (sorted[devices - 2], sorted[devices - 1]);
                let slope = if share >= second { bytes } else { 0.0 };
                (bytes * (largest + second), vec![(axis, slope)])
            }
        },
    }
}

/// No bytes.
fn nothing() -> Bytes {
    (0.0, Vec::new())
}

fn sum(one: Bytes, other: Bytes) -> Bytes {
    (one.0 + other.0, [one.1, other.1].concat())
}

/// Bytes of a collective inside a composite operator: those of its buffer, and of a result that is no value of the
/// program. Shares that are passed on are replaced in the buffer.
fn inner_buffer(local: &Local, devices: usize, transfer: &Transfer) -> Bytes {
    let held = buffer(local, devices, transfer);
    let result = match (transfer.conversion, transfer.axis, transfer.target) {
        // As rows, one for each device, beside what each sends.
        (Conversion::AllGather, None, _) => ((devices + 1) as f64 * transfer.bytes, Vec::new()),
        (Conversion::AllGather | Conversion::AllReduce, _, _) => (transfer.bytes, Vec::new()),
        (Conversion::ReduceScatter, Some(axis), _) | (_, _, Some(axis)) => {
            let share = local.shares[axis][local.device];
            (transfer.bytes * share, vec![(axis, transfer.bytes)])
        }
        _ => nothing(),
    };
    sum(held, result)
}
