mod many;
mod memory;
mod properties;

use crate::cost::CostModel;
use crate::program::Conversion;
use crate::validate::Step;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::costs::{Costs, RandomCosts};
use super::emit::{Emitted, emit};
use super::model::{Encoding, Model};
use super::oracle::brute_force;
use super::request::{Constraints, Prices, Request};
use super::solver::{Limits, solve};
use super::synthesise;
use super::testing::{Recipe, TestCosts, placements, random_graph};
use super::walk::walk;
use crate::cluster::{Cluster, Device, Group, Link, Member};
use crate::graph::{Graph, OutputKind};
use crate::placement::Placement;
use crate::program::{Instruction, Program};
use crate::shares::from_splits;
use crate::simulate::{Options, simulate};
use crate::testing::{Random, composed, divided};
use crate::validate::validate;

fn recipe(operators: usize, views: usize, chains: bool) -> impl Strategy<Value = Recipe> {
    (any::<u64>(), 1..=operators).prop_map(move |(seed, operators)| Recipe {
        seed,
        operators,
        views,
        chains,
    })
}

/// Optimum of a model, after validating its program and walking it.
fn optimum(graph: &Graph, costs: &impl Costs, encoding: Encoding) -> f64 {
    optimum_under(graph, costs, encoding, &Constraints::default()).0
}

/// The same under constraints, and the program.
fn optimum_under(graph: &Graph, costs: &impl Costs, encoding: Encoding, constraints: &Constraints) -> (f64, Program) {
    let mut model = Model::new(graph, constraints, costs, None, encoding).expect("a model");
    let solution = solve(&model.problem, &Limits::default()).expect("a solution");
    assert_eq!(solution.gap(), 0.0, "not proven");
    let Emitted {
        program, communication, ..
    } = emit(graph, &mut model, &solution.assignment);
    validate(graph, &program).expect("a valid program");
    let walked = walk(graph, costs, &program);
    let summed = model.computation(graph, costs, &solution.assignment) + communication;
    assert!(
        close(walked, summed),
        "the program costs {walked} by walking, {summed} by its parts"
    );
    assert!(
        close(walked, solution.cost),
        "the program costs {walked}, the solution {}",
        solution.cost
    );
    (walked, program)
}

/// Some of the placements of some inputs and outputs.
fn random_pins(graph: &Graph, seed: u64) -> Constraints {
    let mut random = Random(seed);
    let mut some = |mut from: Vec<Placement>| {
        from.retain(|it| *it != Placement::Partial);
        let kept = from[random.below(from.len())];
        from.retain(|it| *it == kept || random.below(10) < 3);
        (random.below(10) < 7).then_some(from)
    };
    let inputs = graph.inputs.iter().filter(|input| graph.sharded(input));
    let stored = inputs.map(|input| &graph.tensors[input.tensor]);
    let placed = stored.filter_map(|tensor| Some((tensor.name.clone(), some(placements(tensor))?)));
    let placed = placed.collect();
    let outputs = graph
        .outputs
        .iter()
        .filter(|output| output.kind == OutputKind::Output && output.of.is_none());
    let ends = outputs.filter_map(|it| Some((it.name.clone(), some(placements(&graph.tensors[it.tensor]))?)));
    Constraints {
        placements: placed,
        outputs: ends.collect(),
        ..Constraints::default()
    }
}

fn close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-7 * one.abs().max(1e-3)
}

/// Devices of these speeds, one link.
fn cluster(speeds: &[f64]) -> Cluster {
    let device = |speed: &f64| {
        Member::Device(Device {
            name: format!("device of {speed}"),
            flops: BTreeMap::from([("default".to_owned(), 1e9 * speed)]),
            memory_bandwidth: 1e9 * speed,
            memory: 1e9,
            launch_overhead: 1e-6,
            ..Device::default()
        })
    };
    let link = Link {
        bandwidth: 1e8,
        latency: 1e-6,
        ..Link::default()
    };
    let root = Group {
        link,
        members: speeds.iter().map(device).collect(),
    };
    Cluster {
        format: "hap-cluster-1".into(),
        root,
        collectives: BTreeMap::new(),
        overlap: 0.5,
        interference: 0.5,
        contention: 0.0,
        fingerprint: None,
    }
}

