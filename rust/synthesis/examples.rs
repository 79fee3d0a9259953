//! Tests on small graphs made by hand: the order of instructions, and what is said about wrong requests.

use std::collections::BTreeMap;

use super::request::{Constraints, Prices, Request};
use super::solver::Limits;
use super::{Variable, problem, synthesise};
use crate::graph::{Graph, InputKind, OutputKind};
use crate::placement::Placement;
use crate::testing::{GraphBuilder, MATMUL, POINTWISE, cluster};

const BATCH: usize = 0;
const HIDDEN: usize = 1;
const INNER: usize = 2;

/// `y = x w`, its transpose, and two readers of that, of which one sums along the batch.
fn graph() -> Graph {
    let mut graph = GraphBuilder::new(&[("batch", 8), ("hidden", 4), ("inner", 4)]);
    let x = graph.input(InputKind::Input, "x", &[BATCH, HIDDEN]);
    let w = graph.input(InputKind::Parameter, "w", &[HIDDEN, INNER]);
    let h = graph.operator("h", &[x], &[BATCH, HIDDEN], 1e6, &POINTWISE);
    let y = graph.operator("y", &[x, w], &[BATCH, INNER], 1e9, &MATMUL);
    let t = graph.layout("t", y, &[INNER, BATCH], &["S0 -> S1", "S1 -> S0", "P -> P"]);
    let f = graph.operator("f", &[t, h], &[], 1e3, &[]);
    let g = graph.operator("g", &[t], &[], 1e9, &["S1 -> P"]);
    graph.output(OutputKind::Loss, "loss", f, None);
    graph.output(OutputKind::Output, "g", g, None);
    graph.finish()
}

fn request(constraints: Constraints) -> Request {
    let splits = [("batch", [5, 3]), ("hidden", [2, 2]), ("inner", [4, 0])];
    let splits = splits
        .into_iter()
        .map(|(name, units)| (name.to_owned(), units.to_vec()))
        .collect();
    Request {
        splits,
        constraints,
        ..Request::default()
    }
}

fn pinned(pins: &[(&str, Placement)]) -> Constraints {
    let placements = pins
        .iter()
        .map(|(name, placement)| ((*name).to_owned(), vec![*placement]))
        .collect();
    Constraints {
        placements,
        ..Constraints::default()
    }
}

#[test]
fn partial_sums_are_reduced_at_once_and_everything_else_waits_for_its_reader() {
    use Placement::{Partial, Replicate, Shard};
    let pins = [
        ("h", Shard(0)),
        ("y", Partial),
        ("g", Partial),
        ("w", Replicate),
        ("x", Replicate),
    ];
    let found = synthesise(&graph(), &cluster(&[1e9, 2e9], 1e9, 1e-6), &request(pinned(&pins))).expect("a program");
    let lines: Vec<String> = found.program.instructions.iter().map(ToString::to_string).collect();
    let expected = [
        "%x:R = input()",
        "%w:R = input()",
        "%x:S0 = slice(%x:R, axis=batch)",
        "%h:S0 = test.h(%x:S0)  # h, axis=batch",
        "%x:S1 = slice(%x:R, axis=hidden)",
        "%w:S0 = slice(%w:R, axis=hidden)",
        "%y:P = test.y(%x:S1, %w:S0)  # y, axis=hidden",
        "%y:R = all_reduce(%y:P, builtin)",
        "%t:R = test.t(%y:R)  # t",
        "%h:R = all_gather(%h:S0, axis=batch, padded)",
        "%f:R = test.f(%t:R, %h:R)  # f",
        "%y:S0 = slice(%y:R, axis=batch)",
        "%t:S1 = test.t(%y:S0)  # t, axis=batch",
        "%g:P = test.g(%t:S1)  # g, axis=batch",
        "%g:R = all_reduce(%g:P, builtin)",
        "output(\"loss\", %f:R)",
        "output(\"g\", %g:R)",
    ];
    let gather = |line: &String| line.contains("all_gather");
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        // Which implementation of the gather is cheapest is for the cost model to say.
        let same = if gather(line) {
            line.split(", axis").next() == expected.split(", axis").next()
        } else {
            line == expected
        };
        assert!(same, "{line} instead of {expected} in {lines:#?}");
    }
}

#[test]
fn a_pin_of_a_view_pins_what_it_is_a_view_of() {
    let pins = pinned(&[("t", Placement::Shard(1))]);
    let found = synthesise(&graph(), &cluster(&[1e9, 2e9], 1e9, 1e-6), &request(pins)).expect("a program");
    let lines: Vec<String> = found.program.instructions.iter().map(ToString::to_string).collect();
    assert!(
        lines.iter().any(|line| line.starts_with("%y:S0 = test.y(")),
        "{lines:#?}"
    );
}

