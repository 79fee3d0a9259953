//! Devices that are alike, and axes that are: everything costs the same on them, so that it is priced once.

use std::hash::Hash;

use rustc_hash::FxHashMap;

use super::curve::Curve;
use crate::graph::Axis;
use crate::shares::Shares;

/// By device: the first one with the same curves and shares. `curves` are lists by device.
pub(super) fn alike_devices<'a>(
    curves: impl Iterator<Item = &'a Vec<Curve>> + Clone,
    shares: &Shares,
    devices: usize,
) -> Vec<usize> {
    first_alike(devices, |device| {
        let figures = curves.clone().flat_map(|list| list[device].figures());
        let shares = shares.iter().map(|list| list[device]);
        figures.chain(shares).map(f64::to_bits).collect::<Vec<u64>>()
    })
}

/// By axis: the first one of the same size and shares.
pub(super) fn alike_axes(axes: &[Axis], shares: &Shares) -> Vec<usize> {
    first_alike(axes.len(), |axis| {
        let shares: Vec<u64> = shares[axis].iter().map(|share| share.to_bits()).collect();
        (axes[axis].size, shares)
    })
}

/// By number: the first one with an equal key.
fn first_alike<K: Eq + Hash>(count: usize, key: impl Fn(usize) -> K) -> Vec<usize> {
    let mut known: FxHashMap<K, usize> = FxHashMap::default();
    (0..count)
        .map(|number| *known.entry(key(number)).or_insert(number))
        .collect()
}
