//! Stages against the costs and the simulation that they stand for.

use super::*;
use crate::simulate::{Options, simulate};
use crate::testing::{Random, composed, divided, perceptron, random_program, remade};
use crate::validate::validate;
use proptest::prelude::*;

/// By device, stage and last the peak: a constant, and a slope by axis of the graph.
fn terms(graph: &Graph, stages: &Stages) -> Vec<Vec<(f64, Vec<f64>)>> {
    let columns = graph.axes.iter();
    let columns: Vec<_> = columns
        .map(|axis| stages.axes.iter().position(|name| *name == axis.name))
        .collect();
    let width = 1 + stages.axes.len();
    let term = |term: &[f64]| {
        let slopes = columns
            .iter()
            .map(|column| column.map_or(0.0, |column| term[1 + column]));
        (term[0], slopes.collect())
    };
    let of_kind = stages.terms.chunks(width * (stages.sorts.len() + 1));
    let of_kind: Vec<Vec<_>> = of_kind.map(|terms| terms.chunks(width).map(term).collect()).collect();
    stages.kinds.iter().map(|kind| of_kind[*kind].clone()).collect()
}

/// Values of the terms at these shares, by device, stage and last the peak.
fn values(graph: &Graph, stages: &Stages, shares: &Shares) -> Vec<Vec<f64>> {
    let value = |device: usize, (constant, slopes): &(f64, Vec<f64>)| {
        constant
            + slopes
                .iter()
                .zip(shares)
                .map(|(slope, list)| slope * list[device])
                .sum::<f64>()
    };
    let devices = terms(graph, stages).into_iter().enumerate();
    devices
        .map(|(device, terms)| terms.iter().map(|term| value(device, term)).collect())
        .collect()
}

/// Seconds of all stages of a sort, by sort.
fn longest(stages: &Stages, values: &[Vec<f64>]) -> Vec<f64> {
    let sorts = stages.sorts.iter().enumerate();
    let greatest = |number: usize| values.iter().map(|values| values[number]).fold(0.0, f64::max);
    sorts
        .map(|(number, sort)| sort.count as f64 * greatest(number))
        .collect()
}

/// The step by the stages at the shares that they were linearised at.
fn total(graph: &Graph, shares: &Shares, stages: &Stages) -> f64 {
    longest(stages, &values(graph, stages, shares)).iter().sum()
}

/// Shares of every axis, none of them zero.
fn positive_shares(graph: &Graph, devices: usize, random: &mut Random) -> Shares {
    let list = |random: &mut Random| {
        let list: Vec<f64> = (0..devices).map(|_| 0.1 + random.unit()).collect();
        let total: f64 = list.iter().sum();
        list.iter().map(|share| share / total).collect()
    };
    graph.axes.iter().map(|_| list(random)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn stages_sum_to_the_simulated_time_where_every_collective_is_a_barrier(seed: u64) {
        let random = &mut Random(seed);
        let graph = composed(perceptron(1 + random.below(2), [12, 4, 8]), random);
        let graph = divided(&graph, random.below(3));
        let mut cluster = random.cluster();
        cluster.overlap = 0.0;
        let mut shares = positive_shares(&graph, cluster.devices().len(), random);
        if random.below(4) == 0 {
            shares[3] = shares[graph.base(3)].clone();
        }
        // In random programs each conversion stands right before its reader, so that all devices wait for it.
        let valid = validate(&graph, &random_program(&graph, random)).expect("a valid program");
        let step = simulate(&graph, &cluster, &shares, &valid, &Options::default());
        let stages = stages(&graph, &cluster, &shares, &valid, Optimiser::keeping(2));
        let total = total(&graph, &shares, &stages);
        prop_assert!((total - step.seconds).abs() <= 1e-9 * step.seconds, "{total} {}", step.seconds);
        for (values, memory) in values(&graph, &stages, &shares).iter().zip(&step.memory) {
            let bytes = values[stages.sorts.len()];
            prop_assert!((bytes - memory).abs() <= 1e-9 * bytes);
        }
    }

    #[test]
    fn stages_sum_to_the_costs_and_are_no_shorter_than_the_simulated_time(seed: u64) {
        let random = &mut Random(seed);
        let graph = composed(perceptron(1 + random.below(2), [12, 4, 8]), random);
        let graph = divided(&graph, random.below(3));
        let cluster = random.cluster();
        let devices = cluster.devices().len();
        let shares = random.shares(&graph, devices);
        let plain = random_program(&graph, random);
        let often = [0.0, 0.2][random.below(2)];
        let valid = validate(&graph, &remade(&plain, random, often)).expect("a valid program");
        let stages = stages(&graph, &cluster, &shares, &valid, Optimiser::keeping(2));
        let step = simulate(&graph, &cluster, &shares, &valid, &Options::default());
        prop_assert!(step.seconds <= total(&graph, &shares, &stages) * (1.0 + 1e-9));
        // By device, all stages of computation make up its computation; by the greatest, all collectives the
        // communication.
        let values = values(&graph, &stages, &shares);
        for (values, seconds) in values.iter().zip(&step.compute) {
            let sorts = stages.sorts.iter().zip(values).filter(|(sort, _)| sort.computation);
            let compute: f64 = sorts.map(|(sort, value)| sort.count as f64 * value).sum();
            prop_assert!((compute - seconds).abs() <= 1e-9 * (compute + 1e-12));
        }
        let collectives = stages.sorts.iter().zip(longest(&stages, &values)).filter(|(sort, _)| !sort.computation);
        let communication: f64 = collectives.map(|(_, seconds)| seconds).sum();
        prop_assert!((communication - step.communication).abs() <= 1e-9 * (communication + 1e-12));
    }

    #[test]
    fn slopes_predict_small_changes(seed: u64) {
        const STEP: f64 = 1e-6;
        let random = &mut Random(seed);
        let graph = composed(perceptron(1, [12, 4, 8]), random);
        let mut cluster = random.cluster();
        cluster.overlap = 0.0;
        let devices = cluster.devices().len();
        let shares = positive_shares(&graph, devices, random);
        let valid = validate(&graph, &random_program(&graph, random)).expect("a valid program");
        let (axis, device) = (random.below(3), random.below(devices));
        let at = |offset: f64| {
            let mut shares = shares.clone();
            shares[axis][device] += offset;
            let stages = stages(&graph, &cluster, &shares, &valid, Optimiser::keeping(2));
            let values = values(&graph, &stages, &shares).swap_remove(device);
            let terms = terms(&graph, &stages).swap_remove(device);
            let terms: Vec<_> = values.into_iter().zip(terms).take(stages.sorts.len()).collect();
            (stages.sorts, terms)
        };
        let slope = |term: &(f64, Vec<f64>)| term.1[axis];
        let [(sorts, here), (sorts_below, below), (sorts_above, above)] = [0.0, -STEP, STEP].map(at);
        // Stages of equal terms are one; with other shares they may be two.
        prop_assume!(sorts == sorts_below && sorts == sorts_above);
        for ((here, below), above) in here.iter().zip(below).zip(above) {
            let scale = here.0 + slope(&here.1).abs();
            // No kink lies between where the slopes agree.
            if (slope(&below.1) - slope(&above.1)).abs() <= 1e-4 * scale {
                let difference = (above.0 - below.0) / (2.0 * STEP);
                prop_assert!((difference - slope(&here.1)).abs() <= 1e-4 * scale, "{difference} {}", slope(&here.1));
            }
        }
    }
}
