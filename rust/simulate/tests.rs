//! Closed forms on hand-made programs; bounds and orders on random ones.

use super::run::advance;
use super::*;
use crate::cluster::{Cluster, Group, Link, Member};
use crate::graph::{Collective, InputKind, OutputKind};
use crate::program::Conversion;
use crate::testing::{GraphBuilder, Random, cluster, composed, perceptron, program, random_program};
use crate::validate::{Step, validate};
use proptest::prelude::*;

/// Operators are bound by their flops: `first` of 4 and `second` of 2 seconds on a device of one FLOP/s; `first`'s
/// result can be partial.
fn graph() -> Graph {
    let mut builder = GraphBuilder::new(&[("batch", 8)]);
    let x = builder.input(InputKind::Input, "x", &[0]);
    let first = builder.operator("first", &[x], &[0], 4.0, &["S0 -> S0"]);
    let total = builder.operator("total", &[first], &[], 0.0, &["S0 -> P"]);
    let second = builder.operator("second", &[x], &[0], 2.0, &["S0 -> S0"]);
    let reader = builder.operator("reader", &[second, total], &[0], 1.0, &["S0 R -> S0"]);
    for (name, tensor) in [("total", total), ("second", second), ("reader", reader)] {
        let kind = if name == "total" {
            OutputKind::Loss
        } else {
            OutputKind::Output
        };
        builder.output(kind, name, tensor, None);
    }
    builder.finish()
}

/// The all-reduce of `total` is under way while `second` is computed; `reader` waits for it.
const OVERLAPPING: [&str; 9] = [
    "input x S0",
    "compute first S0 -> S0",
    "compute total S0 -> P",
    "convert total P R builtin",
    "compute second S0 -> S0",
    "compute reader S0 R -> S0",
    "output total total R",
    "output second second S0",
    "output reader reader S0",
];

/// Devices with these FLOP/s, nothing else takes time, but an all-reduce takes `seconds`.
fn machines(flops: &[f64], seconds: f64, overlap: f64) -> Cluster {
    let mut cluster = cluster(flops, 1e12, seconds / (2.0 * (flops.len() - 1) as f64));
    cluster.overlap = overlap;
    for member in &mut cluster.root.members {
        if let Member::Device(device) = member {
            device.launch_overhead = 0.0;
            device.memory_bandwidth = 1e12;
        }
    }
    cluster
}

fn run(cluster: &Cluster, batch: &[f64], lines: &[&str]) -> Simulation {
    let graph = graph();
    let valid = validate(&graph, &program(&graph, lines)).expect("a valid program");
    let options = Options {
        timeline: true,
        ..Options::default()
    };
    simulate(&graph, cluster, &vec![batch.to_vec()], &valid, &options)
}

fn close(found: f64, expected: f64) {
    // The bytes of the hand-made graphs take some 1e-11 seconds.
    assert!((found - expected).abs() <= 1e-9, "{found}, expected {expected}");
}

#[test]
fn computation_alone_takes_as_long_as_the_slowest_device() {
    let lines = [
        "input x S0",
        "compute first S0 -> S0",
        "compute total S0 -> P",
        "convert total P R builtin",
    ];
    let rest = ["compute second S0 -> S0", "convert total R S0"];
    assert!(rest.len() == 2 && lines.len() == 4);
    let step = run(&machines(&[1.0, 2.0], 0.0, 0.0), &[0.5, 0.5], &OVERLAPPING);
    close(step.seconds, 3.5);
    close(step.compute[0], 3.5);
    close(step.compute[1], 1.75);
    close(step.communication, 0.0);
    // In proportion to speed both take as long; without a share a device does nothing.
    close(
        run(&machines(&[1.0, 3.0], 0.0, 0.0), &[0.25, 0.75], &OVERLAPPING).seconds,
        7.0 / 4.0,
    );
    let one = run(&machines(&[1.0, 2.0], 0.0, 0.0), &[0.0, 1.0], &OVERLAPPING);
    close(one.seconds, 3.5);
    assert_eq!(one.compute[0], 0.0);
}

#[test]
fn an_all_reduce_hides_as_far_as_the_overlap_says() {
    // 2 s, the all-reduce with 1 s beside it, then the reader of half a second.
    let seconds =
        |time: f64, overlap: f64| run(&machines(&[1.0, 1.0], time, overlap), &[0.5, 0.5], &OVERLAPPING).seconds;
    for time in [0.25, 0.5, 1.0, 4.0] {
        close(seconds(time, 0.0), 2.0 + time + 1.0 + 0.5);
        close(seconds(time, 1.0), 2.0 + f64::max(time, 1.0) + 0.5);
        close(seconds(time, 0.5), 2.0 + f64::max(time, 1.0 + 0.5 * time) + 0.5);
    }
}

