//! Devices that are alike: everything costs the same on them, so that it is priced once.

use rustc_hash::FxHashMap;

use crate::cluster::Device;
use crate::shares::Shares;

/// By device: the first one with the same speeds and shares.
pub(super) fn alike(devices: &[&Device], speeds: &[Vec<f64>], shares: &Shares) -> Vec<usize> {
    let mut known: FxHashMap<Vec<u64>, usize> = FxHashMap::default();
    let key = |device: usize| -> Vec<u64> {
        let machine = [devices[device].memory_bandwidth, devices[device].launch_overhead];
        let lists = speeds.iter().chain(shares.iter()).map(|list| list[device]);
        machine.into_iter().chain(lists).map(f64::to_bits).collect()
    };
    (0..devices.len())
        .map(|device| *known.entry(key(device)).or_insert(device))
        .collect()
}
