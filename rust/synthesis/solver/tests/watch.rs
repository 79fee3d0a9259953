//! Observers: what they see, and that they can stop a solve.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::time::Instant;

use super::super::remainder::Remainder;
use super::*;

/// Solves a problem, and stops after so many looks. Returns what was seen.
fn watched(problem: &Problem, looks: usize) -> (Result<Solution, SolveError>, Vec<Progress>) {
    let seen = RefCell::new(Vec::new());
    let observe = |progress: &Progress| {
        seen.borrow_mut().push(*progress);
        if seen.borrow().len() == looks {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let outcome = solve_from(
        problem,
        &Limits::default(),
        &WarmStart::default(),
        &Watch::new(&observe),
    );
    (outcome, seen.into_inner())
}

#[test]
fn bounds_rise_and_costs_fall_to_the_solution() {
    let problem = ladder(60, 5, 7, 3);
    let (solution, seen) = watched(&problem, usize::MAX);
    let (solution, unobserved) = (solution.unwrap(), solve(&problem, &Limits::default()).unwrap());
    assert_eq!(solution.certificate, unobserved.certificate);
    assert!(seen.len() > 10, "{} looks", seen.len());
    assert!(seen.is_sorted_by(|a, b| a.bound <= b.bound && a.cost >= b.cost && a.work <= b.work));
    assert!(
        seen.iter()
            .all(|progress| progress.bound <= solution.cost * (1.0 + TOLERANCE))
    );
    let last = seen[seen.len() - 1];
    assert_eq!((last.bound, last.cost), (solution.bound, solution.cost));
}

#[test]
fn an_observer_stops_a_solve_wherever_it_is() {
    let problem = ladder(60, 5, 7, 3);
    let looks = watched(&problem, usize::MAX).1.len();
    for stop in (1..=looks).step_by(looks / 8) {
        let (outcome, seen) = watched(&problem, stop);
        assert_eq!(outcome.unwrap_err(), SolveError::Stopped);
        assert_eq!(seen.len(), stop, "it is not called again");
    }
}

#[test]
fn what_time_ends_leaves_an_equal_problem() {
    let problem = ladder(12, 4, 3, 3);
    let mut remainder = Remainder::new(&problem);
    let bound = remainder.bound();
    let watch = Watch::default();
    watch.end_at(Some(Instant::now()));
    watch.look();
    assert!(watch.is_over() && !watch.is_stopped());
    for variable in 0..12 {
        assert_eq!(remainder.eliminate(variable, &watch), None);
    }
    assert!(near(remainder.bound(), bound));
    for variable in 0..12 {
        assert!(remainder.eliminate(variable, &Watch::default()).is_some());
    }
    let assignment = remainder.assignment();
    assert!(near(remainder.constant, plain_elimination(&problem)));
    assert!(near(problem.cost(&assignment), remainder.constant));
}

#[test]
fn searches_are_stopped_too() {
    // Neither dual ascent nor elimination gets anywhere here.
    let pairs = (0..24).flat_map(|a| (a + 1..24).map(move |b| [a, b]));
    let factors = pairs.map(|pair| factor(&pair, &[1.0, 0.0, 0.0, 1.0])).collect();
    let limits = Limits {
        table_entries: 1_000_000,
        ..Limits::default()
    };
    let looks = RefCell::new(0);
    let observe = |progress: &Progress| {
        *looks.borrow_mut() += 1;
        // The bound of the linear relaxation is 0: only a search raises it.
        if progress.bound > 1.0 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let outcome = solve_from(
        &problem(&[2; 24], factors),
        &limits,
        &WarmStart::default(),
        &Watch::new(&observe),
    );
    assert_eq!(outcome.unwrap_err(), SolveError::Stopped);
    assert!(looks.into_inner() > 1);
}
