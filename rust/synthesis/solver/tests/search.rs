//! Search by itself, limits of time, and the file format.

use std::time::{Duration, Instant};

use super::super::budget::Budget;
use super::super::reduce::drop_dead_labels;
use super::super::remainder::Remainder;
use super::super::search::{Strategy, search};
use super::*;

#[test]
fn time_is_a_limit_too() {
    let problem = ladder(200, 6, 12, 2);
    let limits = Limits {
        seconds: Some(0.05),
        table_entries: 1_000_000,
        ..Limits::default()
    };
    let start = Instant::now();
    let solution = solved(&problem, &limits).unwrap();
    assert!(solution.gap() > 0.0, "this problem takes longer");
    assert!(
        start.elapsed() < Duration::from_secs(60),
        "most of it the checks of the certificate"
    );
}

/// Max-cut of the complete graph: the linear relaxation's bound is 0, and dual ascent gains nothing.
fn complete_graph(variables: usize) -> Problem {
    let pairs = (0..variables).flat_map(|a| (a + 1..variables).map(move |b| [a, b]));
    let factors = pairs.map(|pair| factor(&pair, &[1.0, 0.0, 0.0, 1.0])).collect();
    problem(&vec![2; variables], factors)
}

#[test]
fn a_bound_of_zero_is_no_progress() {
    // Its elimination fits into the tables' limit, but into no incumbent's share of it.
    let limits = Limits {
        table_entries: 150_000,
        work: 10_000_000,
        seconds: None,
    };
    let solution = solved(&complete_graph(16), &limits).unwrap();
    assert_eq!((solution.cost, solution.gap()), (56.0, 0.0));
    assert_eq!(solution.certificate.bound, 56.0, "no search was needed");
}

#[test]
fn memory_of_a_search_is_limited() {
    let problem = complete_graph(20);
    let mut last = 0.0;
    for table_entries in [1_000, 10_000, 100_000] {
        let limits = Limits {
            table_entries,
            ..Limits::default()
        };
        let solution = solved(&problem, &limits).unwrap();
        // A state takes more than 8 units: its closed list's key, its node and its entry.
        let dive = 100 * 20;
        assert!(solution.states <= dive + table_entries / 8, "{}", solution.states);
        assert!(solution.cost >= 90.0 && solution.bound <= 90.0 && solution.gap() > 0.0);
        assert!(solution.bound > last, "more memory, a better bound");
        last = solution.bound;
    }
}

#[test]
fn limits_of_time_are_checked() {
    let problem = complete_graph(3);
    let solve_within = |seconds| {
        let seconds = Some(seconds);
        solve(
            &problem,
            &Limits {
                seconds,
                ..Limits::default()
            },
        )
    };
    for seconds in [-1.0, f64::NAN, f64::NEG_INFINITY] {
        let error = solve_within(seconds).unwrap_err();
        assert!(error.to_string().starts_with("limits.seconds: "), "{error}");
    }
    for seconds in [1e300, f64::INFINITY] {
        assert_eq!(solve_within(seconds).unwrap().cost, 1.0);
    }
    // Without time there may be an assignment nevertheless.
    assert!(solve_within(0.0).is_ok());
}

#[test]
fn instances_are_read_as_they_were_written() {
    let factors = vec![factor(&[1, 0], &[0.1, f64::INFINITY, 3.0, 4e-9]), factor(&[], &[1.0])];
    let instance = Instance {
        name: "small".to_string(),
        problem: problem(&[2, 2], factors),
    };
    let json = instance.to_json().unwrap();
    assert!(json.contains("null"));
    assert_eq!(Instance::from_json(&json).unwrap(), instance);
    let error = Instance::from_json(&json.replace("hap-cfn-1", "hap-cfn-9")).unwrap_err();
    assert!(error.to_string().contains("hap-cfn-9"));
}

#[test]
fn certificates_are_read_as_they_were_written() {
    let certificate = solved(&ladder(30, 4, 5, 5), &Limits::default()).unwrap().certificate;
    let json = certificate.to_json().unwrap();
    assert_eq!(Certificate::from_json(&json).unwrap(), certificate);
    let error = Certificate::from_json(&json.replace("hap-certificate-1", "hap-cfn-1")).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("\"hap-cfn-1\", expected \"hap-certificate-1\"")
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// No elimination and no dual ascent comes before the search.
    #[test]
    fn search_equals_brute_force(problem in random_problem(6, 10), states in 0..40u64) {
        let least = brute_force(&problem);
        let mut remainder = Remainder::new(&problem);
        let watch = Watch::default();
        if drop_dead_labels(&mut remainder, &watch).is_err() {
            prop_assert_eq!(least, f64::INFINITY);
            return Ok(());
        }
        let mut budget = Budget::new(&Limits::default(), &watch);
        let mut run = |strategy, states| search(&remainder, strategy, f64::INFINITY, states, &mut budget);
        let cost = |open: &[usize]| {
            let mut assignment = remainder.assignment();
            remainder.variables().for_each(|variable| assignment[variable] = open[variable]);
            problem.cost(&assignment)
        };
        let best = run(Strategy::BestFirst, u64::MAX);
        let deep = run(Strategy::DepthFirst, u64::MAX);
        if least < f64::INFINITY {
            prop_assert!(near(cost(&best.assignment.expect("there is one")), least));
            prop_assert!(near(best.bound, least));
            prop_assert!(cost(&deep.assignment.expect("there is one")) < f64::INFINITY);
        } else {
            prop_assert!(best.assignment.is_none() && deep.assignment.is_none());
            prop_assert_eq!(best.bound, f64::INFINITY);
        }
        let short = run(Strategy::BestFirst, states);
        prop_assert!(short.states <= states);
        prop_assert!(short.bound <= least + 1e-9 * (1.0 + least.abs()));
    }
}
