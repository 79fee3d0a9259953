//! The loop: bound, incumbent, pruning, until they meet.

mod incumbent;

use super::budget::{Budget, Limits};
use super::certificate::Certificate;
use super::checker::check;
use super::dual;
use super::eliminate::eliminate_small;
use super::order::{Order, best_order};
use super::problem::Problem;
use super::prune::{labels_above, reduced_costs};
use super::reduce::drop_dead_labels;
use super::remainder::Remainder;
use super::search::{Strategy, search};
use super::solution::{Solution, SolveError, TOLERANCE};
use super::warm::WarmStart;
use super::watch::Watch;

/// Table entries up to which every variable is eliminated before the first dual ascent.
const FIRST_SIZE: u64 = 5000;
/// By how much that grows where dual ascent stalls.
const SIZE_GROWTH: u64 = 4;
/// Dual ascent stalls where a round closes no more than this part of the gap.
const STALLED: f64 = 0.02;
/// It stalls, too, where all later rounds together would close no more than this part, if their gains shrink as the last.
const AHEAD: f64 = 0.5;
/// Passes of dual ascent in a round.
const PASSES: usize = 12;
/// Passes in the first round of a warm start.
const WARM_PASSES: usize = 3;
/// Table entries that dual ascent visits in the time an elimination takes for one.
const ENTRY_WORK: u64 = 4;
/// The first width of the incumbents' search: reduced costs up to this part of the bound.
const FIRST_WIDTH: f64 = 0.0005;
/// Where more variables are open, the width is smaller in proportion: the bound grows with their number, a label's cost
/// does not.
const MANY_VARIABLES: f64 = 700.0;
/// States that are expanded, for each variable left, to find some assignment where elimination has found none.
const DIVE_STATES: u64 = 100;
/// Problems with at most so many table entries are checked against their certificate in debug builds.
const CHECKED_ENTRIES: u64 = 1_000_000;

/// Finds an assignment of least cost and proves it, or comes as near as the limits allow.
///
/// # Errors
/// Malformed problems and limits, problems without an allowed assignment, and limits too small to find any.
pub fn solve(problem: &Problem, limits: &Limits) -> Result<Solution, SolveError> {
    solve_from(problem, limits, &WarmStart::default(), &Watch::default())
}

/// As [`solve`], with what earlier solves have found, observed by someone who may stop it.
///
/// # Errors
/// As [`solve`], and [`SolveError::Stopped`].
pub fn solve_from<'a>(
    problem: &Problem,
    limits: &Limits,
    warm: &WarmStart,
    watch: &'a Watch<'a>,
) -> Result<Solution, SolveError> {
    problem.validate()?;
    limits.validate()?;
    let outcome = Solver::new(problem, limits, watch).and_then(|solver| solver.run(warm));
    watch.look();
    if watch.is_stopped() {
        return Err(SolveError::Stopped);
    }
    let solution = outcome?;
    debug_assert!(
        solution.table_entries > CHECKED_ENTRIES || check(problem, &solution.certificate, 10.0 * TOLERANCE) == Ok(()),
        "the certificate must hold: {:?}",
        check(problem, &solution.certificate, 10.0 * TOLERANCE)
    );
    Ok(solution)
}

struct Incumbent {
    assignment: Vec<usize>,
    cost: f64,
}

struct Solver<'a> {
    problem: &'a Problem,
    budget: Budget<'a>,
    remainder: Remainder,
    incumbent: Option<Incumbent>,
    states: u64,
    largest_cost: f64,
    /// Width of the search for incumbents, relative to the bound.
    width: f64,
    /// Table entries that one elimination may have at present.
    patience: u64,
}

/// Whether the incumbent has been proven optimal.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Status {
    Open,
    Proven,
}

