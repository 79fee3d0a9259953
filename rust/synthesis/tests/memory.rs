use proptest::prelude::*;

use super::{close, cluster, recipe, request};
use crate::graph::{Graph, OutputKind};
use crate::memory::Temporaries;
use crate::program::Instruction;
use crate::shares::{Shares, from_splits};
use crate::simulate::{Options, simulate};
use crate::synthesis::emit::emit;
use crate::synthesis::held::HeldPrices;
use crate::synthesis::model::{Encoding, Model};
use crate::synthesis::oracle::brute_force;
use crate::synthesis::request::{Constraints, MemoryPrices, Prices, Request, Synthesis};
use crate::synthesis::solver::{Limits, solve};
use crate::synthesis::synthesise;
use crate::synthesis::testing::{Random, Recipe, TestCosts, random_graph};
use crate::synthesis::walk::walk;
use crate::validate::validate;

/// A random graph whose loss is some tensor, so that much of it is not needed for the loss.
fn graph(recipe: Recipe) -> Graph {
    let mut graph = random_graph(recipe);
    let mut random = Random(recipe.seed ^ 1);
    graph
        .outputs
        .retain(|output| output.kind != OutputKind::Output || random.chance(50));
    let loss = random.below(graph.tensors.len());
    graph.outputs[0].tensor = loss;
    graph.validate().expect("a valid graph");
    graph
}

fn shares(graph: &Graph) -> Shares {
    from_splits(graph, 3, &request(graph, &[1, 3, 0]).splits).expect("shares")
}

/// Prices of three devices; `scale` is the price of a byte on the dearest one.
fn prices() -> impl Strategy<Value = MemoryPrices> {
    let scale = prop_oneof![Just(1e-5), Just(1e-3), Just(1e-1)];
    (
        scale,
        [0.0..1.0, 0.0..1.0, 0.0..1.0f64],
        prop_oneof![Just(0.0), 0.0..=1.0, Just(1.0)],
        0..3u32,
        0..3u32,
    )
        .prop_map(|(scale, devices, between, optimiser_tensors, together)| MemoryPrices {
            seconds_per_byte: devices.iter().map(|price| scale * price).collect(),
            between,
            optimiser_tensors,
            temporaries: Temporaries {
                together,
                ..Temporaries::default()
            },
            segments: 1,
            skew: 0.0,
        })
}

/// Optimum of a model with prices of memory, after validating its program and walking it.
fn optimum(graph: &Graph, costs: &TestCosts, memory: &HeldPrices, encoding: Encoding) -> f64 {
    let mut model = Model::new(graph, &Constraints::default(), costs, Some(memory), encoding).expect("a model");
    let solution = solve(&model.problem, &Limits::default()).expect("a solution");
    assert_eq!(solution.gap(), 0.0, "not proven");
    let emitted = emit(graph, &mut model, &solution.assignment);
    validate(graph, &emitted.program).expect("a valid program");
    let walked = walk(graph, costs, &emitted.program);
    let held = emitted.keeping + memory.storing(&model.stored(graph, &solution.assignment));
    assert!(
        close(walked + held, solution.cost),
        "the program costs {walked} and {held} for memory, the solution {}",
        solution.cost
    );
    solution.cost
}

fn priced(graph: &Graph, memory: MemoryPrices, random: Option<u64>) -> Synthesis {
    let prices = Prices {
        memory: Some(memory),
        ..Prices::default()
    };
    let request = Request {
        prices,
        random,
        ..request(graph, &[1, 3, 0])
    };
    let found = synthesise(graph, &cluster(&[1.0, 3.0, 2.0]), &request).expect("a program");
    assert_eq!(found.search_gap, 0.0);
    found
}

