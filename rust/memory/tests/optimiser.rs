//! What an optimiser makes while it steps.

use super::*;

/// Gradients of parameters of so many units, each given as it is; a unit has 4 bytes.
fn gradients(units: &[u64]) -> Graph {
    let axes: Vec<(String, u64)> = units
        .iter()
        .enumerate()
        .map(|(place, &size)| (format!("a{place}"), size))
        .collect();
    let axes: Vec<(&str, u64)> = axes.iter().map(|(name, size)| (name.as_str(), *size)).collect();
    let mut builder = GraphBuilder::new(&axes);
    let parameters: Vec<usize> = (0..units.len())
        .map(|axis| builder.input(InputKind::Parameter, &format!("w{axis}"), &[axis]))
        .collect();
    for (axis, &parameter) in parameters.iter().enumerate() {
        let gradient = builder.operator(&format!("g{axis}"), &[parameter], &[axis], 1.0, &["S0 -> S0"]);
        builder.output(OutputKind::Gradient, &format!("w{axis}"), gradient, Some(parameter));
    }
    builder.finish()
}

/// Units that are held at the peak of device 0 for the optimiser, and beside it; the parameters of `sharded` are in shards.
fn held(units: &[u64], sharded: &[usize], optimiser: Optimiser) -> (f64, f64) {
    let graph = gradients(units);
    let placement = |place: usize| if sharded.contains(&place) { "S0" } else { "R" };
    let places = || 0..units.len();
    let lines: Vec<String> = places()
        .map(|place| format!("input w{place} {}", placement(place)))
        .chain(places().map(|place| format!("compute g{place} {0} -> {0}", placement(place))))
        .chain(places().map(|place| format!("output w{place} g{place} {}", placement(place))))
        .collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let shares = vec![THREE.to_vec(); units.len()];
    let valid = validate(&graph, &program(&graph, &lines)).expect("a valid program");
    let parts = peaks(&graph, &shares, 3, &[0], &valid, optimiser).remove(0).parts;
    let line = over_program(&graph, &shares, 3, &[0], &valid, optimiser).remove(0);
    assert_eq!(line.iter().copied().fold(0.0, f64::max), parts.total());
    let listed: f64 = holders(&graph, &shares, 3, &valid, optimiser, usize::MAX)[0]
        .iter()
        .map(|it| it.bytes)
        .sum();
    assert_eq!(listed, parts.total());
    (parts.optimiser / 4.0, (parts.total() - parts.optimiser) / 4.0)
}

fn making(together: u32, in_turn: u32, carried: u32) -> Optimiser {
    let temporaries = Temporaries {
        together,
        in_turn,
        carried,
    };
    Optimiser {
        tensors: 2,
        temporaries,
    }
}

#[test]
fn what_is_made_together_counts_for_all_that_is_trained() {
    assert_eq!(held(&[8, 4, 16], &[], making(0, 0, 0)), (2.0 * 28.0, 2.0 * 28.0));
    assert_eq!(held(&[8, 4, 16], &[], making(3, 0, 0)), (5.0 * 28.0, 2.0 * 28.0));
    assert_eq!(held(&[8, 4, 16], &[2], making(3, 0, 0)), (5.0 * 20.0, 2.0 * 20.0));
}

#[test]
fn what_is_made_in_turn_counts_once_with_what_is_left_of_the_one_before() {
    assert_eq!(held(&[8, 4, 16], &[], making(0, 2, 1)).0, 2.0 * 28.0 + 2.0 * 16.0 + 4.0);
    assert_eq!(held(&[8, 4, 16], &[], making(0, 2, 0)).0, 2.0 * 28.0 + 2.0 * 16.0);
    assert_eq!(
        held(&[16, 15, 2], &[], making(0, 2, 1)).0,
        2.0 * 33.0 + 2.0 * 15.0 + 16.0
    );
    // Here the piece of the largest is no larger than the second.
    assert_eq!(held(&[8, 4, 16], &[2], making(0, 2, 1)).0, 2.0 * 20.0 + 2.0 * 8.0 + 4.0);
    assert_eq!(held(&[], &[], making(1, 2, 1)), (0.0, 0.0));
}
