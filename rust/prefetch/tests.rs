//! What starts early in hand-made programs; random programs compute the same, are never slower, and fit.

use super::*;
use crate::buckets::merged;
use crate::cluster::Member;
use crate::graph::{Graph, OutputKind};
use crate::shares::Shares;
use crate::testing::{GraphBuilder, Random, cluster, composed, perceptron, program, random_program, run};
use crate::validate::validate;
use proptest::prelude::*;

/// Forward and backward read `v` in their last operators. The first one reads what is wide.
fn graph() -> Graph {
    let mut builder = GraphBuilder::new(&[("batch", 4), ("hidden", 1), ("wide", 4)]);
    let x = builder.input(InputKind::Input, "x", &[0, 1]);
    let v = builder.input(InputKind::Parameter, "v", &[1]);
    let t = builder.input(InputKind::Tangent, "t", &[]);
    let wide = builder.operator("wide", &[x], &[0, 2], 0.0, &["S0 -> S0"]);
    let first = builder.operator("first", &[wide], &[0], 4.0, &["S0 -> S0"]);
    let second = builder.operator("second", &[first, v], &[0], 4.0, &["S0 R -> S0"]);
    let loss = builder.operator("loss", &[second], &[], 0.0, &["S0 -> P"]);
    let third = builder.operator("third", &[x, t], &[0], 4.0, &["S0 R -> S0"]);
    let fourth = builder.operator("fourth", &[third, v], &[1], 4.0, &["S0 R -> P"]);
    builder.output(OutputKind::Loss, "loss", loss, None);
    builder.output(OutputKind::Gradient, "v", fourth, Some(v));
    builder.finish()
}

const PROGRAM: [&str; 16] = [
    "input x S0",
    "input v S0",
    "input t R",
    "compute wide S0 -> S0",
    "compute first S0 -> S0",
    "convert v S0 R grouped",
    "compute second S0 R -> S0",
    "compute loss S0 -> P",
    "convert loss P R builtin",
    "free v R",
    "compute third S0 R -> S0",
    "convert v S0 R grouped",
    "compute fourth S0 R -> P",
    "convert fourth P S0 grouped",
    "output loss loss R",
    "output v fourth S0",
];

fn shares(graph: &Graph) -> Shares {
    vec![vec![0.5; 2]; graph.axes.len()]
}

fn before(graph: &Graph, cluster: &Cluster, program: Program) -> Proven {
    let shares = shares(graph);
    let costs = CostModel::new(graph, cluster, &shares);
    merged(cluster, &costs, &graph.names(), &Options::default(), program)
}

fn after(graph: &Graph, cluster: &Cluster, program: Program) -> Proven {
    let shares = shares(graph);
    let costs = CostModel::new(graph, cluster, &shares);
    prefetched(cluster, &costs, &Options::default(), before(graph, cluster, program))
}

fn machines(overlap: f64) -> Cluster {
    let mut cluster = cluster(&[1.0, 1.0], 4.0, 0.0);
    cluster.overlap = overlap;
    cluster
}

fn lines(proven: &Proven) -> Vec<String> {
    proven.program.instructions.iter().map(ToString::to_string).collect()
}

#[test]
fn gathers_start_where_computation_hides_them_but_not_before_the_backward() {
    let graph = graph();
    let written = program(&graph, &PROGRAM);
    let (before, after) = (
        before(&graph, &machines(1.0), written.clone()),
        after(&graph, &machines(1.0), written),
    );
    let mut expected = lines(&before);
    for (from, to) in [(5, 4), (11, 10)] {
        let gather = expected.remove(from);
        expected.insert(to, gather);
    }
    assert_eq!(lines(&after), expected);
    assert!(after.simulation.seconds < before.simulation.seconds);
    assert_eq!(after.simulation.compute, before.simulation.compute);
}

