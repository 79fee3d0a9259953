//! Stages against the costs and the simulation that they stand for.

use super::*;
use crate::simulate::{Options, simulate};
use crate::testing::{Random, composed, divided, perceptron, random_program, remade};
use crate::validate::validate;
use proptest::prelude::*;

fn value(term: &Term, shares: &BTreeMap<String, Vec<f64>>, device: usize) -> f64 {
    term.constant
        + term
            .slopes
            .iter()
            .map(|(axis, slope)| slope * shares[axis][device])
            .sum::<f64>()
}

fn named(graph: &Graph, shares: &Shares) -> BTreeMap<String, Vec<f64>> {
    graph
        .axes
        .iter()
        .zip(shares)
        .map(|(axis, list)| (axis.name.clone(), list.clone()))
        .collect()
}

/// The term of a device.
fn of<'a>(terms: &'a [Term], stages: &Stages, device: usize) -> &'a Term {
    &terms[stages.kinds[device]]
}

/// Seconds of all stages of a sort.
fn longest(stage: &Stage, stages: &Stages, shares: &BTreeMap<String, Vec<f64>>) -> f64 {
    let devices = 0..stages.kinds.len();
    let seconds = devices.map(|device| value(of(&stage.terms, stages, device), shares, device));
    stage.count as f64 * seconds.fold(0.0, f64::max)
}

/// The step by the stages at the shares that they were linearised at.
fn total(graph: &Graph, shares: &Shares, stages: &Stages) -> f64 {
    let shares = named(graph, shares);
    stages.stages.iter().map(|stage| longest(stage, stages, &shares)).sum()
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
        for device in 0..stages.kinds.len() {
            let bytes = value(of(&stages.memory, &stages, device), &named(&graph, &shares), device);
            prop_assert!((bytes - step.memory[device]).abs() <= 1e-9 * bytes);
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
        let shares = named(&graph, &shares);
        let of_kind = |kind| stages.stages.iter().filter(move |stage| stage.kind == kind);
        for device in 0..devices {
            let seconds = |stage: &Stage| {
                stage.count as f64 * value(of(&stage.terms, &stages, device), &shares, device)
            };
            let compute: f64 = of_kind(StageKind::Compute).map(seconds).sum();
            prop_assert!((compute - step.compute[device]).abs() <= 1e-9 * (compute + 1e-12));
        }
        let communication: f64 = of_kind(StageKind::Collective).map(|stage| longest(stage, &stages, &shares)).sum();
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
            let shares = named(&graph, &shares);
            let sorts: Vec<_> = stages.stages.iter().map(|stage| (stage.name.clone(), stage.count)).collect();
            let terms = stages.stages.iter().map(|stage| of(&stage.terms, &stages, device).clone());
            let terms: Vec<_> = terms.map(|term| (value(&term, &shares, device), term)).collect();
            (sorts, terms)
        };
        let name = &graph.axes[axis].name;
        let slope = |term: &Term| term.slopes.get(name).copied().unwrap_or(0.0);
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

#[test]
fn the_json_is_that_of_the_seam() {
    let random = &mut Random(7);
    let graph = composed(perceptron(1, [12, 4, 8]), random);
    let cluster = crate::testing::cluster(&[1e9, 2e9], 1e8, 1e-5);
    let shares = positive_shares(&graph, 2, random);
    let valid = validate(&graph, &random_program(&graph, random)).expect("a valid program");
    let stages = stages(&graph, &cluster, &shares, &valid, Optimiser::keeping(2));
    let json = serde_json::to_value(&stages).expect("JSON");
    let kinds: Vec<_> = stages.stages.iter().map(|stage| stage.kind).collect();
    assert!(kinds.contains(&StageKind::Compute) && kinds.contains(&StageKind::Collective));
    assert!(json["stages"][0]["kind"] == "compute" || json["stages"][0]["kind"] == "collective");
    assert!(json["stages"][0]["terms"][1]["constant"].is_number());
    assert!(json["memory"][0]["slopes"].is_object());
    assert_eq!(serde_json::from_value::<Stages>(json).expect("stages"), stages);
}
