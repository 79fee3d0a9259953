//! Buckets of hand-made programs, and of what the synthesiser finds.

use super::*;
use crate::graph::InputKind;
use crate::shares::Shares;
use crate::simulate::simulate;
use crate::testing::{GraphBuilder, Random, cluster, composed, perceptron, program};
use crate::validate::validate;
use proptest::prelude::*;

/// Three gradients that each are a sum over the batch, of 16 bytes each; the second is read once more.
fn graph() -> Graph {
    let mut builder = GraphBuilder::new(&[("batch", 8), ("hidden", 4)]);
    let x = builder.input(InputKind::Input, "x", &[0, 1]);
    for name in ["a", "b", "c"] {
        let w = builder.input(InputKind::Parameter, name, &[1]);
        let sum = builder.operator(&format!("sum_{name}"), &[x], &[1], 8.0, &["S0 -> P"]);
        builder.output(OutputKind::Gradient, name, sum, Some(w));
        if name == "b" {
            let loss = builder.operator("loss", &[sum], &[], 1.0, &["R -> R"]);
            builder.output(OutputKind::Loss, "loss", loss, None);
        }
    }
    builder.finish()
}

const PROGRAM: [&str; 15] = [
    "input x S0",
    "input a R",
    "input b R",
    "input c R",
    "compute sum_a S0 -> P",
    "convert sum_a P R builtin",
    "compute sum_b S0 -> P",
    "convert sum_b P R builtin",
    "compute loss R -> R",
    "compute sum_c S0 -> P",
    "convert sum_c P R builtin",
    "output loss loss R",
    "output a sum_a R",
    "output b sum_b R",
    "output c sum_c R",
];

fn in_buckets(program: &Program) -> Vec<String> {
    let lines = program.instructions.iter().map(Instruction::to_string);
    lines.filter(|line| line.contains("bucket=")).collect()
}

fn shares(graph: &Graph) -> Shares {
    vec![vec![0.5; 2]; graph.axes.len()]
}

fn bucketed(graph: &Graph, cluster: &Cluster, program: Program) -> Program {
    let shares = shares(graph);
    let costs = CostModel::new(graph, cluster, &shares);
    let made = merged(cluster, &costs, &graph.names(), &Options::default(), program);
    assert_eq!(made.valid, validate(graph, &made.program).expect("a valid program"));
    assert_eq!(
        made.simulation,
        simulate(graph, cluster, &shares, &made.valid, &Options::default())
    );
    made.program
}

fn step(graph: &Graph, cluster: &Cluster, program: &Program) -> Simulation {
    let valid = validate(graph, program).expect("a valid program");
    simulate(graph, cluster, &shares(graph), &valid, &Options::default())
}

#[test]
fn gradients_that_only_outputs_read_are_one_collective() {
    let graph = graph();
    let cluster = cluster(&[1.0, 1.0], 1e3, 1.0);
    let before = program(&graph, &PROGRAM);
    let after = bucketed(&graph, &cluster, before.clone());
    assert_eq!(
        in_buckets(&after),
        [
            "%sum_a:R = all_reduce(%sum_a:P, builtin, bucket=0)",
            "%sum_c:R = all_reduce(%sum_c:P, builtin, bucket=0)",
        ]
    );
    let communication = |program: &Program| step(&graph, &cluster, program).communication;
    // Two devices: a latency there and one back.
    assert!((communication(&before) - communication(&after) - 2.0).abs() < 1e-9);
}

#[test]
fn nothing_is_merged_where_the_memory_does_not_allow_it() {
    let graph = graph();
    let mut cluster = cluster(&[1.0, 1.0], 1e3, 1.0);
    let before = program(&graph, &PROGRAM);
    let after = bucketed(&graph, &cluster, before.clone());
    let needed = step(&graph, &cluster, &after).memory[0];
    assert!(needed > step(&graph, &cluster, &before).memory[0]);
    for (reserve, expected) in [(0.0, &after), (1.0, &before)] {
        for member in &mut cluster.root.members {
            if let crate::cluster::Member::Device(device) = member {
                (device.memory, device.reserve) = (needed, reserve);
            }
        }
        assert_eq!(&bucketed(&graph, &cluster, before.clone()), expected);
    }
}

