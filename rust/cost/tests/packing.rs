//! Copies along inner axes against closed forms.

use super::*;
use crate::cluster::Member;
use crate::graph::Axis;
use crate::testing::divided;

/// Bytes of a tensor of 8 x 4 x 2 float32 numbers; seconds of copying one, on devices of 1e10 bytes per second.
const BYTES: f64 = 256.0;
const COPY: f64 = 2.0 / 1e10;

/// The tensor, with a run of its two leading axes and one of its two inner axes.
fn tensor() -> Graph {
    let mut builder = GraphBuilder::new(&[("a", 8), ("b", 4), ("c", 2)]);
    builder.input(InputKind::Input, "x", &[0, 1, 2]);
    let mut graph = builder.finish();
    for (name, size, parts) in [("a.b", 32, vec![0, 1]), ("b.c", 8, vec![1, 2])] {
        graph.tensors[0].occurrences.push(graph.axes.len());
        let name = name.into();
        graph.axes.push(Axis {
            name,
            size,
            parts,
            of: None,
        });
    }
    graph
}

/// Seconds by which a collective takes longer than where memory is ever so fast.
fn copies(graph: &Graph, shares: &Shares, measured: bool, from: &str, to: &str, how: Implementation) -> f64 {
    let [slow, fast] = [1e9, 1e29].map(|flops| {
        let mut cluster = cluster(&[flops; 3], BANDWIDTH, LATENCY);
        if measured {
            let line = CollectiveCost {
                latency: 0.0,
                bandwidth: BANDWIDTH,
                error: None,
            };
            cluster.collectives.insert("all_gather/exchange".into(), line);
        }
        let model = CostModel::new(graph, &cluster, shares);
        model.collective(0, &placements(from), &placements(to), how)
    });
    slow - fast
}

#[test]
fn gathers_and_scatters_along_inner_axes_copy_the_tensor() {
    use Implementation::{Exchange, Grouped, Padded};
    let graph = tensor();
    let shares = vec![vec![0.5, 0.25, 0.25]; graph.axes.len()];
    let near = |found: f64, bytes: f64| assert!((found - bytes * COPY).abs() < 1e-9 * COPY * BYTES, "{found} {bytes}");
    for (occurrence, inner) in [("S0", 0.0), ("S1", 1.0), ("S2", 1.0), ("S3", 0.0), ("S4", 1.0)] {
        let gather = |measured, how| copies(&graph, &shares, measured, occurrence, "R", how);
        let scatter = |how| copies(&graph, &shares, false, "P", occurrence, how);
        near(gather(false, Padded), inner * BYTES);
        near(gather(false, Exchange), inner * BYTES);
        // Where it was measured, shares were copied as often.
        near(gather(true, Exchange), 0.0);
        // A device with a quarter puts three quarters beside what it has.
        near(gather(false, Grouped), inner * 0.75 * BYTES);
        near(scatter(Padded), inner * BYTES);
        near(scatter(Exchange), inner * BYTES);
        near(scatter(Grouped), 0.0);
    }
}

#[test]
fn exchanges_between_inner_axes_copy_one_share_more() {
    let mut graph = tensor();
    let shares = vec![vec![0.5, 0.25, 0.25], vec![0.25, 0.125, 0.625], vec![0.0, 0.5, 0.5]];
    graph.axes.truncate(3);
    graph.tensors[0].occurrences.truncate(3);
    let exchanged = |from, to| copies(&graph, &shares, false, from, to, Implementation::Exchange);
    assert!(exchanged("S0", "S1").abs() < 1e-20);
    assert!(exchanged("S2", "S0").abs() < 1e-20);
    // Device 2 sends five eighths, but for the half of them that it keeps, and puts its new half together.
    let cluster = cluster(&[1e9; 3], BANDWIDTH, LATENCY);
    let costs = CostModel::new(&graph, &cluster, &shares);
    let [before, behind] = ["S1", "S2"].map(placements);
    let transfer = Transfer::conversion(&graph, 0, &before, &behind, Implementation::Exchange);
    let found = costs.transfer_affine(&transfer, 2);
    close(
        found.value,
        2.0 * LATENCY + 0.625 * 0.5 * BYTES / BANDWIDTH + 0.5 * BYTES * COPY,
    );
    close(found.slopes[0].expect("of b").1, 0.5 * BYTES / BANDWIDTH);
    close(
        found.slopes[1].expect("of c").1,
        -0.625 * BYTES / BANDWIDTH + BYTES * COPY,
    );
}

#[test]
fn copies_take_what_memory_was_measured_to_take_for_so_many_bytes() {
    let graph = tensor();
    let shares = vec![vec![0.5, 0.25, 0.25]; graph.axes.len()];
    let mut cluster = cluster(&[1e9; 3], BANDWIDTH, LATENCY);
    // Four times as slow beyond 400 bytes: a copy of the whole reads and writes 512, of three quarters 384.
    let points = vec![(100.0, 1.0), (400.0, 4.0), (800.0, 20.0)];
    for member in &mut cluster.root.members {
        let Member::Device(device) = member else {
            panic!("no groups");
        };
        device.measured.insert("memory".into(), points.clone());
    }
    let costs = CostModel::new(&graph, &cluster, &shares);
    let packing = |how| {
        let [from, to] = ["S1", "R"].map(placements);
        costs.packing(&Transfer::conversion(&graph, 0, &from, &to, how), 1, false)
    };
    close(packing(Implementation::Padded).value, 4.0 + 112.0 * 0.04 - 1.0);
    let grouped = packing(Implementation::Grouped);
    close(grouped.value, 3.84 - 1.0);
    close(grouped.slopes[0].expect("of b").1, -512.0 * 0.01);
}

#[test]
fn no_axis_of_a_scattered_dimension_leads() {
    let mut graph = tensor();
    assert!([0, 3].iter().all(|occurrence| graph.leads(0, *occurrence)));
    graph.tensors[0].scattered = true;
    assert!((0..5).all(|occurrence| !graph.leads(0, occurrence)));
}

#[test]
fn a_split_class_of_the_leading_axis_leads() {
    let [rows, columns] = [0, 2].map(|axis| divided(&product(), axis));
    for (graph, leading) in [(rows, [true, false, true]), (columns, [true, false, false])] {
        assert_eq!([0, 1, 2].map(|occurrence| graph.leads(2, occurrence)), leading);
    }
}
