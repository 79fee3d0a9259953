//! Dual ascent: costs move between tables and variables so that the sum of minima, a lower bound, grows.
//!
//! Sequential reweighted message passing (SRMP: Kolmogorov, "A new look at reweighted message passing", 2015), with
//! messages between tables and single variables. Each pass visits the variables in program order and back; a visited
//! variable collects what its tables know about it and hands it on, evenly, to those that lie ahead.

use super::remainder::Remainder;
use super::table::{Span, minimum};

/// A table of a variable, as seen from there.
struct Visit {
    table: usize,
    span: Span,
    /// Where the variable's labels lie in the list of moved costs.
    start: usize,
    /// Whether the table has variables before this one, and after it.
    before: bool,
    after: bool,
}

/// Passes between two looks at the progress.
const CHECK: usize = 5;
/// A bound that grows relatively no more than this between two looks has converged.
const CONVERGED: f64 = 1e-5;

/// Raises the bound by up to `passes` passes; every min-marginal must be finite. Returns the bound and the number of
/// table entries visited.
pub(super) fn ascend(remainder: &mut Remainder, passes: usize) -> (f64, u64) {
    let variables: Vec<usize> = remainder.variables().collect();
    let visits: Vec<Vec<Visit>> = variables.iter().map(|&variable| visits(remainder, variable)).collect();
    for (table, moved) in remainder.tables.iter().zip(&mut remainder.moved) {
        moved.resize(table.shape.iter().sum(), 0.0);
    }
    let entries = remainder
        .live_tables()
        .map(|table| table.costs.len() * table.scope.len())
        .sum::<usize>() as u64;
    let mut messages = Vec::new();
    let mut work = 0;
    let mut last = f64::NEG_INFINITY;
    let mut bound = last;
    for pass in 1..=passes {
        for (&variable, visits) in variables.iter().zip(&visits) {
            visit(remainder, variable, visits, true, &mut messages);
        }
        for (&variable, visits) in variables.iter().zip(&visits).rev() {
            visit(remainder, variable, visits, false, &mut messages);
        }
        work += 4 * entries;
        if pass % CHECK == 0 || pass == passes {
            bound = remainder.bound();
            if bound - last <= CONVERGED * bound.abs() {
                break;
            }
            last = bound;
        }
    }
    (bound, work)
}

fn visits(remainder: &Remainder, variable: usize) -> Vec<Visit> {
    let visit = |&index: &usize| {
        let table = &remainder.tables[index];
        let axis = table.axis(variable);
        let start = table.shape[..axis].iter().sum();
        Visit {
            table: index,
            span: table.span(axis),
            start,
            before: axis > 0,
            after: axis + 1 < table.scope.len(),
        }
    };
    remainder.incident[variable].iter().map(visit).collect()
}

/// One step of a pass. `messages` is scratch space.
fn visit(remainder: &mut Remainder, variable: usize, visits: &[Visit], forward: bool, messages: &mut Vec<f64>) {
    let Remainder {
        unary,
        tables,
        moved,
        constant,
        ..
    } = remainder;
    let unary = &mut unary[variable];
    let size = unary.len();
    messages.clear();
    messages.resize(size * visits.len(), 0.0);
    let ahead = |visit: &Visit| if forward { visit.after } else { visit.before };
    let behind = |visit: &Visit| if forward { visit.before } else { visit.after };
    // Collect: the variable takes over all that its tables know about it.
    for (visit, message) in visits.iter().zip(messages.chunks_exact_mut(size)) {
        tables[visit.table].min_marginals(visit.span, message);
        for (cost, &collected) in unary.iter_mut().zip(&*message) {
            *cost += collected;
        }
    }
    let least = minimum(unary);
    *constant += least;
    for cost in unary.iter_mut() {
        *cost -= least;
    }
    // Hand on: an equal part to each table ahead; the variable keeps the rest.
    let count_ahead = visits.iter().filter(|visit| ahead(visit)).count();
    let count_behind = visits.iter().filter(|visit| behind(visit)).count();
    let parts = count_ahead.max(count_behind);
    if parts == 0 {
        return;
    }
    let part = 1.0 / parts as f64;
    for (visit, message) in visits.iter().zip(messages.chunks_exact_mut(size)) {
        let handed = if ahead(visit) { part } else { 0.0 };
        let moved = &mut moved[visit.table][visit.start..visit.start + size];
        for ((message, &cost), moved) in message.iter_mut().zip(&*unary).zip(moved) {
            let net = *message - handed * cost;
            *moved += net;
            *message = -net;
        }
        tables[visit.table].add_along(visit.span, message);
    }
    let kept = 1.0 - count_ahead as f64 * part;
    for cost in unary.iter_mut() {
        *cost *= kept;
    }
}