impl<'a> Solver<'a> {
    fn new(problem: &'a Problem, limits: &Limits, watch: &'a Watch<'a>) -> Result<Solver<'a>, SolveError> {
        if let Some(variable) = problem.domains.iter().position(|&size| size == 0) {
            return Err(SolveError::Infeasible {
                variable: Some(variable),
            });
        }
        let mut remainder = Remainder::new(problem);
        drop_dead_labels(&mut remainder, watch)?;
        Ok(Solver {
            problem,
            budget: Budget::new(limits, watch),
            remainder,
            incumbent: None,
            states: 0,
            largest_cost: problem.largest_cost(),
            width: FIRST_WIDTH,
            patience: u64::MAX,
        })
    }

    fn run(mut self, warm: &WarmStart) -> Result<Solution, SolveError> {
        let mut size = FIRST_SIZE;
        let (mut last_bound, mut last_gain) = (f64::NEG_INFINITY, f64::INFINITY);
        let mut status = self.eliminate_small(size)?;
        self.budget.watch_clock();
        let open = self.remainder.variables().count();
        self.width = FIRST_WIDTH * (MANY_VARIABLES / open as f64).min(1.0);
        let mut passes = PASSES;
        if let Some(assignment) = warm
            .assignment(&self.problem.domains)
            .filter(|_| status == Status::Open)
        {
            warm.apply(&mut self.remainder, &self.problem.domains);
            self.offer(assignment.to_vec());
            passes = WARM_PASSES;
        }
        while status == Status::Open && !self.budget.is_spent() {
            let (bound, work) = dual::ascend(&mut self.remainder, passes, self.budget.watch);
            self.budget.watch.check()?;
            self.budget.watch.note_bound(bound);
            self.budget.work(work);
            // While the bound rises, eliminations may take about as long as the ascent has.
            self.patience = work / ENTRY_WORK;
            status = self.improve(bound)?;
            let gain = bound - last_bound;
            let stalled = self.has_stalled(bound, gain);
            if status == Status::Open && (stalled || self.is_hopeless(bound, gain, last_gain)) {
                if stalled {
                    self.patience = u64::MAX;
                    status = self.improve(bound)?;
                }
                if stalled && status == Status::Open && self.incumbent.is_none() {
                    status = self.eliminate_exactly()?;
                }
                if status == Status::Proven || size >= self.budget.entries_left() {
                    break;
                }
                size *= SIZE_GROWTH;
                status = self.eliminate_small(size)?;
            }
            (last_bound, last_gain) = (bound, gain);
            passes = PASSES;
        }
        let bound = if status == Status::Proven {
            f64::INFINITY
        } else {
            self.search()
        };
        self.finish(status, bound)
    }

    /// Whether dual ascent that gained so much should go on with larger tables, where no exact elimination helps.
    fn has_stalled(&self, bound: f64, gain: f64) -> bool {
        gain <= (STALLED * self.scale(bound)).max(self.slack())
    }

    /// Whether larger tables promise more than further rounds: these would not close the gap, if gains go on to shrink as
    /// from the last round to this one.
    fn is_hopeless(&self, bound: f64, gain: f64, last_gain: f64) -> bool {
        let shrinks = gain / last_gain;
        last_gain < f64::INFINITY && shrinks < 1.0 && gain * shrinks / (1.0 - shrinks) <= AHEAD * self.scale(bound)
    }

    /// What gains are measured by: the gap. The bound itself is no scale where it is near 0, and there is no gap without an
    /// incumbent: then it is the largest cost.
    fn scale(&self, bound: f64) -> f64 {
        let gap = self.upper() - bound;
        gap.min(bound.abs().max(self.largest_cost))
    }

    /// Cost of the incumbent.
    fn upper(&self) -> f64 {
        self.incumbent
            .as_ref()
            .map_or(f64::INFINITY, |incumbent| incumbent.cost)
    }

    /// Costs nearer than this are equal.
    fn slack(&self) -> f64 {
        let cost = self.incumbent.as_ref().map_or(0.0, |incumbent| incumbent.cost.abs());
        TOLERANCE * (cost + self.largest_cost / 1000.0)
    }

    /// Takes up an assignment of the whole problem.
    fn offer(&mut self, assignment: Vec<usize>) {
        let cost = self.problem.cost(&assignment);
        if cost < self.upper() {
            self.budget.watch.note_cost(cost);
            self.incumbent = Some(Incumbent { assignment, cost });
        }
    }

    /// Drops dead labels. Where no assignment is left, the incumbent is the best one.
    fn drop_dead_labels(&mut self) -> Result<Status, SolveError> {
        let dropped = drop_dead_labels(&mut self.remainder, self.budget.watch);
        if dropped.is_err() && self.incumbent.is_some() {
            return Ok(Status::Proven);
        }
        dropped.map(|()| self.close())
    }

    /// Where no variable is left to be decided, what was decided is the best of the remainder.
    fn close(&mut self) -> Status {
        let variables = self.remainder.variables().count();
        self.budget.watch.note_variables(variables);
        if variables > 0 {
            return Status::Open;
        }
        let assignment = self.remainder.assignment();
        self.states = self.remainder.buckets.len() as u64;
        self.offer(assignment);
        Status::Proven
    }

    fn eliminate_small(&mut self, size: u64) -> Result<Status, SolveError> {
        let entries = eliminate_small(&mut self.remainder, size, self.budget.watch);
        self.budget.eliminated(entries);
        self.budget.watch.check()?;
        self.drop_dead_labels()
    }

    /// Looks for a better incumbent, deletes what cannot beat it, and finishes if the rest is small.
    fn improve(&mut self, bound: f64) -> Result<Status, SolveError> {
        let reduced = reduced_costs(&self.remainder);
        if self.find_incumbent(bound, &reduced)? == Status::Proven {
            return Ok(Status::Proven);
        }
        if self.incumbent.is_none() {
            return Ok(Status::Open);
        }
        match labels_above(&reduced, self.upper() - bound + self.slack()) {
            Ok(drops) => self.remainder.restrict(&drops),
            Err(all) => {
                self.remainder.record_moves();
                self.remainder.record_drops(&all);
                return Ok(Status::Proven);
            }
        }
        if self.drop_dead_labels()? == Status::Proven {
            return Ok(Status::Proven);
        }
        self.eliminate_exactly()
    }

    /// Eliminates all that is left, if its tables fit into the budget.
    fn eliminate_exactly(&mut self) -> Result<Status, SolveError> {
        let limit = self.budget.entries_left().min(self.patience);
        let Some(order) = best_order(&self.remainder, limit, self.budget.watch) else {
            self.budget.watch.check()?;
            return Ok(Status::Open);
        };
        eliminate_all(&mut self.remainder, &order, &mut self.budget);
        self.budget.watch.check()?;
        self.drop_dead_labels()
    }

    /// Searches what is left, for some assignment first. Returns a bound of it.
    fn search(&mut self) -> f64 {
        if self.incumbent.is_none() && !self.budget.watch.is_stopped() {
            let states = DIVE_STATES * self.remainder.variables().count() as u64;
            self.search_by(Strategy::DepthFirst, states);
        }
        if self.budget.is_spent() {
            self.remainder.bound()
        } else {
            self.search_by(Strategy::BestFirst, u64::MAX)
        }
    }

    fn search_by(&mut self, strategy: Strategy, states: u64) -> f64 {
        let upper = self.upper() - self.slack();
        let outcome = search(&self.remainder, strategy, upper, states, &mut self.budget);
        self.states += outcome.states;
        if let Some(open) = outcome.assignment {
            let mut assignment = self.remainder.assignment();
            for variable in self.remainder.variables() {
                assignment[variable] = open[variable];
            }
            self.remainder.complete(&mut assignment);
            self.offer(assignment);
        }
        outcome.bound
    }

    /// The solution, given a bound of what is not yet ruled out.
    fn finish(mut self, status: Status, bound: f64) -> Result<Solution, SolveError> {
        self.remainder.record_moves();
        let certified = if status == Status::Proven {
            f64::INFINITY
        } else {
            self.remainder.bound()
        };
        let slack = self.slack();
        self.budget.watch.note_bound(bound);
        let Some(Incumbent { assignment, cost }) = self.incumbent else {
            return Err(SolveError::LimitReached { bound });
        };
        let up_to_cost = |bound: f64| if bound >= cost - slack { cost } else { bound };
        let steps = self.remainder.proof;
        Ok(Solution {
            certificate: Certificate {
                assignment: assignment.clone(),
                cost,
                steps,
                bound: up_to_cost(certified),
            },
            assignment,
            cost,
            bound: up_to_cost(bound),
            table_entries: self.budget.table_entries,
            states: self.states,
        })
    }
}

/// Eliminates the variables in order, as long as time is left.
fn eliminate_all(remainder: &mut Remainder, order: &Order, budget: &mut Budget) {
    for &variable in &order.variables {
        if budget.is_spent() {
            break;
        }
        let Some(entries) = remainder.eliminate(variable, budget.watch) else {
            break;
        };
        budget.eliminated(entries);
    }
}