#[test]
fn a_collective_waits_for_the_slowest_and_fast_devices_go_on() {
    // Device 0 reaches the all-reduce after 1 s, device 1 after 2 s; it lasts 1 s. No overlap.
    let step = run(&machines(&[2.0, 1.0], 1.0, 0.0), &[0.5, 0.5], &OVERLAPPING);
    let events = |device: usize| {
        let events = step.timeline.iter().filter(move |event| event.device == device);
        events
            .map(|event| (event.name.as_str(), event.start, event.end))
            .collect::<Vec<_>>()
    };
    let expected = |device: usize, list: &[(&str, f64, f64)]| {
        for (found, expected) in events(device)
            .into_iter()
            .filter(|event| event.2 - event.1 > 1e-6)
            .zip(list)
        {
            assert_eq!(found.0, expected.0);
            close(found.1, expected.1);
            close(found.2, expected.2);
        }
    };
    // While device 0 waits, it computes what does not need the result.
    expected(
        0,
        &[
            ("first", 0.0, 1.0),
            ("all_reduce total", 2.0, 3.0),
            ("second", 1.0, 1.5),
            ("reader", 3.0, 3.25),
        ],
    );
    expected(
        1,
        &[
            ("first", 0.0, 2.0),
            ("all_reduce total", 2.0, 3.0),
            ("second", 3.0, 4.0),
            ("reader", 4.0, 4.5),
        ],
    );
    close(step.seconds, 4.5);
    close(step.communication, 1.0);
}

#[test]
fn an_operator_under_way_is_slowed_by_a_collective() {
    // Device 0 (FLOP/s 1) is in `second` from 2 to 4 when device 1 arrives at 2.5: 1 s of all-reduce at overlap 0.25.
    let uneven = machines(&[1.0, 0.8], 1.0, 0.25);
    // `second` is replicated: both devices do all of it.
    let lines = [
        "input x R",
        "convert x R S0",
        "compute first S0 -> S0",
        "compute total S0 -> P",
        "convert total P R builtin",
        "compute second R -> R",
        "convert second R S0",
        "compute reader S0 R -> S0",
        "output total total R",
        "output second second R",
        "output reader reader S0",
    ];
    let step = run(&uneven, &[0.5, 0.5], &lines);
    let second = step
        .timeline
        .iter()
        .find(|event| event.device == 0 && event.name == "second")
        .expect("an event");
    close(second.start, 2.0);
    // 0.5 s before the collective, 0.25 s of work during it, 1.25 s after it.
    close(second.end, 2.5 + 1.0 + 1.25);
}

#[test]
fn contention_makes_collectives_beside_computation_longer() {
    // 1 s of all-reduce beside `second`, which follows it, or at once before its reader.
    let lines = |order: [usize; 2]| {
        let moved = ["convert total P R builtin", "compute second R -> R"];
        [
            "input x R",
            "convert x R S0",
            "compute first S0 -> S0",
            "compute total S0 -> P",
            moved[order[0]],
            moved[order[1]],
            "convert second R S0",
            "compute reader S0 R -> S0",
            "output total total R",
            "output second second R",
            "output reader reader S0",
        ]
    };
    let mut cluster = machines(&[1.0, 1.0], 1.0, 1.0);
    cluster.contention = 0.25;
    for (overlap, order, seconds) in [(1.0, [0, 1], 1.25), (1.0, [1, 0], 1.0), (0.0, [0, 1], 1.0)] {
        cluster.overlap = overlap;
        let step = run(&cluster, &[0.5, 0.5], &lines(order));
        close(step.communication, seconds);
    }
}

#[test]
fn an_operator_that_ends_within_a_rounding_of_a_collective_is_done() {
    // 0x1.043075fb0a4acp-10, 0x1.19c98b1661518p-7 and 0x1.3a4f99d5c29adp-7, by their bits.
    let ready = f64::from_bits(0x3f50_4307_5fb0_a4ac);
    let work = f64::from_bits(0x3f81_9c98_b166_1518);
    let begin = f64::from_bits(0x3f83_a4f9_9d5c_29ad);
    assert_eq!(begin.next_up(), ready + work);
    assert!(work - (begin - ready) <= 0.0, "nothing is left by then");
    for rate in [0.0, 0.5, 1.0] {
        let mut pending = 0;
        let (start, end) = advance(&[(begin, begin + 1.0)], &mut pending, rate, ready, work);
        assert_eq!((start, end, pending), (ready, begin, 0), "at rate {rate}");
    }
}

