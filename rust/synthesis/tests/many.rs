//! Tensors of which many placements are read, also where not all sets of these are told apart.

use std::ops::Range;

use proptest::prelude::*;

use super::{close, cluster, request};
use crate::cost::CostModel;
use crate::graph::{Graph, InputKind, OutputKind};
use crate::memory::Temporaries;
use crate::placement::Placements;
use crate::shares::from_splits;
use crate::synthesis::costs::{Costs, Move};
use crate::synthesis::emit::emit;
use crate::synthesis::held::HeldPrices;
use crate::synthesis::model::{Encoding, Model};
use crate::synthesis::oracle::brute_force;
use crate::synthesis::priced::PricedCosts;
use crate::synthesis::request::{Constraints, MemoryPrices};
use crate::synthesis::solver::{Limits, solve};
use crate::synthesis::synthesise;
use crate::synthesis::testing::TestCosts;
use crate::testing::GraphBuilder;
use crate::validate::validate;

/// A tensor of so many axes of this size, and for each of these axes a reader in the backward that can share its work along
/// it, or along the first.
fn graph(axes: usize, readers: Range<usize>, size: u64, flops: f64) -> Graph {
    let names: Vec<String> = (0..axes).map(|axis| format!("axis{axis}")).collect();
    let sizes: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), size)).collect();
    let mut graph = GraphBuilder::new(&sizes);
    let all: Vec<usize> = (0..axes).collect();
    let along: Vec<String> = all.iter().map(|axis| format!("S{axis} -> S{axis}")).collect();
    let along: Vec<&str> = along.iter().map(String::as_str).collect();
    let x = graph.input(InputKind::Input, "x", &all);
    let y = graph.operator("y", &[x], &all, flops, &along);
    let loss = graph.operator("loss", &[y], &[], flops, &["S1 -> P"]);
    graph.output(OutputKind::Loss, "loss", loss, None);
    for axis in readers {
        let choices: &[&str] = if axis == 0 {
            &["S0 -> P"]
        } else {
            &[&format!("S{axis} -> P"), "S0 -> P"]
        };
        let reader = graph.operator(&format!("reader{axis}"), &[y], &[], flops, choices);
        graph.output(OutputKind::InputGradient, &format!("gradient{axis}"), reader, None);
    }
    graph.finish()
}

/// Costs under which readers share their work at almost any price.
struct Shared<'a>(TestCosts<'a>);

impl Costs for Shared<'_> {
    fn compute(&self, operator: usize, choice: usize) -> f64 {
        let reader = self.0.graph.operators[operator].name.starts_with("reader");
        self.0.compute(operator, choice) + if reader && choice == 0 { 1e3 } else { 0.0 }
    }

    fn kind(&self, tensor: usize) -> usize {
        self.0.kind(tensor)
    }

    fn convert(&self, tensor: usize, from: &Placements, to: &Placements) -> Option<Move> {
        self.0.convert(tensor, from, to)
    }
}

/// The optimum of the model, and the cost of the program that is made of it.
fn costs_of(graph: &Graph, costs: &impl Costs, memory: Option<&HeldPrices>, encoding: Encoding) -> (f64, f64) {
    let mut model = Model::new(graph, &Constraints::default(), costs, memory, encoding).expect("a model");
    let solution = solve(&model.problem, &Limits::default()).expect("a solution");
    assert_eq!(solution.gap(), 0.0, "not proven");
    let emitted = emit(graph, &mut model, &solution.assignment);
    validate(graph, &emitted.program).expect("a valid program");
    let storing = memory.map_or(0.0, |memory| memory.storing(&emitted.stored));
    let computation = model.computation(graph, costs, &solution.assignment);
    (
        solution.cost,
        computation + emitted.communication + emitted.keeping + storing,
    )
}

