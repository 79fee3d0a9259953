//! Closed forms on hand-made graphs, and slopes against finite differences.

mod hosts;
mod measured;
mod packing;
mod resplit;

use super::*;
use crate::cluster::Member;
use crate::graph::{Collective, InputKind};
use crate::testing::{GraphBuilder, MATMUL, Random, cluster, perceptron, placements};
use proptest::prelude::*;

const LATENCY: f64 = 1e-5;
const BANDWIDTH: f64 = 1e8;

/// `y = x w` with axes of 8, 4 and 2 units; `y` is 64 bytes.
fn product() -> Graph {
    let mut builder = GraphBuilder::new(&[("m", 8), ("k", 4), ("n", 2)]);
    let x = builder.input(InputKind::Input, "x", &[0, 1]);
    let w = builder.input(InputKind::Parameter, "w", &[1, 2]);
    builder.operator("y", &[x, w], &[0, 2], 1e6, &MATMUL);
    builder.finish()
}

fn close(found: f64, expected: f64) {
    assert!(
        (found - expected).abs() <= 1e-12 * expected.abs(),
        "{found}, expected {expected}"
    );
}

/// Costs of the product on devices with these FLOP/s (ten times that is their memory bandwidth, a microsecond their
/// launch overhead).
fn with_costs(flops: &[f64], shares: Shares, check: impl FnOnce(&CostModel)) {
    let (graph, cluster) = (product(), cluster(flops, BANDWIDTH, LATENCY));
    check(&CostModel::new(&graph, &cluster, &shares));
}

#[test]
fn computation_takes_the_longer_side_of_the_roofline() {
    let shares = vec![vec![0.75, 0.25, 0.0], vec![1.0, 0.0, 0.0], vec![0.5, 0.0, 0.5]];
    with_costs(&[1e9, 2e9, 4e9], shares.clone(), |costs| {
        let choices = &product().operators[0].choices;
        // Replicated, then along m: the flops decide.
        close(costs.compute(0, &choices[0], 1), 1e-6 + 1e6 / 2e9);
        close(costs.compute(0, &choices[1], 0), 1e-6 + 0.75 * 1e6 / 1e9);
        assert_eq!(costs.compute(0, &choices[1], 2), 0.0);
    });
    // Few flops: the bytes decide. Along m, `x` (128) and `y` (64) shrink, `w` (32) does not.
    let mut graph = product();
    graph.operators[0].flops = 1.0;
    let cluster = cluster(&[1e9, 2e9, 4e9], BANDWIDTH, LATENCY);
    let costs = CostModel::new(&graph, &cluster, &shares);
    close(
        costs.compute(0, &graph.operators[0].choices[1], 0),
        1e-6 + (32.0 + 0.75 * 192.0) / 1e10,
    );
    close(costs.compute(0, &graph.operators[0].choices[0], 0), 1e-6 + 224.0 / 1e10);
    graph.operators[0].layout = true;
    let costs = CostModel::new(&graph, &cluster, &shares);
    assert_eq!(costs.compute(0, &graph.operators[0].choices[0], 0), 0.0);
}

#[test]
fn speed_depends_on_the_element_type() {
    let mut graph = product();
    graph.operators[0].dtype = "float16".into();
    let mut cluster = cluster(&[1e9], BANDWIDTH, LATENCY);
    if let crate::cluster::Member::Device(device) = &mut cluster.root.members[0] {
        device.flops.insert("float16".into(), 4e9);
    }
    let shares = vec![vec![1.0]; 3];
    let costs = CostModel::new(&graph, &cluster, &shares);
    close(costs.compute(0, &graph.operators[0].choices[0], 0), 1e-6 + 1e6 / 4e9);
}

#[test]
fn collectives_have_their_closed_forms() {
    let shares = vec![vec![0.5, 0.375, 0.125], vec![0.0, 0.75, 0.25], vec![0.5, 0.0, 0.5]];
    with_costs(&[1e9; 3], shares, |costs| {
        let [r, p, m, n] = ["R", "P", "S0", "S1"].map(placements);
        let seconds = |from: &Vec<Placement>, to: &Vec<Placement>, how| costs.collective(2, from, to, how);
        let time = |latencies: f64, bytes: f64| latencies * LATENCY + bytes / BANDWIDTH;
        use Implementation::{Builtin, Exchange, Grouped, Padded};
        for (from, to) in [(&m, &r), (&p, &m)] {
            close(seconds(from, to, Padded), time(2.0, 2.0 * 0.5 * 64.0));
            close(seconds(from, to, Grouped), time(3.0 * 2.0, 64.0));
            // The device with half sends 2 x 0.5; the one with an eighth receives 0.875.
            close(seconds(from, to, Exchange), time(2.0, 64.0));
        }
        // A device without a share is left out of the grouped ones. Along columns the tensor is copied besides: read and
        // written at 1e10 bytes per second; a device without a share joins all of it.
        let copied = 2.0 * 64.0 / 1e10;
        close(seconds(&n, &r, Grouped), time(2.0 * 2.0, 64.0) + copied);
        close(seconds(&p, &n, Grouped), time(2.0 * 2.0, 64.0));
        for (from, to) in [(&n, &r), (&p, &n)] {
            close(seconds(from, to, Padded), time(2.0, 2.0 * 0.5 * 64.0) + copied);
        }
        close(seconds(&p, &r, Builtin), time(4.0, 4.0 / 3.0 * 64.0));
        // a (1 - b) and b (1 - a): 0.25 and 0.25; 0.375 and 0; 0.0625 and 0.4375.
        close(seconds(&m, &n, Exchange), time(2.0, 0.4375 * 64.0));
        close(seconds(&n, &m, Exchange), time(2.0, 0.4375 * 64.0));
    });
}

