//! Closed forms on hand-made programs.

use super::*;
use crate::graph::{Collective, InputKind};
use crate::program::Conversion;
use crate::testing::{GraphBuilder, MATMUL, Random, composed, perceptron, program, random_program, remade};
use crate::validate::validate;
use proptest::prelude::*;

mod optimiser;
mod reuse;

const THREE: [f64; 3] = [0.5, 0.25, 0.25];

fn peak(graph: &Graph, lines: &[&str], device: usize, optimiser_tensors: u32) -> MemoryParts {
    let shares = vec![THREE.to_vec(); graph.axes.len()];
    let valid = validate(graph, &program(graph, lines)).expect("a valid program");
    peaks(
        graph,
        &shares,
        3,
        &[0, 1, 2],
        &valid,
        Optimiser::keeping(optimiser_tensors),
    )[device]
        .parts
        .clone()
}

/// `y = x w` with the gradient `g = x^T t` of `w`; axes of 8 units, so that every tensor has 256 bytes.
fn product(edit: impl FnOnce(&mut Graph)) -> Graph {
    let mut builder = GraphBuilder::new(&[("m", 8), ("k", 8), ("n", 8)]);
    let x = builder.input(InputKind::Input, "x", &[0, 1]);
    let w = builder.input(InputKind::Parameter, "w", &[1, 2]);
    let t = builder.input(InputKind::Tangent, "t", &[0, 2]);
    let y = builder.operator("y", &[x, w], &[0, 2], 1.0, &MATMUL);
    let g = builder.operator("g", &[x, t], &[1, 2], 1.0, &["S0 S0 -> P"]);
    builder.output(OutputKind::Output, "y", y, None);
    builder.output(OutputKind::Gradient, "w", g, Some(w));
    edit(builder.edit());
    builder.finish()
}

const DATA_PARALLEL: [&str; 9] = [
    "input x S0",
    "input w R",
    "input t R",
    "compute y S0 R -> S0",
    "convert t R S0",
    "compute g S0 S0 -> P",
    "convert g P R builtin",
    "output y y S0",
    "output w g R",
];

#[test]
fn the_largest_holders_are_named() {
    let graph = product(|_| {});
    let shares = vec![THREE.to_vec(); graph.axes.len()];
    let valid = validate(&graph, &program(&graph, &DATA_PARALLEL)).expect("a valid program");
    let found = holders(&graph, &shares, 3, &valid, Optimiser::keeping(2), 4);
    let lines = |device: usize| -> Vec<String> {
        let line = |it: &Holder| format!("{:?} {} {} {}", it.part, it.tensor, it.placement[0], it.bytes);
        found[device].iter().map(line).collect()
    };
    let expected = [
        "Optimiser w R 512",
        "Parameter w R 256",
        "Gradient g R 256",
        "Activation t R 256",
    ];
    assert_eq!(lines(0), expected);
    // All of them together are the peak.
    let all = holders(&graph, &shares, 3, &valid, Optimiser::keeping(2), usize::MAX);
    for (device, peak) in peaks(&graph, &shares, 3, &[0, 1, 2], &valid, Optimiser::keeping(2))
        .iter()
        .enumerate()
    {
        let held: f64 = all[device].iter().map(|holder| holder.bytes).sum();
        assert!((held - peak.parts.total()).abs() < 1e-9);
    }
}

#[test]
fn data_parallelism_keeps_whole_parameters() {
    let graph = product(|_| {});
    let whole = 256.0;
    // The peak: the gradient is there as partial sums and reduced; x, t, y and t's copy live too, the last until g
    // is made.
    let expected = |share: f64| MemoryParts {
        parameters: whole,
        gradients: whole,
        optimiser: 2.0 * whole,
        activations: share * whole + whole + share * whole + whole,
        buffers: 0.0,
    };
    assert_eq!(peak(&graph, &DATA_PARALLEL, 0, 2), expected(0.5));
    assert_eq!(peak(&graph, &DATA_PARALLEL, 1, 2), expected(0.25));
    assert_eq!(peak(&graph, &DATA_PARALLEL, 1, 0).optimiser, 0.0);
}

