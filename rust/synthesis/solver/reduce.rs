//! Arc consistency: labels that no finite entry of some table supports are dropped, until all are supported.
//!
//! It leaves every min-marginal finite, so that dual ascent never meets infinite messages.

use std::collections::VecDeque;

use super::SolveError;
use super::marginals::Lane;
use super::remainder::Remainder;
use super::table::Table;
use super::watch::Watch;

/// Drops the labels that cannot be part of any assignment of finite cost, as far as single tables show it.
///
/// # Errors
/// [`SolveError::Infeasible`] where a variable loses all its labels.
pub(super) fn drop_dead_labels(remainder: &mut Remainder, watch: &Watch) -> Result<(), SolveError> {
    if remainder.constant == f64::INFINITY {
        return Err(SolveError::Infeasible { variable: None });
    }
    let dead = dead_labels(remainder, watch);
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

fn dead_labels(remainder: &Remainder, watch: &Watch) -> Dead {
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
        if watch.visited(table.costs.len() as u64) {
            break;
        }
        if table.costs.iter().all(|&cost| cost < f64::INFINITY) {
            continue; // it supports all that is alive
        }
        let intact = table
            .scope
            .iter()
            .all(|variable| !dead.alive[*variable].contains(&false));
        let supported = if intact {
            finite_labels(table)
        } else {
            support(table, &dead.alive)
        };
        for (&variable, supported) in table.scope.iter().zip(supported) {
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

/// For each variable of the table, whether each of its labels has a finite entry.
fn finite_labels(table: &Table) -> Vec<Vec<bool>> {
    let mut lane = Lane::new(table);
    let finite = |(axis, &size): (usize, &usize)| {
        let mut least = vec![0.0; size];
        lane.min_marginals(table, axis, &mut least);
        least.into_iter().map(|cost| cost < f64::INFINITY).collect()
    };
    table.shape.iter().enumerate().map(finite).collect()
}

/// For each variable of the table, whether each of its labels has a finite entry among the labels that are alive.
fn support(table: &Table, alive: &[Vec<bool>]) -> Vec<Vec<bool>> {
    let mut supported: Vec<Vec<bool>> = table.shape.iter().map(|&size| vec![false; size]).collect();
    let last = table.scope.len() - 1;
    let (rows, last_alive) = (&table.scope[..last], &alive[table.scope[last]]);
    let mut positions = vec![0; last];
    for row in table.costs.chunks_exact(last_alive.len()) {
        if rows
            .iter()
            .zip(&positions)
            .all(|(&variable, &position)| alive[variable][position])
        {
            let mut any = false;
            for ((&cost, &alive), supported) in row.iter().zip(last_alive).zip(&mut supported[last]) {
                let supports = alive && cost < f64::INFINITY;
                *supported |= supports;
                any |= supports;
            }
            for (supported, &position) in supported.iter_mut().zip(&positions) {
                supported[position] |= any;
            }
        }
        for (position, &size) in positions.iter_mut().zip(&table.shape).rev() {
            *position += 1;
            if *position < size {
                break;
            }
            *position = 0;
        }
    }
    supported
}
