//! Warm starts against cold ones.

use std::cell::Cell;
use std::ops::ControlFlow;

use super::*;

/// The costs of a problem, each changed by up to a tenth.
fn changed(problem: &Problem, seed: u64) -> Problem {
    let mut changed = problem.clone();
    for (index, factor) in changed.factors.iter_mut().enumerate() {
        for (entry, cost) in factor.costs.iter_mut().enumerate() {
            *cost *= 0.9 + 0.2 * noise(seed + 1_000_000 * index as u64 + entry as u64);
        }
    }
    changed
}

#[test]
fn a_warm_start_saves_work() {
    let problem = instance("gpt2_b2").problem;
    let changed = changed(&problem, 1);
    let work = |warm: &WarmStart| {
        let last = Cell::new(0);
        let observe = |progress: &Progress| {
            last.set(progress.work);
            ControlFlow::Continue(())
        };
        solve_from(&changed, &Limits::default(), warm, &Watch::new(&observe)).unwrap();
        last.get()
    };
    let mut warm = WarmStart::default();
    let cold = work(&WarmStart::default());
    warm.learn(solve(&problem, &Limits::default()).unwrap().certificate);
    let warm = work(&warm);
    assert!(warm < cold * 3 / 4, "{warm} entries visited, {cold} without");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn a_warm_start_changes_no_optimum(problem in random_problem(7, 12), other in random_problem(7, 12), seed: u16) {
        let mut warm = WarmStart::default();
        // Problems of the same shape, the same one again, and one that has nothing to do with them.
        for problem in [&problem, &changed(&problem, seed.into()), &problem, &other, &problem] {
            match (solve(problem, &Limits::default()), solve_from(problem, &Limits::default(), &warm, &Watch::default())) {
                (Ok(cold), Ok(found)) => {
                    prop_assert!(near(cold.cost, found.cost), "{} and {}", cold.cost, found.cost);
                    prop_assert_eq!(found.gap(), 0.0);
                    prop_assert_eq!(check(problem, &found.certificate, TOLERANCE), Ok(()));
                    warm.learn(found.certificate);
                }
                (cold, found) => prop_assert!(cold.is_err() && found.is_err()),
            }
        }
    }
}