#[test]
fn sharded_storage_shrinks_parameters_gradients_and_optimiser() {
    let graph = product(|_| {});
    let lines = [
        "input x S0",
        "input w S0",
        "input t R",
        "convert w S0 R padded",
        "compute y S0 R -> S0",
        "convert t R S0",
        "compute g S0 S0 -> P",
        "convert g P S0 exchange",
        "output y y S0",
        "output w g S0",
    ];
    let parts = peak(&graph, &lines, 0, 2);
    assert_eq!((parts.parameters, parts.optimiser), (128.0, 256.0));
    // Most is held while g is reduced: x, t, y, partial sums of g, and its share.
    assert_eq!(
        (parts.activations, parts.gradients),
        (128.0 + 256.0 + 128.0 + 256.0, 128.0)
    );
    // What is sent lies as the tensor does; a share is received from each device.
    assert_eq!(parts.buffers, 3.0 * 128.0);
    // Here most is held while w is gathered: the share is padded, and each device's padded share arrives.
    let parts = peak(&graph, &lines, 1, 2);
    assert_eq!((parts.activations, parts.buffers), (64.0 + 256.0 + 256.0, 3.0 * 128.0));
}

#[test]
fn the_optimiser_keeps_four_bytes_at_least_and_nothing_for_what_is_not_trained() {
    let half = product(|graph| {
        graph.tensors[1].dtype = "bfloat16".into();
        graph.tensors[1].bytes = 128.0;
    });
    let parts = peak(&half, &DATA_PARALLEL, 0, 2);
    assert_eq!((parts.parameters, parts.optimiser), (128.0, 2.0 * 256.0));
    let double = product(|graph| {
        graph.tensors[1].dtype = "float64".into();
        graph.tensors[1].bytes = 512.0;
    });
    assert_eq!(peak(&double, &DATA_PARALLEL, 0, 1).optimiser, 512.0);
    let frozen = product(|graph| graph.outputs.truncate(1));
    let lines = ["input x S0", "input w R", "compute y S0 R -> S0", "output y y S0"];
    let parts = peak(&frozen, &lines, 0, 2);
    assert_eq!((parts.parameters, parts.optimiser, parts.gradients), (256.0, 0.0, 0.0));
}

#[test]
fn intermediate_values_die_after_their_last_reader() {
    let mut builder = GraphBuilder::new(&[("m", 8), ("k", 8)]);
    let mut x = builder.input(InputKind::Input, "x", &[0, 1]);
    for name in ["a", "b", "c", "d"] {
        x = builder.operator(name, &[x], &[0, 1], 1.0, &[]);
    }
    builder.output(OutputKind::Loss, "d", x, None);
    let graph = builder.finish();
    let lines = [
        "input x R",
        "compute a R -> R",
        "compute b R -> R",
        "compute c R -> R",
        "compute d R -> R",
        "output d d R",
    ];
    // The input stays; an operand and its result live together.
    assert_eq!(peak(&graph, &lines, 0, 2).total(), 3.0 * 256.0);
}

#[test]
fn layout_results_alias_their_operand_and_keep_it_alive() {
    let mut builder = GraphBuilder::new(&[("m", 8), ("k", 8)]);
    let x = builder.input(InputKind::Input, "x", &[0, 1]);
    let a = builder.operator("a", &[x], &[0, 1], 1.0, &[]);
    let view = builder.layout("view", a, &[1, 0], &[]);
    let b = builder.operator("b", &[x], &[0, 1], 1.0, &[]);
    let c = builder.operator("c", &[b], &[0, 1], 1.0, &[]);
    let d = builder.operator("d", &[view, c], &[0, 1], 1.0, &[]);
    builder.output(OutputKind::Loss, "d", d, None);
    let graph = builder.finish();
    let lines = [
        "input x R",
        "compute a R -> R",
        "compute view R -> R",
        "compute b R -> R",
        "compute c R -> R",
        "compute d R R -> R",
        "output d d R",
    ];
    // While c is made: x, a (through its view), b, c.
    assert_eq!(peak(&graph, &lines, 0, 2).total(), 4.0 * 256.0);
}

