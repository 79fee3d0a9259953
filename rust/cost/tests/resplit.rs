//! Re-splits against closed forms and against counting unit by unit.

use super::*;
use crate::testing::divided;

#[test]
fn a_re_split_moves_what_is_not_in_both_stretches() {
    let graph = divided(&product(), 0);
    let seconds = |old: [f64; 3], new: [f64; 3]| {
        let cluster = cluster(&[1e9, 1e9, 2e9], BANDWIDTH, LATENCY);
        let shares = vec![old.to_vec(), vec![1.0, 0.0, 0.0], vec![1.0, 0.0, 0.0], new.to_vec()];
        let costs = CostModel::new(&graph, &cluster, &shares);
        costs.collective(2, &placements("S0"), &placements("S2"), Implementation::Exchange)
    };
    // Of the 64 bytes of y, device 1 has the second quarter and gets the first half of what device 2 has.
    close(
        seconds([0.25, 0.25, 0.5], [0.5, 0.25, 0.25]),
        2.0 * LATENCY + 16.0 / BANDWIDTH,
    );
    // In the middle everything moves, though no share grows.
    close(
        seconds([0.25, 0.25, 0.5], [0.0, 0.25, 0.75]),
        2.0 * LATENCY + 16.0 / BANDWIDTH,
    );
    close(
        seconds([0.0, 1.0, 0.0], [1.0, 0.0, 0.0]),
        2.0 * LATENCY + 64.0 / BANDWIDTH,
    );
    assert_eq!(seconds([0.25, 0.25, 0.5], [0.25, 0.25, 0.5]), 0.0);
}

/// Bytes that devices send or receive, whichever is more, unit by unit.
fn moved_units(old: &[u64], new: &[u64]) -> Vec<u64> {
    let owners = |units: &[u64]| -> Vec<usize> {
        let counts = units.iter().enumerate();
        counts
            .flat_map(|(device, &count)| std::iter::repeat_n(device, count as usize))
            .collect()
    };
    let (before, behind) = (owners(old), owners(new));
    let count = |device: usize, mine: &[usize], other: &[usize]| {
        let both = mine.iter().zip(other);
        both.filter(|&(&one, &two)| one == device && two != device).count() as u64
    };
    (0..old.len())
        .map(|device| count(device, &before, &behind).max(count(device, &behind, &before)))
        .collect()
}

proptest! {
    #[test]
    fn re_splits_cost_what_is_counted_unit_by_unit(seed: u64, devices in 2usize..6) {
        let random = &mut Random(seed);
        let graph = divided(&product(), 0);
        let mut split = || {
            let mut units = vec![0u64; devices];
            (0..8).for_each(|_| units[random.below(devices)] += 1);
            units
        };
        let (old, new) = (split(), split());
        let shares = |units: &[u64]| units.iter().map(|&count| count as f64 / 8.0).collect::<Vec<f64>>();
        let whole: Vec<f64> = (0..devices).map(|device| f64::from(u8::from(device == 0))).collect();
        let shares = vec![shares(&old), whole.clone(), whole, shares(&new)];
        let cluster = cluster(&vec![1e9; devices], BANDWIDTH, LATENCY);
        let costs = CostModel::new(&graph, &cluster, &shares);
        let found = costs.collective(2, &placements("S0"), &placements("S2"), Implementation::Exchange);
        let most = moved_units(&old, &new).into_iter().max().expect("a device");
        let latency = if old == new { 0.0 } else { (devices - 1) as f64 * LATENCY };
        prop_assert!((found - latency - 8.0 * most as f64 / BANDWIDTH).abs() <= 1e-9 * found, "{found} {most}");
    }
}