#[test]
fn an_uneven_padded_gather_moves_the_largest_share() {
    let mut builder = GraphBuilder::new(&[("batch", 8)]);
    let x = builder.input(InputKind::Input, "x", &[0]);
    builder.output(OutputKind::Loss, "x", x, None);
    let graph = builder.finish();
    let cluster = cluster(&[1e9; 3], 1e6, 1e-3);
    let shares = vec![vec![0.625, 0.25, 0.125]];
    for (how, expected) in [
        ("padded", 2.0 * 1e-3 + 2.0 * 0.625 * 32.0 / 1e6),
        ("grouped", 6.0 * 1e-3 + 32.0 / 1e6),
        ("exchange", 2.0 * 1e-3 + 2.0 * 0.625 * 32.0 / 1e6),
    ] {
        let convert = format!("convert x S0 R {how}");
        let lines = ["input x S0", convert.as_str(), "output x x R"];
        let valid = validate(&graph, &program(&graph, &lines)).expect("a valid program");
        let step = simulate(&graph, &cluster, &shares, &valid, &Options::default());
        close(step.seconds, expected);
        close(step.communication, expected);
        assert!(step.timeline.is_empty() && step.memory_timeline.is_empty());
    }
}

#[test]
fn a_link_of_one_member_does_not_slow_the_cluster() {
    let mut tree = cluster(&[1e9; 2], 1e6, 1e-3);
    let inner = Group {
        link: Link {
            bandwidth: 1.0,
            latency: 1.0,
            ..Link::default()
        },
        members: vec![tree.root.members.remove(0)],
    };
    tree.root.members.insert(0, Member::Group(inner));
    assert_eq!(
        tree.bottleneck(),
        Link {
            bandwidth: 1e6,
            latency: 1e-3,
            ..Link::default()
        }
    );
}

/// An operator of 4 seconds on a device of one FLOP/s, with an all-reduce in its middle.
fn composite(flops: [f64; 2], batch: [f64; 2], seconds: f64, overlap: f64) -> Simulation {
    let mut builder = GraphBuilder::new(&[("batch", 8)]);
    let x = builder.input(InputKind::Input, "x", &[0]);
    let first = builder.operator("first", &[x], &[0], 4.0, &[]);
    let conversion = Conversion::AllReduce;
    let collective = Collective {
        conversion,
        bytes: 4.0,
        axis: None,
    };
    builder.composite(first, "inside", "S0 -> S0", &[collective]);
    builder.output(OutputKind::Output, "first", first, None);
    let graph = builder.finish();
    let lines = ["input x S0", "compute first S0 -> S0", "output first first S0"];
    let valid = validate(&graph, &program(&graph, &lines)).expect("a valid program");
    let options = Options {
        timeline: true,
        ..Options::default()
    };
    let cluster = machines(&flops, seconds, overlap);
    simulate(&graph, &cluster, &vec![batch.to_vec()], &valid, &options)
}

#[test]
fn devices_wait_for_each_other_inside_a_composite() {
    for overlap in [0.0, 0.5, 1.0] {
        // Two seconds on the one, one on the other, half of it before the all-reduce and half behind.
        let step = composite([1.0, 2.0], [0.5, 0.5], 0.25, overlap);
        close(step.seconds, 1.0 + 0.25 + 1.0);
        close(step.compute[0], 2.0);
        close(step.compute[1], 1.0);
        close(step.communication, 0.25);
        // A device without a share computes nothing, and takes part.
        let step = composite([1.0, 2.0], [0.0, 1.0], 0.25, overlap);
        close(step.seconds, 1.0 + 0.25 + 1.0);
        close(step.compute[0], 0.0);
        let streams = step.timeline.iter().filter(|event| event.device == 0);
        assert_eq!(
            streams.map(|event| event.stream).collect::<Vec<_>>(),
            [Stream::Communication]
        );
    }
}