/// Three operators forward, whose results are read backward; the first result through a view.
fn there_and_back() -> Graph {
    let mut builder = GraphBuilder::new(&[("m", 8), ("k", 8)]);
    let x = builder.input(InputKind::Input, "x", &[0, 1]);
    let first = builder.operator("first", &[x], &[0, 1], 1.0, &[]);
    let view = builder.layout("view", first, &[1, 0], &[]);
    let second = builder.operator("second", &[first], &[0, 1], 1.0, &[]);
    let third = builder.operator("third", &[second], &[0, 1], 1.0, &[]);
    let turned = builder.operator("turned", &[third], &[0, 1], 1.0, &[]);
    let back = builder.operator("back", &[turned, third], &[0, 1], 1.0, &[]);
    let more = builder.operator("more", &[back, second], &[0, 1], 1.0, &[]);
    let last = builder.operator("last", &[more, view], &[0, 1], 1.0, &[]);
    builder.output(OutputKind::Loss, "last", last, None);
    builder.finish()
}

#[test]
fn what_is_freed_and_made_again_is_not_held_in_between() {
    const FIRST: &str = "compute first R -> R";
    const VIEW: &str = "compute view R -> R";
    const SECOND: &str = "compute second R -> R";
    const THIRD: &str = "compute third R -> R";
    const FREE: [&str; 2] = ["free first R", "free view R"];
    let graph = there_and_back();
    // What stands before `turned`, `more` and `last`.
    let peak = |turned: &[&'static str], more: &[&'static str], last: &[&'static str]| {
        let mut lines = vec!["input x R", FIRST, VIEW, SECOND];
        lines.extend(turned);
        lines.extend(["compute turned R -> R", "compute back R R -> R"]);
        lines.extend(more);
        lines.push("compute more R R -> R");
        lines.extend(last);
        lines.extend(["compute last R R -> R", "output last last R"]);
        peak(&graph, &lines, 0, 2).total() / 256.0
    };
    // While the last is turned back: x, three results, the turned one, its result.
    let kept = peak(&[THIRD], &[], &[]);
    assert_eq!(kept, 6.0);
    // A view holds what it views; once it is freed as well, the first result is not there meanwhile.
    assert_eq!(peak(&[FREE[0], THIRD], &[], &[]), kept);
    assert_eq!(peak(&[FREE[0], FREE[1], THIRD], &[], &[FIRST, VIEW]), kept - 1.0);
    // A free alone changes nothing: a value that nothing reads any more was given back already.
    assert_eq!(peak(&[THIRD], &[], &["free third R", "free turned R"]), kept);
    // The second as well: it is made again from the first, and both are there for `more`, with x, its other operand
    // and its result; where the first goes once more, one fewer is.
    let freed = [FREE[0], FREE[1], THIRD, "free second R"];
    assert_eq!(peak(&freed, &[FIRST, VIEW, SECOND], &[]), kept - 1.0);
    assert_eq!(peak(&freed, &[FIRST, SECOND, FREE[0]], &[FIRST, VIEW]), kept - 2.0);
}

#[test]
fn an_all_to_all_holds_what_is_sent_then_what_is_received() {
    let mut builder = GraphBuilder::new(&[("m", 8), ("k", 8)]);
    let x = builder.input(InputKind::Input, "x", &[0, 1]);
    builder.output(OutputKind::Output, "x", x, None);
    let graph = builder.finish();
    let buffers = |shares: Shares| {
        let lines = ["input x S0", "convert x S0 S1 exchange", "output x x S1"];
        let valid = validate(&graph, &program(&graph, &lines)).expect("a valid program");
        let found = peaks(&graph, &shares, 3, &[0, 1, 2], &valid, Optimiser::keeping(2));
        found.iter().map(|peak| peak.parts.buffers).collect::<Vec<f64>>()
    };
    assert_eq!(buffers(vec![THREE.to_vec(), THREE.to_vec()]), [128.0, 64.0, 64.0]);
    assert_eq!(
        buffers(vec![THREE.to_vec(), vec![0.25, 0.25, 0.5]]),
        [128.0, 64.0, 128.0]
    );
}

