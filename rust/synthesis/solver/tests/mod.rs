//! The whole solver against brute force, plain elimination and instances with proven optima.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use proptest::prelude::{Just, ProptestConfig, any, prop, prop_assert, prop_assert_eq, prop_compose, proptest};
use proptest::strategy::Strategy as _;

mod certificate;
mod search;
mod warm;
mod watch;

use super::minimise::minimise_over;
use super::table::Table;
use super::*;

fn factor(scope: &[usize], costs: &[f64]) -> Factor {
    Factor {
        scope: scope.to_vec(),
        costs: costs.to_vec(),
    }
}

fn problem(domains: &[usize], factors: Vec<Factor>) -> Problem {
    Problem {
        domains: domains.to_vec(),
        factors,
    }
}

/// The least cost of all assignments, one after the other.
fn brute_force(problem: &Problem) -> f64 {
    let count: usize = problem.domains.iter().product();
    let mut least = f64::INFINITY;
    for mut code in 0..count {
        let mut assignment = vec![0; problem.domains.len()];
        for (label, size) in assignment.iter_mut().zip(&problem.domains) {
            *label = code % size;
            code /= size;
        }
        least = least.min(problem.cost(&assignment));
    }
    least
}

/// The least cost by eliminating the variables in their order.
fn plain_elimination(problem: &Problem) -> f64 {
    let mut tables: Vec<Table> = Vec::new();
    for factor in &problem.factors {
        tables.push(Table::from_factor(factor, &problem.domains));
    }
    for (variable, &size) in problem.domains.iter().enumerate() {
        let (mut bucket, rest): (Vec<Table>, Vec<Table>) =
            tables.into_iter().partition(|table| table.scope.contains(&variable));
        tables = rest;
        if size > 1 {
            bucket.push(Table {
                scope: vec![variable],
                shape: vec![size],
                costs: vec![0.0; size],
            });
            tables.push(minimise_over(variable, &bucket, &Watch::default()).expect("nobody ends it"));
        }
    }
    tables.iter().map(|table| table.costs[0]).sum()
}

fn near(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs()))
}

/// Solves, and checks all that a solution promises.
fn solved(problem: &Problem, limits: &Limits) -> Result<Solution, SolveError> {
    let solution = solve(problem, limits)?;
    assert_eq!(
        solution.cost,
        problem.cost(&solution.assignment),
        "the cost is the assignment's"
    );
    assert!(solution.cost < f64::INFINITY, "the assignment is allowed");
    assert!(solution.bound <= solution.cost && solution.certificate.bound <= solution.bound);
    assert_eq!(check(problem, &solution.certificate, TOLERANCE), Ok(()));
    Ok(solution)
}