/// A random program on a random cluster.
fn random_step(seed: u64) -> (Graph, Cluster, Shares, ValidProgram, Random) {
    let mut random = Random(seed);
    let graph = composed(perceptron(1 + random.below(2), [12, 4, 8]), &mut random);
    let cluster = random.cluster();
    let shares = random.shares(&graph, cluster.devices().len());
    let valid = validate(&graph, &random_program(&graph, &mut random)).expect("a valid program");
    (graph, cluster, shares, valid, random)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn prices_bound_the_time_from_below(seed: u64, theta in 0.0..=1.0f64) {
        let (graph, cluster, shares, valid, mut random) = random_step(seed);
        let step = simulate(&graph, &cluster, &shares, &valid, &Options::default());
        let devices = step.compute.len();
        let weights: Vec<f64> = (0..devices).map(|_| random.unit() * random.below(2) as f64 + 1e-9).collect();
        let total: f64 = weights.iter().sum();
        let compute: f64 = weights.iter().zip(&step.compute).map(|(weight, compute)| weight / total * compute).sum();
        let bound = theta * compute + (1.0 - theta * cluster.hidden()) * step.communication;
        prop_assert!(bound <= step.seconds * (1.0 + 1e-12), "{bound} > {}", step.seconds);
    }

    #[test]
    fn more_overlap_is_never_slower_and_a_step_is_no_longer_than_all_it_does(seed: u64) {
        let (graph, mut cluster, shares, valid, _) = random_step(seed);
        let mut last = f64::INFINITY;
        for overlap in [0.0, 0.3, 0.7, 1.0] {
            cluster.overlap = overlap;
            let step = simulate(&graph, &cluster, &shares, &valid, &Options::default());
            prop_assert!(step.seconds <= last * (1.0 + 1e-12));
            prop_assert!(step.seconds <= (step.compute.iter().sum::<f64>() + step.communication) * (1.0 + 1e-12));
            last = step.seconds;
        }
    }

    #[test]
    fn one_device_of_each_kind_stands_for_all(seed: u64) {
        let (graph, _, _, valid, mut random) = random_step(seed);
        let mut cluster = crate::testing::cluster(&[1e9, 1e9, 2e9, 2e9, 2e9], 1e8, 1e-5);
        cluster.overlap = random.unit();
        cluster.interference = [0.0, random.unit()][random.below(2)];
        let halves = random.shares(&graph, 2);
        let spread = |list: &Vec<f64>| vec![list[0] / 2.0, list[0] / 2.0, list[1] / 4.0, list[1] / 4.0, list[1] / 2.0];
        let shares: Shares = halves.iter().map(spread).collect();
        let step = simulate(&graph, &cluster, &shares, &valid, &Options::default());
        // With a timeline all devices are simulated.
        let options = Options { timeline: true, ..Options::default() };
        let all = Simulation { timeline: Vec::new(), memory_timeline: Vec::new(), ..simulate(&graph, &cluster, &shares, &valid, &options) };
        prop_assert_eq!(&step, &all);
        prop_assert!(step.compute[0] == step.compute[1] && step.memory[2] == step.memory[3]);
        // The lines of the first of each kind are those of all.
        let every = simulate(&graph, &cluster, &shares, &valid, &options);
        let options = Options { timeline: true, kinds: true, ..Options::default() };
        let firsts = simulate(&graph, &cluster, &shares, &valid, &options);
        prop_assert_eq!((&firsts.compute, &firsts.memory), (&every.compute, &every.memory));
        let mut kinds = firsts.kinds.clone();
        kinds.sort_unstable();
        kinds.dedup();
        for (device, first) in firsts.kinds.iter().enumerate() {
            let of = |step: &Simulation, device: usize| -> Vec<Event> {
                let events = step.timeline.iter().filter(|event| event.device == device);
                events.map(|event| Event { device: 0, ..event.clone() }).collect()
            };
            prop_assert_eq!(of(&firsts, *first), of(&every, device));
            let line = kinds.iter().position(|kind| kind == first).expect("a kind");
            prop_assert_eq!(&firsts.memory_timeline[line], &every.memory_timeline[device]);
        }
        for event in &every.timeline {
            if let Step::Compute { operator, .. } = &valid.steps[event.instruction] {
                prop_assert!(event.name.ends_with(&graph.operators[*operator].name));
            }
        }
    }

    #[test]
    fn streams_do_one_thing_at_a_time(seed: u64) {
        let (graph, cluster, shares, valid, _) = random_step(seed);
        let options = Options { timeline: true, ..Options::default() };
        let step = simulate(&graph, &cluster, &shares, &valid, &options);
        for device in 0..step.compute.len() {
            for stream in [Stream::Computation, Stream::Communication] {
                let mut end = 0.0;
                for event in step.timeline.iter().filter(|event| event.device == device && event.stream == stream) {
                    prop_assert!(event.start >= end && event.end >= event.start);
                    end = event.end;
                }
                prop_assert!(end <= step.seconds);
            }
            let line = &step.memory_timeline[device];
            prop_assert!(line.is_sorted_by(|one, next| one.0 < next.0 && one.1 != next.1));
            prop_assert!(line.iter().all(|point| (0.0..=step.seconds).contains(&point.0)));
            let most = line.iter().map(|point| point.1).fold(0.0, f64::max);
            prop_assert!((most - step.memory[device]).abs() <= 1e-9 * most, "{most}, {}", step.memory[device]);
        }
    }
}
