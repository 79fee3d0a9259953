//! Arc consistency: labels that no finite entry of some table supports are dropped, until all are supported.
//!
//! It leaves every min-marginal finite, so that dual ascent never meets infinite messages.

use std::collections::VecDeque;

use super::SolveError;
use super::remainder::Remainder;
use super::table::Table;

/// Drops the labels that cannot be part of any assignment of finite cost, as far as single tables show it.
///
/// # Errors
/// [`SolveError::Infeasible`] where a variable loses all its labels.
pub(super) fn drop_dead_labels(remainder: &mut Remainder) -> Result<(), SolveError> {
    if remainder.constant == f64::INFINITY {
        return Err(SolveError::Infeasible { variable: None });
    }
    let dead = dead_labels(remainder);
    if let Some(variable) = dead.emptied {
        remainder.record_moves();
        remainder.record_drops(&dead.drops);
        return Err(SolveError::Infeasible {
            variable: Some(variable),
        });
    }
    if !dead.drops.is_empty() {
        remainder.restrict(&dead.drops);
    }
    Ok(())
}

/// Labels that are dead.
struct Dead {
    alive: Vec<Vec<bool>>,
    /// Variable and positions, in an order in which each follows from those before.
    drops: Vec<(usize, Vec<usize>)>,
    /// A variable that lost all labels.
    emptied: Option<usize>,
}

impl Dead {
    /// Notes that labels are dead. Returns whether there were any.
    fn drop(&mut self, variable: usize, dead: Vec<usize>) -> bool {
        for &position in &dead {
            self.alive[variable][position] = false;
        }
        if !self.alive[variable].contains(&true) {
            self.emptied = Some(variable);
        }
        let any = !dead.is_empty();
        if any {
            self.drops.push((variable, dead));
        }
        any
    }
}

fn dead_labels(remainder: &Remainder) -> Dead {
    let alive = remainder.labels.iter().map(|labels| vec![true; labels.len()]).collect();
    let mut dead = Dead {
        alive,
        drops: Vec::new(),
        emptied: None,
    };
    for variable in 0..remainder.labels.len() {
        let costs = if remainder.open[variable] {
            &remainder.unary[variable][..]
        } else {
            &[]
        };
        dead.drop(
            variable,
            (0..costs.len())
                .filter(|&position| costs[position] == f64::INFINITY)
                .collect(),
        );
    }
    let mut queued: Vec<bool> = remainder.tables.iter().map(|table| !table.scope.is_empty()).collect();
    let mut queue: VecDeque<usize> = (0..queued.len()).filter(|&index| queued[index]).collect();
    while let (Some(index), None) = (queue.pop_front(), dead.emptied) {
        queued[index] = false;
        let table = &remainder.tables[index];
        for (axis, &variable) in table.scope.iter().enumerate() {
            let supported = support(table, axis, &dead.alive);
            let unsupported = |&position: &usize| dead.alive[variable][position] && !supported[position];
            let unsupported = (0..supported.len()).filter(unsupported).collect();
            if dead.drop(variable, unsupported) {
                for &other in &remainder.incident[variable] {
                    if !queued[other] {
                        queued[other] = true;
                        queue.push_back(other);
                    }
                }
            }
        }
    }
    dead
}

/// Whether each label along an axis has a finite entry among the labels that are alive.
fn support(table: &Table, axis: usize, alive: &[Vec<bool>]) -> Vec<bool> {
    if table.scope.iter().all(|&variable| !alive[variable].contains(&false)) {
        let mut least = vec![0.0; table.shape[axis]];
        table.min_marginals(table.span(axis), &mut least);
        return least.into_iter().map(|cost| cost < f64::INFINITY).collect();
    }
    let mut supported = vec![false; table.shape[axis]];
    let mut positions = vec![0; table.scope.len()];
    for &cost in &table.costs {
        if cost < f64::INFINITY
            && table
                .scope
                .iter()
                .zip(&positions)
                .all(|(&v, &position)| alive[v][position])
        {
            supported[positions[axis]] = true;
        }
        for axis in (0..positions.len()).rev() {
            positions[axis] += 1;
            if positions[axis] < table.shape[axis] {
                break;
            }
            positions[axis] = 0;
        }
    }
    supported
}