/// A number in [0, 1) from a seed: a hash, so that tests repeat.
fn noise(seed: u64) -> f64 {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for shift in [30, 27, 31] {
        x = (x ^ (x >> shift)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    }
    (x >> 11) as f64 / (1u64 << 53) as f64
}

/// A chain of variables with a second chain of longer steps, and unary costs: treewidth grows with `step`.
fn ladder(count: usize, labels: usize, step: usize, seed: u64) -> Problem {
    let domains = vec![labels; count];
    let costs = |index: usize, size: usize| -> Vec<f64> {
        (0..size as u64)
            .map(|entry| noise(seed + 1_000_000 * index as u64 + entry))
            .collect()
    };
    let mut factors: Vec<Factor> = (0..count)
        .map(|v| Factor {
            scope: vec![v],
            costs: costs(v, labels),
        })
        .collect();
    for distance in [1, step] {
        for v in distance..count {
            let scope = vec![v - distance, v];
            factors.push(Factor {
                scope,
                costs: costs(factors.len(), labels * labels),
            });
        }
    }
    problem(&domains, factors)
}

prop_compose! {
    fn random_factor(domains: Vec<usize>)(
        scope in prop::sample::subsequence((0..domains.len()).collect::<Vec<_>>(), 0..=domains.len().min(3)).prop_shuffle(),
        forbidden in 0.0..0.6,
        scale in prop::sample::select(vec![0.0, 1e-6, 1.0, 1.0, 1e3]),
        seed in any::<u32>(),
        domains in Just(domains),
    ) -> Factor {
        let size: usize = scope.iter().map(|&v: &usize| domains[v]).product();
        let cost = |entry: u64| {
            let chance = noise(u64::from(seed) + 7 * entry);
            if chance < forbidden && size > 1 { f64::INFINITY } else { scale * (noise(u64::from(seed) ^ (entry << 33)) - 0.3) }
        };
        Factor { costs: (0..size as u64).map(cost).collect(), scope }
    }
}

fn random_problem(variables: usize, factors: usize) -> impl proptest::strategy::Strategy<Value = Problem> {
    prop::collection::vec(1..=4usize, 0..=variables).prop_flat_map(move |domains| {
        prop::collection::vec(random_factor(domains.clone()), 0..=factors).prop_map(move |factors| Problem {
            domains: domains.clone(),
            factors,
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn equals_brute_force(problem in random_problem(7, 12)) {
        let least = brute_force(&problem);
        match solved(&problem, &Limits::default()) {
            Ok(solution) => {
                prop_assert!(near(solution.cost, least), "{} is not {least}", solution.cost);
                prop_assert_eq!(solution.gap(), 0.0);
            }
            Err(error) => {
                prop_assert!(matches!(error, SolveError::Infeasible { .. }), "{error}");
                prop_assert_eq!(least, f64::INFINITY);
            }
        }
    }

    #[test]
    fn bounds_hold_under_any_limit(problem in random_problem(7, 12), table_entries in 0..60u64, work in 0..3000u64) {
        let least = brute_force(&problem);
        match solved(&problem, &Limits { table_entries, work, seconds: None }) {
            Ok(solution) => {
                prop_assert!(solution.bound <= least + 1e-9 * (1.0 + least.abs()));
                prop_assert!(solution.cost >= least - 1e-9 * (1.0 + least.abs()));
            }
            Err(SolveError::LimitReached { bound }) => prop_assert!(bound <= least + 1e-9 * (1.0 + least.abs())),
            Err(error) => {
                prop_assert!(matches!(error, SolveError::Infeasible { .. }), "{error}");
                prop_assert_eq!(least, f64::INFINITY);
            }
        }
    }
}

#[test]
fn equals_plain_elimination() {
    for seed in 0..10 {
        let problem = ladder(40, 4, 4, seed);
        let solution = solved(&problem, &Limits::default()).unwrap();
        assert!(near(solution.cost, plain_elimination(&problem)));
        assert_eq!(solution.gap(), 0.0);
    }
}

#[test]
fn empty_and_degenerate_problems() {
    let empty = solved(&problem(&[], vec![]), &Limits::default()).unwrap();
    assert_eq!((empty.cost, empty.bound, empty.assignment), (0.0, 0.0, vec![]));
    let constant = solved(&problem(&[], vec![factor(&[], &[2.5])]), &Limits::default()).unwrap();
    assert_eq!((constant.cost, constant.bound), (2.5, 2.5));
    let free = solved(
        &problem(&[3, 1, 2], vec![factor(&[0, 2], &[0.0; 6])]),
        &Limits::default(),
    )
    .unwrap();
    assert_eq!((free.cost, free.gap()), (0.0, 0.0));
    let repeated = vec![
        factor(&[0, 1], &[0.0, 5.0, 5.0, 1.0]),
        factor(&[1, 0], &[3.0, 9.0, 9.0, 0.0]),
    ];
    let repeated = solved(&problem(&[2, 2], repeated), &Limits::default()).unwrap();
    assert_eq!((repeated.cost, repeated.assignment), (1.0, vec![1, 1]));
}

#[test]
fn impossible_problems_name_the_variable() {
    let infinite = f64::INFINITY;
    let dead = problem(&[2, 2], vec![factor(&[1], &[infinite, infinite])]);
    assert_eq!(
        solve(&dead, &Limits::default()).unwrap_err(),
        SolveError::Infeasible { variable: Some(1) }
    );
    let none = problem(&[2, 0], vec![]);
    assert_eq!(
        solve(&none, &Limits::default()).unwrap_err(),
        SolveError::Infeasible { variable: Some(1) }
    );
    // Two colours for a triangle: every single table has support.
    let differ = [infinite, 0.0, 0.0, infinite];
    let triangle = vec![
        factor(&[0, 1], &differ),
        factor(&[1, 2], &differ),
        factor(&[0, 2], &differ),
    ];
    assert!(matches!(
        solve(&problem(&[2; 3], triangle), &Limits::default()),
        Err(SolveError::Infeasible { .. })
    ));
}

#[test]
fn malformed_factors_are_named() {
    let reason = |factors: Vec<Factor>| match solve(&problem(&[2, 2], factors), &Limits::default()) {
        Err(SolveError::Invalid { field, reason }) => (field, reason),
        other => panic!("{other:?}"),
    };
    let good = factor(&[0], &[0.0, 0.0]);
    let bad = [
        (factor(&[2], &[0.0, 0.0]), "variable 2 of the scope, but there are 2"),
        (factor(&[1, 1], &[0.0; 4]), "variable 1 stands twice in the scope"),
        (factor(&[0, 1], &[0.0; 3]), "3 costs, expected 4"),
        (factor(&[0], &[0.0, f64::NAN]), "cost NaN"),
        (factor(&[0], &[0.0, f64::NEG_INFINITY]), "cost -inf"),
    ];
    for (factor, expected) in bad {
        let (field, reason) = reason(vec![good.clone(), factor]);
        assert_eq!(field, "factor 1");
        assert!(reason.contains(expected), "{reason}");
    }
}

#[test]
fn equal_problems_give_equal_solutions() {
    let problem = ladder(60, 5, 7, 3);
    let (first, second) = (
        solve(&problem, &Limits::default()).unwrap(),
        solve(&problem, &Limits::default()).unwrap(),
    );
    assert_eq!(first.assignment, second.assignment);
    assert_eq!(first.certificate, second.certificate);
    assert_eq!(
        (first.table_entries, first.states),
        (second.table_entries, second.states)
    );
}

#[test]
fn search_finishes_where_tables_may_not_grow() {
    let problem = ladder(24, 3, 6, 1);
    let solution = solved(
        &problem,
        &Limits {
            table_entries: 500,
            ..Limits::default()
        },
    )
    .unwrap();
    assert!(near(solution.cost, plain_elimination(&problem)));
    assert_eq!(solution.gap(), 0.0);
}

/// An instance of `benches/instances`.
fn instance(name: &str) -> Instance {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("benches/instances")
        .join(format!("{name}.json.gz"));
    let mut text = String::new();
    MultiGzDecoder::new(File::open(path).unwrap())
        .read_to_string(&mut text)
        .unwrap();
    Instance::from_json(&text).unwrap()
}

#[test]
fn instances_are_solved_to_their_optima() {
    let optima = [
        ("vgg", 113.505434),
        ("chains", 69.494909),
        ("vit", 156.468502),
        ("gpt2", 170.183349),
        ("gpt2_b2", 153.471126),
        ("bert", 155.469733),
        ("moe", 89.491509),
        ("llama8", 56.244686),
        ("llama8_b2", 142.448631),
        ("llama32", 180.711017),
    ];
    for (name, optimum) in optima {
        let instance = instance(name);
        assert_eq!(instance.name, name);
        let solution = solved(&instance.problem, &Limits::default()).unwrap();
        assert!(
            (solution.cost - optimum).abs() <= 1e-6 * optimum,
            "{name}: {} is not {optimum}",
            solution.cost
        );
        assert_eq!(solution.gap(), 0.0, "{name}");
    }
}