#[test]
fn what_only_the_backward_reads_is_not_moved_within_the_forward() {
    let mut builder = GraphBuilder::new(&[("batch", 4), ("hidden", 1), ("wide", 16)]);
    let x = builder.input(InputKind::Input, "x", &[0, 1]);
    let v = builder.input(InputKind::Parameter, "v", &[2]);
    let t = builder.input(InputKind::Tangent, "t", &[]);
    let first = builder.operator("first", &[x], &[0], 4.0, &["S0 -> S0"]);
    let loss = builder.operator("loss", &[first], &[], 0.0, &["S0 -> P"]);
    let second = builder.operator("second", &[x, t], &[0], 4.0, &["S0 R -> S0"]);
    let third = builder.operator("third", &[second, v], &[2], 4.0, &["S0 R -> P"]);
    builder.output(OutputKind::Loss, "loss", loss, None);
    builder.output(OutputKind::Gradient, "v", third, Some(v));
    let graph = builder.finish();
    let mut lines = vec![
        "input x S0",
        "input v S0",
        "input t R",
        "compute first S0 -> S0",
        "convert v S0 R grouped",
        "compute loss S0 -> P",
        "convert loss P R builtin",
        "compute second S0 R -> S0",
        "compute third S0 R -> P",
        "convert third P S0 grouped",
        "output loss loss R",
        "output v third S0",
    ];
    let written = program(&graph, &lines);
    assert_eq!(after(&graph, &machines(1.0), written.clone()).program, written);
    // Behind the second operator it may start before that.
    let gather = lines.remove(4);
    lines.insert(7, gather);
    let moved = after(&graph, &machines(1.0), program(&graph, &lines)).program;
    lines.swap(6, 7);
    assert_eq!(moved, program(&graph, &lines));
}

#[test]
fn nothing_starts_early_where_nothing_hides_or_memory_does_not_allow_it() {
    let graph = graph();
    let written = program(&graph, &PROGRAM);
    assert_eq!(after(&graph, &machines(0.0), written.clone()).program, written);
    let mut cluster = machines(1.0);
    let needed = after(&graph, &cluster, written.clone()).simulation.memory[0];
    assert!(needed > before(&graph, &cluster, written.clone()).simulation.memory[0]);
    for (reserve, moved) in [(0.0, true), (1.0, false)] {
        for member in &mut cluster.root.members {
            if let Member::Device(device) = member {
                (device.memory, device.reserve) = (needed, reserve);
            }
        }
        assert_eq!(after(&graph, &cluster, written.clone()).program != written, moved);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn programs_compute_the_same_and_are_never_slower(
        layers in 1..4usize,
        overlap in prop::sample::select(vec![0.3, 1.0]),
        room in prop::sample::select(vec![0.0, 1e3, 1e12]),
        seed: u64,
    ) {
        let graph = perceptron(layers, [8, 4, 6]);
        let mut random = Random(seed);
        let written = random_program(&graph, &mut random);
        let mut cluster = cluster(&[1e3, 2e3], 1e3, 1e-3);
        cluster.overlap = overlap;
        for member in &mut cluster.root.members {
            if let Member::Device(device) = member {
                device.memory = room;
            }
        }
        let shares = shares(&graph);
        let (before, after) = (before(&graph, &cluster, written.clone()), after(&graph, &cluster, written));
        prop_assert!(after.simulation.seconds <= before.simulation.seconds);
        prop_assert!(after.fits(&before, &cluster.capacities()));
        let (mut one, mut other) = (lines(&before), lines(&after));
        one.sort();
        other.sort();
        prop_assert_eq!(one, other);
        let valid = validate(&graph, &after.program).expect("a valid program");
        let costs = CostModel::new(&graph, &cluster, &shares);
        prop_assert_eq!(simulate_with(&costs, &valid, &Options::default()), after.simulation);
        let computed = |program: &Program| run(&graph, &shares, program, seed).expect("a valid program");
        prop_assert_eq!(computed(&after.program), computed(&before.program));
    }

    #[test]
    fn programs_with_collectives_inside_of_operators_stay_valid(seed: u64) {
        let graph = composed(perceptron(2, [8, 4, 6]), &mut Random(seed));
        let mut cluster = cluster(&[1e3, 2e3], 1e3, 1e-3);
        cluster.overlap = 1.0;
        let after = after(&graph, &cluster, random_program(&graph, &mut Random(seed)));
        prop_assert!(validate(&graph, &after.program).is_ok());
    }
}