#[test]
fn gathers_and_scatters_hold_what_is_sent_or_received_and_does_not_lie_so() {
    let mut builder = GraphBuilder::new(&[("m", 8), ("k", 8)]);
    let x = builder.input(InputKind::Input, "x", &[0, 1]);
    builder.output(OutputKind::Output, "x", x, None);
    let graph = builder.finish();
    let buffers = |how: &str, axis: usize, device: usize, shares: [f64; 3]| {
        let graph = &graph;
        let held = |lines: &[&str]| {
            let valid = validate(graph, &program(graph, lines)).expect("a valid program");
            peaks(
                graph,
                &vec![shares.to_vec(); 2],
                3,
                &[0, 1, 2],
                &valid,
                Optimiser::keeping(2),
            )[device]
                .parts
                .buffers
        };
        let gather = format!("convert x S{axis} R {how}");
        let input = format!("input x S{axis}");
        let gathered = held(&[&input, &gather, "output x x R"]);
        let scatter = format!("convert x P S{axis} {how}");
        let output = format!("output x x S{axis}");
        (gathered, held(&["input x R", "convert x R P", &scatter, &output]))
    };
    let equal = [1.0 / 3.0; 3];
    // Along the first axis shares lie one after another; along the second, the tensor is there twice.
    assert_eq!(buffers("padded", 0, 0, equal), (0.0, 0.0));
    assert_eq!(buffers("padded", 1, 0, equal), (256.0, 256.0));
    // The largest share needs no padding of its own.
    assert_eq!(buffers("padded", 0, 0, THREE), (3.0 * 128.0, 3.0 * 128.0));
    // The others pad theirs before what they gather is there, and cut it out once what is scattered is gone.
    assert_eq!(buffers("padded", 1, 1, THREE), (3.0 * 128.0, 4.0 * 128.0 - 64.0));
    assert_eq!(buffers("grouped", 0, 1, THREE), (0.0, 192.0));
    assert_eq!(buffers("grouped", 1, 1, THREE), (256.0, 192.0));
    assert_eq!(buffers("exchange", 0, 1, THREE), (3.0 * 64.0, 3.0 * 64.0));
    assert_eq!(buffers("exchange", 1, 1, THREE), (256.0, 256.0 + 2.0 * 64.0));
}

#[test]
fn collectives_inside_a_composite_hold_their_buffer_and_their_result() {
    let buffers = |conversion, axis| {
        let mut builder = GraphBuilder::new(&[("m", 8), ("k", 8)]);
        let x = builder.input(InputKind::Input, "x", &[0, 1]);
        let y = builder.operator("y", &[x], &[0, 1], 1.0, &[]);
        let collective = Collective {
            conversion,
            bytes: 256.0,
            axis,
        };
        builder.composite(y, "inside", "S0 -> S0", &[collective]);
        builder.output(OutputKind::Output, "y", y, None);
        let graph = builder.finish();
        let lines = ["input x S0", "compute y S0 -> S0", "output y y S0"];
        peak(&graph, &lines, 1, 2).buffers
    };
    assert_eq!(buffers(Conversion::AllReduce, None), 256.0);
    assert_eq!(buffers(Conversion::AllGather, None), 4.0 * 256.0);
    assert_eq!(buffers(Conversion::AllGather, Some(0)), 3.0 * 128.0 + 256.0);
    assert_eq!(buffers(Conversion::ReduceScatter, Some(0)), 4.0 * 128.0);
    // The two largest.
    assert_eq!(buffers(Conversion::AllToAll, Some(0)), 64.0 + 128.0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn slopes_are_finite_differences(seed: u64) {
        const STEP: f64 = 1e-6;
        let random = &mut Random(seed);
        let graph = composed(perceptron(1 + random.below(2), [12, 4, 8]), random);
        let plain = random_program(&graph, random);
        let valid = validate(&graph, &remade(&plain, random, 0.1)).expect("a valid program");
        let shares: Shares = (0..3).map(|_| (0..3).map(|_| 0.1 + random.unit()).collect()).collect();
        let (axis, device) = (random.below(3), random.below(3));
        let mut count = || u32::try_from(random.below(3)).expect("a small number");
        let temporaries = Temporaries { together: count(), in_turn: count(), carried: count() };
        let optimiser = Optimiser { tensors: 2, temporaries };
        let at = |offset: f64| {
            let mut shares = shares.clone();
            shares[axis][device] += offset;
            peaks(&graph, &shares, 3, &[0, 1, 2], &valid, optimiser)[device].clone()
        };
        let (here, below, above) = (at(0.0), at(-STEP), at(STEP));
        // No kink lies between where the slopes agree.
        if below.slopes == above.slopes {
            let difference = (above.parts.total() - below.parts.total()) / (2.0 * STEP);
            prop_assert!((difference - here.slopes[axis]).abs() <= 1e-3 * (1.0 + difference.abs()));
        }
    }
}
