//! Curves through the measured times of families of operators, in place of a device's figures.

use super::*;

#[test]
fn measured_families_have_curves_of_their_own() {
    let (mut graph, mut cluster) = (product(), cluster(&[1e9, 1e9], BANDWIDTH, LATENCY));
    let Member::Device(device) = &mut cluster.root.members[0] else {
        unreachable!("a device")
    };
    let points = vec![(1e5, 1e-3), (5e5, 2e-3), (1e6, 5e-3)];
    device.measured.insert("matmul/float32".into(), points);
    cluster.validate().expect("a valid cluster");
    let along = graph.operators[0].choices[1].clone();
    let at = |graph: &Graph, share: f64, device: usize| {
        let shares = vec![vec![share, 1.0 - share]; 3];
        CostModel::new(graph, &cluster, &shares).compute_affine(0, &along, device)
    };
    // Of no family, and of one for another element type: by the device's figures.
    close(at(&graph, 0.25, 0).value, 1e-6 + 0.25 * 1e6 / 1e9);
    graph.operators[0].family = Some("matmul".into());
    graph.operators[0].dtype = "float16".into();
    close(at(&graph, 0.25, 0).value, 1e-6 + 0.25 * 1e6 / 1e9);
    graph.operators[0].dtype = "float32".into();
    close(at(&graph, 0.75, 1).value, 1e-6 + 0.25 * 1e6 / 1e9);
    // Before the first point, on a piece, behind the last point; by the slope of each.
    for (share, seconds, slope) in [(0.05, 1e-3, 0.0), (0.3, 1.5e-3, 2.5e-3), (0.9, 4.4e-3, 6e-3)] {
        let found = at(&graph, share, 0);
        close(found.value, seconds);
        close(found.slopes[0].expect("a slope").1, slope);
    }
    graph.operators[0].flops = 2e6;
    close(at(&graph, 0.75, 0).value, 5e-3 + 0.5e6 * 6e-9);
    // A backward that has not been measured by itself takes what the forward does.
    graph.operators[0].family = Some("matmul_backward".into());
    close(at(&graph, 0.75, 0).value, 5e-3 + 0.5e6 * 6e-9);
    graph.operators[0].family = Some("matmul".into());
    assert_eq!(at(&graph, 0.0, 0).value, 0.0);
    let shares = vec![vec![0.5, 0.5]; 3];
    assert_eq!(CostModel::new(&graph, &cluster, &shares).alike(), [0, 1]);
}

#[test]
fn what_products_take_beside_arithmetic_is_added() {
    let (mut graph, mut cluster) = (product(), cluster(&[1e9, 1e9], 1e6, LATENCY));
    for member in &mut cluster.root.members {
        let Member::Device(device) = member else {
            unreachable!("a device")
        };
        let points = vec![(1e5, 1e-3), (1e6, 5e-3)];
        device.measured.insert("matmul/float32".into(), points);
    }
    let Member::Device(device) = &mut cluster.root.members[0] else {
        unreachable!("a device")
    };
    device
        .measured
        .insert("matmul_operands/float32".into(), vec![(16.0, 1e-4), (416.0, 9e-4)]);
    cluster.validate().expect("a valid cluster");
    graph.operators[0].family = Some("matmul".into());
    graph.operators[0].flops = 1e6;
    let along = graph.operators[0].choices[1].clone();
    let shares = vec![vec![0.75, 0.25]; 3];
    let costs = CostModel::new(&graph, &cluster, &shares);
    // Along m, `x` (128) and `y` (64) shrink, `w` (32) does not.
    let arithmetic = |share: f64| 1e-3 + (share * 1e6 - 1e5) * 4e-3 / 9e5;
    let found = costs.compute_affine(0, &along, 0);
    close(
        found.value,
        arithmetic(0.75) + 1e-4 + (32.0 + 0.75 * 192.0 - 16.0) * 2e-6,
    );
    close(found.slopes[0].expect("a slope").1, 4e-3 / 0.9 + 192.0 * 2e-6);
    close(
        costs.compute(0, &graph.operators[0].choices[0], 0),
        5e-3 + 1e-4 + 208.0 * 2e-6,
    );
    close(costs.compute(0, &along, 1), arithmetic(0.25));
    // A further part starts once more.
    let mut apart = graph.operators[0].choices[0].clone();
    apart.collectives = vec![Collective {
        conversion: Conversion::AllReduce,
        axis: None,
        bytes: 8.0,
    }];
    let further = costs.compute(0, &apart, 0) - costs.compute(0, &graph.operators[0].choices[0], 0);
    close(further, (apart.parts() - 1.0) * (1e-3 + 1e-4));
    assert!(further > 0.0);
    // A device without a share has the slope of a large one.
    let nothing = vec![vec![0.0, 1.0]; 3];
    let costs = CostModel::new(&graph, &cluster, &nothing);
    let found = costs.compute_affine(0, &along, 0);
    assert_eq!(found.value, 0.0);
    close(found.slopes[0].expect("a slope").1, 4e-3 / 0.9 + 192.0 * 2e-6);
    // All of an axis takes exactly what sharing nothing does: no choice between them by rounding.
    graph.operators[0].flops = 123_457.0;
    let all = vec![vec![1.0, 0.0]; 3];
    let costs = CostModel::new(&graph, &cluster, &all);
    assert_eq!(
        costs.compute(0, &along, 0),
        costs.compute(0, &graph.operators[0].choices[0], 0)
    );
    // Devices that differ in nothing else are not alike.
    let equal = vec![vec![0.5, 0.5]; 3];
    assert_eq!(CostModel::new(&graph, &cluster, &equal).alike(), [0, 1]);
}

#[test]
fn measured_traffic_takes_the_place_of_the_bandwidth() {
    let (mut graph, mut cluster) = (product(), cluster(&[1e9, 1e9], BANDWIDTH, LATENCY));
    graph.operators[0].flops = 1.0;
    let Member::Device(device) = &mut cluster.root.members[0] else {
        unreachable!("a device")
    };
    device
        .measured
        .insert("memory".into(), vec![(8.0, 1e-3), (200.0, 3e-3)]);
    let shares = vec![vec![0.75, 0.25]; 3];
    let costs = CostModel::new(&graph, &cluster, &shares);
    // Along m, `x` (128) and `y` (64) shrink, `w` (32) does not.
    let found = costs.compute_affine(0, &graph.operators[0].choices[1], 0);
    close(found.value, 1e-3 + (32.0 + 0.75 * 192.0 - 8.0) * 2e-3 / 192.0);
    close(found.slopes[0].expect("a slope").1, 2e-3);
}
