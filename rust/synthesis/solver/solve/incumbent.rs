//! Incumbents: exact solutions over the labels whose reduced costs are small.

use super::super::certificate::Step;
use super::super::order::best_order;
use super::super::prune::labels_above;
use super::super::solution::{SolveError, TOLERANCE};
use super::{Solver, Status, eliminate_all};

/// Incumbents may take this part of the allowed table entries: there are several, and most prove nothing.
const INCUMBENT_SHARE: u64 = 20;
/// Where one takes no more than this part of what it may, the next round's search is wider.
const CHEAP_SHARE: u64 = 16;
/// By how much the width changes.
const WIDTH_STEP: f64 = 4.0;
/// Tries for an incumbent in a round.
const TRIES: usize = 3;

/// What came of solving over some of the labels.
enum Attempt {
    /// The incumbent is at least as good as all assignments with those labels; how that follows.
    Solved(Vec<Step>),
    Infeasible,
    TooLarge,
}

impl Solver<'_> {
    /// Solves exactly over the labels whose reduced costs are small.
    pub(super) fn find_incumbent(&mut self, bound: f64, reduced: &[Vec<f64>]) -> Result<Status, SolveError> {
        let scale = bound.abs().max(TOLERANCE * self.largest_cost);
        for _ in 0..TRIES {
            let threshold = (self.width * scale).min(self.upper() - bound) + self.slack();
            match self.solve_within(reduced, threshold)? {
                Attempt::Solved(proof) if self.upper() <= bound + threshold => {
                    // All other assignments have a label that costs more than the incumbent.
                    self.remainder.record_moves();
                    self.remainder.proof.extend(proof);
                    return Ok(Status::Proven);
                }
                Attempt::Solved(_) => break,
                Attempt::TooLarge => self.width /= WIDTH_STEP,
                Attempt::Infeasible => self.width *= WIDTH_STEP,
            }
        }
        Ok(Status::Open)
    }

    /// Solves exactly over the labels whose reduced costs are at most `threshold`.
    fn solve_within(&mut self, reduced: &[Vec<f64>], threshold: f64) -> Result<Attempt, SolveError> {
        let Ok(drops) = labels_above(reduced, threshold) else {
            return Ok(Attempt::Infeasible);
        };
        let mut part = self.remainder.restricted(&drops);
        let limit = (self.budget.entries_left() / INCUMBENT_SHARE).min(self.patience);
        let Some(order) = best_order(&part, limit, self.budget.watch) else {
            self.budget.watch.check()?;
            return Ok(Attempt::TooLarge);
        };
        if order.entries <= limit / CHEAP_SHARE {
            self.width *= WIDTH_STEP;
        }
        eliminate_all(&mut part, &order, &mut self.budget);
        self.budget.watch.check()?;
        if part.variables().next().is_some() {
            return Ok(Attempt::TooLarge);
        }
        if part.constant == f64::INFINITY {
            let everything = drops.is_empty() && self.incumbent.is_none();
            return if everything {
                Err(SolveError::Infeasible { variable: None })
            } else {
                Ok(Attempt::Infeasible)
            };
        }
        let mut assignment = part.assignment();
        self.remainder.complete(&mut assignment);
        self.states = (part.buckets.len() + self.remainder.buckets.len()) as u64;
        self.offer(assignment);
        Ok(Attempt::Solved(part.proof))
    }
}
