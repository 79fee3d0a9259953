//! What a device sends or receives, whichever is more, where one share becomes another one.

use super::Affine;
use crate::shares::Shares;

/// Bytes of a device when its share of one axis becomes its share of
/// another: it sends `a (1 - b)` and receives `b (1 - a)`. Not affine where the axes differ or not: linearised at
/// the shares.
pub(super) fn exchange(bytes: f64, source: (usize, f64), target: (usize, f64)) -> Affine {
    let (first, second) = if source.1 >= target.1 {
        (source, target)
    } else {
        (target, source)
    };
    let slopes = [
        Some((first.0, bytes * (1.0 - second.1))),
        Some((second.0, -bytes * first.1)),
    ];
    Affine {
        value: bytes * first.1 * (1.0 - second.1),
        slopes,
    }
}

/// Bytes that a re-split between two classes of an axis moves, on the worst of the devices that are alike.
///
/// Each has one stretch of the units before and another one behind it, and keeps what both have in common. It depends on
/// the shares of the devices in front, too; to the linear program, the part that is kept stays the same fraction of the
/// smaller share.
pub(super) fn resplit(bytes: f64, classes: [usize; 2], shares: &Shares, alike: &[usize], device: usize) -> Affine {
    let [source, target] = classes;
    let (mut worst, mut begins) = (Affine::constant(f64::NEG_INFINITY), (0.0, 0.0));
    for (other, (&old, &new)) in shares[source].iter().zip(&shares[target]).enumerate() {
        let ends = (begins.0 + old, begins.1 + new);
        if alike[other] == alike[device] {
            let common = ends.0.min(ends.1) - begins.0.max(begins.1);
            let moved = shifted(bytes, (source, old), (target, new), common);
            worst = if moved.value > worst.value { moved } else { worst };
        }
        begins = ends;
    }
    worst
}

/// Bytes of a device when one share of an index becomes another one, and so much is in both.
fn shifted(bytes: f64, source: (usize, f64), target: (usize, f64), common: f64) -> Affine {
    let (more, less) = if source.1 >= target.1 {
        (source, target)
    } else {
        (target, source)
    };
    let kept = if less.1 > 0.0 {
        common.clamp(0.0, less.1) / less.1
    } else {
        0.0
    };
    Affine {
        value: bytes * (more.1 - kept * less.1),
        slopes: [Some((more.0, bytes)), Some((less.0, -bytes * kept))],
    }
}