/// A request that splits every axis alike.
fn request(graph: &Graph, units: &[u64]) -> Request {
    let splits = graph
        .axes
        .iter()
        .map(|axis| (axis.name.clone(), units.to_vec()))
        .collect();
    Request {
        splits,
        ..Request::default()
    }
}

fn text(program: &Program) -> String {
    serde_json::to_string(program).expect("JSON")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn equals_brute_force(recipe in recipe(8, 25, false), seed: u64, free: bool) {
        let graph = random_graph(recipe);
        let costs = TestCosts { graph: &graph, seed, free };
        let cost = optimum(&graph, &costs, Encoding::default());
        let expected = brute_force(&graph, &costs, &Constraints::default(), None);
        prop_assert!(close(cost, expected), "{cost}, by brute force {expected}");
    }

    #[test]
    fn equals_brute_force_with_another_split_class(recipe in recipe(5, 25, false), seed: u64, axis in 0..3usize) {
        let graph = divided(&random_graph(recipe), axis);
        let costs = TestCosts { graph: &graph, seed, free: false };
        let cost = optimum(&graph, &costs, Encoding::default());
        let expected = brute_force(&graph, &costs, &Constraints::default(), None);
        prop_assert!(close(cost, expected), "{cost}, by brute force {expected}");
    }

    #[test]
    fn equals_brute_force_under_pins(recipe in recipe(8, 25, false), seed: u64, free: bool, pins: u64, entries in 0..2usize) {
        let graph = random_graph(recipe);
        let costs = TestCosts { graph: &graph, seed, free };
        let constraints = random_pins(&graph, pins);
        let encoding = Encoding { joint_entries: 3_000 * entries, ..Encoding::default() };
        let (cost, program) = optimum_under(&graph, &costs, encoding, &constraints);
        let expected = brute_force(&graph, &costs, &constraints, None);
        prop_assert!(close(cost, expected), "{cost}, by brute force {expected}");
        for instruction in &program.instructions {
            let (allowed, placement) = match instruction {
                Instruction::Input { tensor, placement } => (constraints.placements.get(tensor), placement),
                Instruction::Output { name, placement, .. } => (constraints.outputs.get(name), placement),
                _ => continue,
            };
            prop_assert!(allowed.is_none_or(|allowed| allowed.contains(&placement[0])), "{instruction:?}");
        }
    }

    #[test]
    fn availability_variables_change_nothing(recipe in recipe(8, 25, false), seed: u64, free: bool) {
        let graph = random_graph(recipe);
        let costs = TestCosts { graph: &graph, seed, free };
        let joint = optimum(&graph, &costs, Encoding::default());
        let available = optimum(&graph, &costs, Encoding { joint_entries: 0, ..Encoding::default() });
        prop_assert!(close(joint, available), "{joint} jointly, {available} by availability");
    }

    #[test]
    fn merging_views_changes_nothing_in_chains_and_never_worsens(recipe in recipe(8, 50, false), chains: bool, seed: u64) {
        let graph = random_graph(Recipe { chains, ..recipe });
        let costs = TestCosts { graph: &graph, seed, free: true };
        let merged = optimum(&graph, &costs, Encoding::default());
        let apart = optimum(&graph, &costs, Encoding { merge_views: false, ..Encoding::default() });
        prop_assert!(merged <= apart || close(merged, apart), "{merged} merged, {apart} apart");
        prop_assert!(!chains || close(merged, apart), "{merged} merged, {apart} apart");
    }

    #[test]
    fn a_further_choice_never_worsens(recipe in recipe(8, 25, false), seed: u64, which: prop::sample::Index) {
        let graph = random_graph(recipe);
        let operator = which.index(graph.operators.len());
        let mut fewer = graph.clone();
        let choices = &mut fewer.operators[operator].choices;
        prop_assume!(choices.len() > 1);
        choices.pop();
        let all = optimum(&graph, &TestCosts { graph: &graph, seed, free: true }, Encoding::default());
        let some = optimum(&fewer, &TestCosts { graph: &fewer, seed, free: true }, Encoding::default());
        prop_assert!(all <= some || close(all, some), "{all} with it, {some} without");
    }

    #[test]
    fn devices_of_equal_shares_may_change_places(recipe in recipe(8, 25, false), speeds in [1.0..9.0, 1.0..9.0, 1.0..9.0, 1.0..9.0f64]) {
        let graph = random_graph(recipe);
        let request = request(&graph, &[1; 4]);
        let [one, two, three, four] = speeds;
        let cost = synthesise(&graph, &cluster(&speeds), &request).expect("a program").cost;
        let other = synthesise(&graph, &cluster(&[three, one, four, two]), &request).expect("a program").cost;
        prop_assert!(close(cost, other), "{cost} and {other}");
    }

    #[test]
    fn equal_requests_give_equal_programs(recipe in recipe(12, 25, false), random: Option<u64>) {
        let graph = random_graph(recipe);
        let request = Request { random, ..request(&graph, &[1, 3, 0]) };
        let cluster = cluster(&[1.0, 3.0, 2.0]);
        let one = synthesise(&graph, &cluster, &request).expect("a program");
        let two = synthesise(&graph, &cluster, &request).expect("a program");
        prop_assert_eq!(text(&one.program), text(&two.program));
        prop_assert_eq!(one.cost, two.cost);
        prop_assert_eq!(one.search_gap, 0.0);
        prop_assert_eq!(one.bound, one.cost);
        validate(&graph, &one.program).expect("a valid program");
    }

    #[test]
    fn constraints_are_kept(recipe in recipe(8, 25, false), random: Option<u64>, forbidden in 0..3usize, allow: bool, pin in 0..3usize) {
        let graph = random_graph(recipe);
        let name = graph.axes[forbidden].name.clone();
        let others = graph.axes.iter().map(|axis| axis.name.clone()).filter(|other| *other != name).collect();
        let pinned = &graph.tensors[graph.inputs[0].tensor];
        // The parameter: replicated, or along its first axis.
        let kept = if pin == 1 && pinned.occurrences[0] != forbidden { Placement::Shard(0) } else { Placement::Replicate };
        let constraints = Constraints {
            forbidden_axes: if allow { Vec::new() } else { vec![name.clone()] },
            allowed_axes: allow.then_some(others),
            placements: if pin > 0 { BTreeMap::from([(pinned.name.clone(), vec![kept])]) } else { BTreeMap::new() },
            ..Constraints::default()
        };
        let request = Request { random, constraints, ..request(&graph, &[1, 3, 0]) };
        let program = synthesise(&graph, &cluster(&[1.0, 3.0, 2.0]), &request).expect("a program").program;
        validate(&graph, &program).expect("a valid program");
        let sharded = |tensor: &str, placements: &[Placement]| {
            let tensor = graph.tensors.iter().find(|it| it.name == tensor).expect("a tensor");
            placements.iter().any(|it| matches!(it, Placement::Shard(at) if tensor.occurrences[*at as usize] == forbidden))
        };
        for instruction in &program.instructions {
            let (names, axis) = match instruction {
                Instruction::Input { tensor, placement } => {
                    prop_assert!(*tensor != pinned.name || pin == 0 || *placement == [kept]);
                    (vec![(tensor, placement)], None)
                }
                Instruction::Output { tensor, placement, .. } | Instruction::Free { tensor, placement } => {
                    (vec![(tensor, placement)], None)
                }
                Instruction::Convert { tensor, from, to, axis, .. } => (vec![(tensor, from), (tensor, to)], axis.clone()),
                Instruction::Compute { inputs, outputs, axis, .. } => {
                    (inputs.iter().chain(outputs).map(|(name, placement)| (name, placement)).collect(), axis.clone())
                }
            };
            prop_assert!(axis.as_ref() != Some(&name), "{instruction:?}");
            prop_assert!(!names.iter().any(|(tensor, placement)| sharded(tensor, placement)), "{instruction:?}");
        }
    }

    #[test]
    fn a_required_axis_is_used_where_it_can_be(recipe in recipe(8, 25, false), required in 0..3usize) {
        let graph = random_graph(recipe);
        let constraints = Constraints { require_axis: Some(graph.axes[required].name.clone()), ..Constraints::default() };
        let request = Request { constraints, ..request(&graph, &[1, 3, 0]) };
        let program = synthesise(&graph, &cluster(&[1.0, 3.0, 2.0]), &request).expect("a program").program;
        for instruction in &program.instructions {
            let Instruction::Compute { operator, axis, .. } = instruction else { continue };
            let node = graph.operators.iter().find(|it| it.name == *operator).expect("an operator");
            let can = !node.layout && node.choices.iter().any(|choice| choice.axis == Some(required));
            prop_assert!(!can || axis.as_ref() == Some(&graph.axes[required].name), "{instruction:?}");
        }
    }

    #[test]
    fn the_priced_cost_is_that_of_the_simulated_streams_and_bounds_the_step(
        recipe in recipe(8, 25, false), seed: u64, theta in 0.0..=1.0f64,
    ) {
        let graph = composed(random_graph(recipe), &mut Random(seed));
        let prices = Prices { theta: Some(theta), ..Prices::default() };
        let request = Request { prices, ..request(&graph, &[1, 3, 0]) };
        let cluster = cluster(&[1.0, 3.0, 2.0]);
        let found = synthesise(&graph, &cluster, &request).expect("a program");
        let valid = validate(&graph, &found.program).expect("a valid program");
        let shares = from_splits(&graph, 3, &request.splits).expect("shares");
        let step = simulate(&graph, &cluster, &shares, &valid, &Options::default());
        let compute = step.compute.iter().sum::<f64>() / 3.0;
        // Gradients pay for their part of a bucket's latency, whatever bucket they are in.
        let model = CostModel::new(&graph, &cluster, &shares);
        let (latency, _) = model.all_reduce();
        let mut shared = 0.0;
        for (position, step) in valid.steps.iter().enumerate() {
            let Step::Convert { conversion: Conversion::AllReduce, read, .. } = step else { continue };
            let tensor = valid.values[*read].tensor;
            if model.in_buckets(tensor) {
                let first = *valid.together(position).start() == position;
                shared += latency * (f64::from(u8::from(first)) - model.part_of_latency(tensor));
            }
        }
        let priced = theta * compute + (1.0 - theta * cluster.hidden()) * (step.communication - shared);
        prop_assert!((found.cost - priced).abs() <= 1e-9 * priced.max(1e-9), "{} reported, {priced}", found.cost);
        prop_assert!(found.cost <= step.seconds * (1.0 + 1e-9), "{} > {}", found.cost, step.seconds);
    }

    #[test]
    fn random_costs_give_valid_programs_of_that_cost(recipe in recipe(12, 25, false), seed: u64) {
        let graph = random_graph(recipe);
        let request = Request { random: Some(seed), ..request(&graph, &[1, 3, 0]) };
        let found = synthesise(&graph, &cluster(&[1.0, 3.0, 2.0]), &request).expect("a program");
        let walked = walk(&graph, &RandomCosts::new(&graph, seed), &found.program);
        prop_assert!(close(walked, found.cost), "{walked} by walking, {} reported", found.cost);
    }
}