#[test]
fn collectives_inside_a_composite_cost_as_conversions() {
    let shares = vec![vec![0.5, 0.375, 0.125]; 3];
    with_costs(&[1e9; 3], shares, |costs| {
        let inside = |conversion, axis| {
            let bytes = 64.0;
            let collectives = vec![Collective {
                conversion,
                bytes,
                axis,
            }];
            costs.inside(&Choice {
                collectives,
                ..Choice::default()
            })
        };
        let [r, p, n] = ["R", "P", "S1"].map(placements);
        let padded = Implementation::Padded;
        close(
            inside(Conversion::AllGather, Some(0)),
            costs.collective(2, &n, &r, padded),
        );
        close(
            inside(Conversion::ReduceScatter, Some(0)),
            costs.collective(2, &p, &n, padded),
        );
        let all_reduce = costs.collective(2, &p, &r, Implementation::Builtin);
        close(inside(Conversion::AllReduce, None), all_reduce);
        // 64 bytes of each device go to both others; the largest share is passed on twice.
        close(
            inside(Conversion::AllGather, None),
            2.0 * LATENCY + 2.0 * 64.0 / BANDWIDTH,
        );
        close(
            inside(Conversion::AllToAll, Some(0)),
            2.0 * LATENCY + 2.0 * 32.0 / BANDWIDTH,
        );
        // They follow each other, and each makes one launch more.
        let collective = Collective {
            conversion: Conversion::AllReduce,
            bytes: 64.0,
            axis: None,
        };
        let plain = product().operators[0].choices[1].clone();
        let twice = Choice {
            collectives: vec![collective; 2],
            ..plain.clone()
        };
        close(costs.inside(&twice), 2.0 * all_reduce);
        close(costs.compute(0, &twice, 0), costs.compute(0, &plain, 0) + 2e-6);
    });
}

#[test]
fn the_cheapest_implementation_is_taken_and_ties_go_to_padded() {
    let even = vec![vec![0.5, 0.5]; 3];
    with_costs(&[1e9; 2], even, |costs| {
        let gather = costs
            .conversion(2, &placements("S0"), &placements("R"))
            .expect("a conversion");
        assert_eq!(gather.implementation, Some(Implementation::Padded));
        close(gather.seconds, LATENCY + 32.0 / BANDWIDTH);
    });
    // 3 devices, one with all: padded moves 2 T, grouped T for 2 latencies.
    let one = vec![vec![1.0, 0.0, 0.0]; 3];
    with_costs(&[1e9; 3], one, |costs| {
        let gather = costs
            .conversion(2, &placements("S0"), &placements("R"))
            .expect("a conversion");
        assert_eq!(gather.implementation, Some(Implementation::Grouped));
        close(gather.seconds, 2.0 * LATENCY + 64.0 / BANDWIDTH);
    });
}

#[test]
fn local_steps_are_free_and_what_cannot_be_is_none() {
    let mut graph = product();
    graph.tensors[0].summable = false;
    let cluster = cluster(&[1e9; 2], BANDWIDTH, LATENCY);
    let shares = vec![vec![0.5, 0.5]; 3];
    let costs = CostModel::new(&graph, &cluster, &shares);
    let convert = |tensor, from, to| costs.conversion(tensor, &placements(from), &placements(to));
    for (from, to, conversion) in [
        ("R", "S1", Conversion::Slice),
        ("R", "P", Conversion::KeepOne),
        ("S0", "P", Conversion::Pad),
    ] {
        let expected = ConversionCost {
            conversion,
            implementation: None,
            seconds: 0.0,
        };
        assert_eq!(convert(2, from, to), Some(expected));
    }
    for (tensor, from, to) in [(2, "R", "R"), (2, "R", "S2"), (2, "S2", "R"), (0, "R", "P")] {
        assert_eq!(convert(tensor, from, to), None, "{tensor} {from} {to}");
    }
}