/// Seconds of a program, and what its memory costs at these prices.
fn parts(found: &Synthesis, prices: &MemoryPrices) -> (f64, f64) {
    let memory = found.priced_memory.iter().zip(&prices.seconds_per_byte);
    let memory = memory.map(|(bytes, price)| bytes * price).sum();
    (found.cost - memory, memory)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn equals_brute_force(recipe in recipe(5, 25, false), seed: u64, free: bool, prices in prices(), entries in 0..2usize) {
        let graph = graph(recipe);
        let shares = shares(&graph);
        let costs = TestCosts { graph: &graph, seed, free };
        let memory = HeldPrices::new(&graph, &shares, 3, &prices).expect("prices");
        let encoding = Encoding { joint_entries: 3_000 * entries, ..Encoding::default() };
        let cost = optimum(&graph, &costs, &memory, encoding);
        let expected = brute_force(&graph, &costs, &Constraints::default(), Some(&memory));
        prop_assert!(close(cost, expected), "{cost}, by brute force {expected}");
    }

    #[test]
    fn own_variables_of_classes_change_nothing(recipe in recipe(10, 25, false), seed: u64, free: bool, prices in prices()) {
        let graph = graph(recipe);
        let shares = shares(&graph);
        let costs = TestCosts { graph: &graph, seed, free };
        let memory = HeldPrices::new(&graph, &shares, 3, &prices).expect("prices");
        let joint = optimum(&graph, &costs, &memory, Encoding::default());
        let pairwise = optimum(&graph, &costs, &memory, Encoding { joint_entries: 0, ..Encoding::default() });
        prop_assert!(close(joint, pairwise), "{joint} jointly, {pairwise} pairwise");
    }

    #[test]
    fn no_device_holds_less_than_what_is_priced(
        recipe in recipe(12, 25, false), random: Option<u64>, prices in prices(), segments in 1..4u32,
    ) {
        let graph = graph(recipe);
        let prices = MemoryPrices { segments, ..prices };
        let found = priced(&graph, prices.clone(), random);
        let valid = validate(&graph, &found.program).expect("a valid program");
        let Temporaries { together, .. } = prices.temporaries;
        let temporaries = Temporaries { together, in_turn: 1, carried: 1 };
        let options = Options { optimiser_tensors: prices.optimiser_tensors, temporaries, ..Options::default() };
        let step = simulate(&graph, &cluster(&[1.0, 3.0, 2.0]), &shares(&graph), &valid, &options);
        for (priced, peak) in found.priced_memory.iter().zip(&step.memory) {
            prop_assert!(*priced <= peak * (1.0 + 1e-9), "{priced} of {peak}");
        }
        let (seconds, _) = parts(&found, &prices);
        prop_assert!(random.is_some() || seconds <= step.seconds * (1.0 + 1e-9), "{seconds} > {}", step.seconds);
    }

    #[test]
    fn dearer_memory_is_used_less_and_takes_longer(recipe in recipe(12, 25, false), random: Option<u64>, prices in prices(), factor in 1.5..1e3f64) {
        let graph = graph(recipe);
        let mut dearer = prices.clone();
        dearer.seconds_per_byte.iter_mut().for_each(|price| *price *= factor);
        let (cheap, dear) = (priced(&graph, prices.clone(), random), priced(&graph, dearer.clone(), random));
        let (seconds, memory) = parts(&cheap, &prices);
        let (longer, less) = parts(&dear, &dearer);
        // Both optima are proven within a tolerance that is relative to the costs.
        let slack = 1e-6 * cheap.cost.max(dear.cost);
        prop_assert!(longer >= seconds - slack, "{seconds} s, then {longer} s");
        prop_assert!(less / factor <= memory + slack, "{memory}, then {}", less / factor);
    }

    #[test]
    fn memory_of_next_to_no_price_changes_no_cost(
        recipe in recipe(12, 25, false), random: Option<u64>, prices in prices(), scale in prop_oneof![Just(0.0), Just(1e-15)],
    ) {
        let graph = graph(recipe);
        let mut free = prices;
        // At most 1e-16 seconds per byte, of some ten thousand bytes.
        free.seconds_per_byte.iter_mut().for_each(|price| *price *= scale);
        let found = priced(&graph, free, random);
        let request = Request { random, ..request(&graph, &[1, 3, 0]) };
        let plain = synthesise(&graph, &cluster(&[1.0, 3.0, 2.0]), &request).expect("a program");
        prop_assert!(close(found.cost, plain.cost), "{} with such prices, {} without", found.cost, plain.cost);
    }

    #[test]
    fn a_further_choice_never_worsens(recipe in recipe(8, 25, false), seed: u64, prices in prices(), which: prop::sample::Index) {
        let graph = graph(recipe);
        let mut fewer = graph.clone();
        let operator = &mut fewer.operators[which.index(graph.operators.len())];
        let choices = &mut operator.choices;
        // A view of fewer choices is a class of its own, of which less is known to be in memory.
        prop_assume!(choices.len() > 1 && !operator.layout);
        choices.pop();
        let cost = |graph: &Graph| {
            let shares = shares(graph);
            let memory = HeldPrices::new(graph, &shares, 3, &prices).expect("prices");
            optimum(graph, &TestCosts { graph, seed, free: true }, &memory, Encoding::default())
        };
        let (all, some) = (cost(&graph), cost(&fewer));
        prop_assert!(all <= some || close(all, some), "{all} with it, {some} without");
    }
}

#[test]
fn operators_run_again_and_parameters_are_gathered_again() {
    let (mut again, mut gathered) = (0, 0);
    for seed in 0..40 {
        let graph = graph(Recipe {
            seed,
            operators: 12,
            views: 20,
            chains: false,
        });
        let prices = MemoryPrices {
            seconds_per_byte: vec![1e-3; 3],
            between: 1.0,
            optimiser_tensors: 2,
            temporaries: Temporaries::default(),
            segments: 1,
            skew: 0.0,
        };
        let instructions = priced(&graph, prices, Some(seed)).program.instructions;
        let boundary = instructions
            .iter()
            .position(|it| matches!(it, Instruction::Free { .. }));
        let (before, behind) = instructions.split_at(boundary.unwrap_or(instructions.len()));
        let twice = |one: &Instruction| behind.iter().any(|other| other == one);
        again += before
            .iter()
            .filter(|it| matches!(it, Instruction::Compute { .. }) && twice(it))
            .count();
        gathered += before
            .iter()
            .filter(|it| matches!(it, Instruction::Convert { .. }) && twice(it))
            .count();
    }
    assert!(again > 10 && gathered > 3, "{again} operators, {gathered} conversions");
}