#[test]
fn a_bucket_is_of_one_element_type_and_in_one_place() {
    let mut graph = graph();
    let lines = |first: &str, last: &str| {
        let mut lines = PROGRAM.map(str::to_owned);
        lines[5] = format!("convert sum_a P R builtin {first}");
        lines[10] = format!("convert sum_c P R builtin {last}");
        lines
    };
    let error = |graph: &Graph, lines: &[String]| {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let found = validate(graph, &program(graph, &lines));
        found.err().map_or(String::new(), |error| error.to_string())
    };
    assert_eq!(error(&graph, &lines("0", "1")), "");
    assert!(error(&graph, &lines("0", "0")).contains("bucket 0 has ended before"));
    let together = [
        &PROGRAM[..5],
        &[
            "compute sum_b S0 -> P",
            "convert sum_b P R builtin",
            "compute loss R -> R",
        ],
        &[
            "compute sum_c S0 -> P",
            "convert sum_a P R builtin 0",
            "convert sum_c P R builtin 0",
        ],
        &PROGRAM[11..],
    ]
    .concat();
    let together: Vec<String> = together.into_iter().map(str::to_owned).collect();
    assert_eq!(error(&graph, &together), "");
    let sum = graph.names().tensors["sum_c"];
    graph.tensors[sum].dtype = "float64".into();
    assert!(error(&graph, &together).contains("bucket 0 is of float32, this tensor of float64"));
}

#[test]
fn a_bucket_is_no_larger_than_what_hides_best() {
    let graph = graph();
    // 48 bytes; a latency of 2 seconds, a second for a byte.
    let mut overlapping = cluster(&[1.0, 1.0], 1.0, 1.0);
    overlapping.overlap = 1.0;
    // The square root of 32 bytes times 2 seconds: less than one gradient.
    let alone = bucketed(&graph, &overlapping, program(&graph, &PROGRAM));
    assert_eq!(in_buckets(&alone), [] as [&str; 0]);
    overlapping.overlap = 0.0;
    let all = bucketed(&graph, &overlapping, program(&graph, &PROGRAM));
    assert_eq!(in_buckets(&all).len(), 2);
}

#[test]
fn smaller_buckets_where_memory_is_scarce() {
    let mut graph = graph();
    for tensor in &mut graph.tensors {
        tensor.bytes *= 0.3 * LARGEST / 16.0;
    }
    let (cluster, shares) = (cluster(&[1.0, 1.0], 1e3, 1.0), shares(&graph));
    let (costs, names) = (CostModel::new(&graph, &cluster, &shares), graph.names());
    // Two gradients that are each 0.3 of the largest bucket.
    let count = |halvings| {
        in_buckets(&Merger::new(&costs, &names, &program(&graph, &PROGRAM), halvings).run(&program(&graph, &PROGRAM)))
            .len()
    };
    assert_eq!([count(0), count(1)], [2, 0]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn buckets_are_never_slower(layers in 1..4usize, overlap in prop::sample::select(vec![0.0, 0.5, 1.0]), room in 0.5..1.2_f64, seed: u64) {
        let graph = composed(perceptron(layers, [8, 4, 6]), &mut Random(seed));
        let mut cluster = cluster(&[1.0, 2.0], 1e6, 1e-3);
        cluster.overlap = overlap;
        let before = crate::testing::random_program(&graph, &mut Random(seed));
        let most = step(&graph, &cluster, &before).memory.into_iter().fold(0.0, f64::max);
        for member in &mut cluster.root.members {
            if let crate::cluster::Member::Device(device) = member {
                (device.memory, device.reserve) = (room * most, 0.0);
            }
        }
        let after = bucketed(&graph, &cluster, before.clone());
        let (before, after) = (step(&graph, &cluster, &before), step(&graph, &cluster, &after));
        prop_assert!(after.seconds <= before.seconds);
        prop_assert!(after.communication <= before.communication * (1.0 + 1e-9));
        prop_assert_eq!(after.compute, before.compute);
        let overrun = before.memory.iter().any(|&held| held > room * most);
        for (after, before) in after.memory.iter().zip(&before.memory) {
            let beyond = if overrun { BEYOND } else { 0.0 };
            prop_assert!(*after <= (room * most).max(before * (1.0 + beyond)));
        }
    }
}