#[test]
fn measured_collectives_replace_the_link() {
    let (graph, mut cluster) = (product(), cluster(&[1e9; 3], BANDWIDTH, LATENCY));
    for name in ["all_gather/padded", "all_gather/grouped", "all_reduce/builtin"] {
        cluster.collectives.insert(
            name.into(),
            CollectiveCost {
                latency: 3e-4,
                bandwidth: 1e6,
                error: None,
            },
        );
    }
    cluster.validate().expect("a valid cluster");
    let shares = vec![vec![0.75, 0.25, 0.0]; 3];
    let costs = CostModel::new(&graph, &cluster, &shares);
    let [r, p, s] = ["R", "P", "S0"].map(placements);
    close(
        costs.collective(2, &s, &r, Implementation::Padded),
        3e-4 + 2.0 * 0.75 * 64.0 / 1e6,
    );
    // Two of three devices have a share.
    close(costs.collective(2, &s, &r, Implementation::Grouped), 2e-4 + 64.0 / 1e6);
    close(
        costs.collective(2, &p, &r, Implementation::Builtin),
        3e-4 + 4.0 / 3.0 * 64.0 / 1e6,
    );
    close(
        costs.collective(2, &s, &r, Implementation::Exchange),
        2.0 * LATENCY + 1.5 * 64.0 / BANDWIDTH,
    );
}

#[test]
fn one_device_needs_no_communication() {
    with_costs(&[1e9], vec![vec![1.0]; 3], |costs| {
        for (from, to) in [("S0", "R"), ("P", "R"), ("P", "S0"), ("S0", "S1")] {
            let cost = costs
                .conversion(2, &placements(from), &placements(to))
                .expect("a conversion");
            assert_eq!(cost.seconds, 0.0);
        }
    });
}

/// Every cost of a graph: operators under each choice and conversions in each way, by device.
fn all_costs(costs: &CostModel, graph: &Graph, device: usize) -> Vec<Affine> {
    let mut found = Vec::new();
    for (index, operator) in graph.operators.iter().enumerate() {
        found.extend(
            operator
                .choices
                .iter()
                .map(|choice| costs.compute_affine(index, choice, device)),
        );
    }
    let all = ["R", "P", "S0", "S1"].map(placements);
    for (from, to) in all.iter().flat_map(|from| all.iter().map(move |to| (from, to))) {
        for how in Conversion::between(graph, 0, from, to).map_or(&[][..], Conversion::implementations) {
            found.push(costs.transfer_affine(&Transfer::conversion(graph, 0, from, to, *how), device));
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn slopes_are_finite_differences(seed: u64) {
        const STEP: f64 = 1e-6;
        let random = &mut Random(seed);
        let graph = perceptron(1, [12, 4, 8]);
        let cluster = cluster(&[1e9, 2e9, 3e9], BANDWIDTH, LATENCY);
        let shares: Shares = graph
            .axes
            .iter()
            .map(|_| {
                let list: Vec<f64> = (0..3).map(|_| 0.1 + random.unit()).collect();
                let total: f64 = list.iter().sum();
                list.iter().map(|share| share / total).collect()
            })
            .collect();
        let (axis, device) = (random.below(3), random.below(3));
        let at = |offset: f64| {
            let mut shares = shares.clone();
            shares[axis][device] += offset;
            all_costs(&CostModel::new(&graph, &cluster, &shares), &graph, device)
        };
        let mut smooth = 0;
        for ((here, below), above) in at(0.0).iter().zip(at(-STEP)).zip(at(STEP)) {
            let slope: f64 = here.slopes.iter().flatten().filter(|entry| entry.0 == axis).map(|entry| entry.1).sum();
            let (left, right) = ((here.value - below.value) / STEP, (above.value - here.value) / STEP);
            let scale = here.value + slope.abs();
            if (left - right).abs() <= 1e-4 * scale {
                smooth += 1;
                prop_assert!((slope - (left + right) / 2.0).abs() <= 1e-4 * scale, "{slope} {left} {right}");
            }
        }
        prop_assert!(smooth > 40);
    }

    /// With few units and speeds, many devices are alike: they cost the same, and no other device is left out.
    #[test]
    fn devices_that_are_alike_cost_the_same(seed: u64, count in 2usize..12) {
        let random = &mut Random(seed);
        let flops: Vec<f64> = (0..count).map(|_| [1e9, 2e9][random.below(2)]).collect();
        let shares: Shares = (0..3)
            .map(|_| {
                let units: Vec<f64> = (0..count).map(|device| 1.0 + f64::from(u8::from(device > 0)) * random.below(2) as f64).collect();
                let total: f64 = units.iter().sum();
                units.iter().map(|units| units / total).collect()
            })
            .collect();
        let (graph, cluster) = (product(), cluster(&flops, BANDWIDTH, LATENCY));
        let costs = CostModel::new(&graph, &cluster, &shares);
        for device in 0..count {
            let first = costs.alike()[device];
            prop_assert!(first <= device && costs.alike()[first] == first);
            prop_assert_eq!(all_costs(&costs, &graph, device), all_costs(&costs, &graph, first));
        }
        let collectives = [Conversion::AllGather, Conversion::ReduceScatter].map(|conversion| {
            let implementation = Implementation::Padded;
            Transfer { conversion, implementation, bytes: 64.0, axis: Some(random.below(3)), target: None, leads: false }
        });
        for transfer in collectives {
            let slowest = (0..count).map(|device| costs.transfer_affine(&transfer, device).value).fold(0.0, f64::max);
            prop_assert_eq!(costs.transfer(&transfer), slowest);
        }
    }
}