fn prices() -> impl Strategy<Value = MemoryPrices> {
    (prop_oneof![Just(1e-6), Just(1e-4)], 0.0..=1.0).prop_map(|(price, between)| MemoryPrices {
        seconds_per_byte: vec![price; 3],
        between,
        optimiser_tensors: 0,
        temporaries: Temporaries::default(),
        segments: 1,
        skew: 0.0,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn three_shards_read_in_the_backward_cost_what_brute_force_finds(
        seed: u64, free: bool, prices in prices(), priced: bool, entries in 0..2usize,
    ) {
        let graph = graph(3, 0..3, 4, 1e6);
        let shares = from_splits(&graph, 3, &request(&graph, &[1, 3, 0]).splits).expect("shares");
        let memory = HeldPrices::new(&graph, &shares, 3, &prices).expect("prices");
        let memory = priced.then_some(&memory);
        let costs = Shared(TestCosts { graph: &graph, seed, free });
        let least = brute_force(&graph, &costs, &Constraints::default(), memory);
        let encoding = Encoding { joint_entries: 3_000 * entries, ..Encoding::default() };
        let (optimum, cost) = costs_of(&graph, &costs, memory, encoding);
        prop_assert!(close(optimum, least) && close(cost, least), "{optimum}, {cost}, by brute force {least}");
        // Sets of three are not told apart.
        let (bound, cost) = costs_of(&graph, &costs, memory, Encoding { sets: 0, ..encoding });
        prop_assert!(bound <= least || close(bound, least), "{bound} is no bound of {least}");
        prop_assert!(cost >= least || close(cost, least), "{cost} is below {least}");
    }
}

#[test]
fn sets_that_are_not_told_apart_count_as_the_cheapest_of_them() {
    let graph = graph(3, 0..3, 4, 1e6);
    let shares = from_splits(&graph, 3, &request(&graph, &[1, 3, 0]).splits).expect("shares");
    let prices = MemoryPrices {
        seconds_per_byte: vec![1e-4; 3],
        between: 0.5,
        optimiser_tensors: 0,
        temporaries: Temporaries::default(),
        segments: 1,
        skew: 0.0,
    };
    let memory = HeldPrices::new(&graph, &shares, 3, &prices).expect("prices");
    let mut too_low = [0; 3];
    for seed in 0..60 {
        let costs = TestCosts {
            graph: &graph,
            seed,
            free: false,
        };
        for (count, memory, joint_entries) in [(0, None, 0), (1, Some(&memory), 0), (2, Some(&memory), 3_000)] {
            let encoding = Encoding {
                joint_entries,
                sets: 0,
                ..Encoding::default()
            };
            let (bound, cost) = costs_of(&graph, &costs, memory, encoding);
            too_low[count] += usize::from(bound < cost && !close(bound, cost));
        }
    }
    assert!(too_low.iter().all(|&count| count > 0), "{too_low:?}");
}

#[test]
fn the_bound_is_true_and_the_gap_open_where_not_all_sets_that_matter_are_told_apart() {
    // Of the first axis the first device has twice as much as of others, and its time alone counts: all readers do best
    // along axes of their own. So ten shards must be there.
    let (graph, cluster) = (graph(11, 1..11, 8, 1e14), cluster(&[1.0; 8]));
    let mut request = request(&graph, &[1; 8]);
    request.splits.insert("axis0".into(), vec![2, 1, 1, 1, 1, 1, 1, 0]);
    request.prices.weights = Some(vec![1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    let found = synthesise(&graph, &cluster, &request).expect("a program");
    let shares = from_splits(&graph, 8, &request.splits).expect("shares");
    let model = CostModel::new(&graph, &cluster, &shares);
    let costs = PricedCosts::new(&graph, &model, &request.prices).expect("prices");
    let least = |sets| {
        let encoding = Encoding {
            sets,
            ..Encoding::default()
        };
        let model = Model::new(&graph, &Constraints::default(), &costs, None, encoding).expect("a model");
        solve(&model.problem, &Limits::default()).expect("a solution").cost
    };
    assert!(found.search_gap > 0.0);
    assert_eq!(found.search_gap, (found.cost - found.bound) / found.cost);
    assert!(close(found.bound, least(Encoding::default().sets)));
    // It is the cheapest one, which takes all sets to prove.
    assert!(close(found.cost, least(1 << 10)));
    assert!(found.bound < found.cost * (1.0 - 1e-6));
}