#[test]
fn the_variables_of_the_problem_say_what_its_labels_stand_for() {
    let graph = graph();
    let model = problem(
        &graph,
        &cluster(&[1e9, 2e9], 1e9, 1e-6),
        &request(Constraints::default()),
    )
    .expect("a model");
    let labels = |variable: &Variable| match variable {
        Variable::Input { placements, .. } => placements.len(),
        Variable::Operator { runs, .. } => runs.len(),
        Variable::Class { own, .. } => own.labels(),
    };
    assert_eq!(
        model.problem.domains,
        model.variables.iter().map(labels).collect::<Vec<_>>()
    );
    // Two inputs and all operators but the transpose, which is a view.
    assert_eq!(model.variables.len(), 6);
    assert_eq!(model.describe(&graph, 3), "the operator \"y\" (test.y)");
}

#[test]
fn wrong_requests_are_named() {
    let axis = |name: &str| vec![name.to_owned()];
    let fine = || request(Constraints::default());
    let constrained = |constraints| request(constraints);
    let mut no_batch = fine();
    no_batch.splits.remove("batch");
    let prices = |weights: Option<Vec<f64>>, theta| Request {
        prices: Prices {
            weights,
            theta,
            ..Prices::default()
        },
        ..fine()
    };
    let cases: Vec<(Request, &str)> = vec![
        (
            constrained(Constraints {
                forbidden_axes: axis("sequence"),
                ..Constraints::default()
            }),
            "constraints.forbidden_axes names the axis \"sequence\", which the graph does not have; \
             its axes are batch, hidden, inner",
        ),
        (
            constrained(Constraints {
                allowed_axes: Some(axis("heads")),
                ..Constraints::default()
            }),
            "constraints.allowed_axes names the axis \"heads\"",
        ),
        (
            constrained(Constraints {
                require_axis: Some("heads".to_owned()),
                ..Constraints::default()
            }),
            "constraints.require_axis names the axis \"heads\"",
        ),
        (
            constrained(pinned(&[("z", Placement::Replicate)])),
            "names the tensor \"z\"",
        ),
        (
            constrained(Constraints {
                outputs: BTreeMap::from([("z".to_owned(), vec![Placement::Replicate])]),
                ..Constraints::default()
            }),
            "constraints.outputs names the output \"z\", which the graph does not have",
        ),
        (
            constrained(pinned(&[("w", Placement::Partial)])),
            "constraints.placements of \"w\" [P] leaves the tensor \"w\" no placement to be kept in (without it: R, S0, S1)",
        ),
        (
            constrained(pinned(&[("f", Placement::Partial)])),
            "constraints.placements of \"f\" [P] leaves the operator \"f\" (test.f) no way to run (without it: R, R -> R)",
        ),
        (
            constrained(Constraints {
                require_axis: Some("batch".to_owned()),
                ..pinned(&[("h", Placement::Replicate)])
            }),
            "constraints.placements of \"h\" [R] leaves the operator \"h\"",
        ),
        (
            constrained(Constraints {
                require_axis: Some("batch".to_owned()),
                forbidden_axes: axis("batch"),
                ..Constraints::default()
            }),
            "constraints.require_axis \"batch\" leaves the operator \"h\"",
        ),
        (no_batch, "batch"),
        (
            prices(Some(vec![1.0]), None),
            "prices.weights: expected one per device, 2, got 1",
        ),
        (
            prices(Some(vec![0.5, 0.6]), None),
            "prices.weights: expected numbers that are not negative and sum to 1",
        ),
        (prices(Some(vec![1.5, -0.5]), None), "prices.weights"),
        (
            prices(None, Some(1.5)),
            "prices.theta: expected a number from 0 to 1, got 1.5",
        ),
        (
            Request {
                limits: Limits {
                    seconds: Some(-1.0),
                    ..Limits::default()
                },
                ..fine()
            },
            "limits.seconds: expected a number that is not negative, got -1",
        ),
    ];
    for (request, expected) in cases {
        let error = synthesise(&graph(), &cluster(&[1e9, 2e9], 1e9, 1e-6), &request)
            .expect_err(expected)
            .to_string();
        assert!(error.contains(expected), "{error:?} should contain {expected:?}");
    }
}

#[test]
fn requests_are_read_strictly_and_have_defaults() {
    let read = |json: &str| serde_json::from_str::<Request>(json);
    assert_eq!(
        read("{\"splits\": {}}").expect("a request"),
        Request {
            splits: BTreeMap::new(),
            ..Request::default()
        }
    );
    assert!(read("{}").is_err());
    assert!(
        read("{\"splits\": {}, \"price\": {}}")
            .expect_err("unknown")
            .to_string()
            .contains("price")
    );
    let nested = "{\"splits\": {}, \"constraints\": {\"forbidden\": []}}";
    assert!(read(nested).expect_err("unknown").to_string().contains("forbidden"));
}
