//! Dual ascent: costs move between tables and variables so that the sum of minima, a lower bound, grows.
//!
//! Sequential reweighted message passing (SRMP: Kolmogorov, "A new look at reweighted message passing", 2015), with
//! messages between tables and single variables. Each pass visits the variables in program order and back; a visited
//! variable collects what its tables know about it and hands it on, evenly, to those that lie ahead.
//!
//! While passes go on, tables stay as they are: what was moved out of them is kept beside them, one cost for each label.

use super::marginals::Lane;
use super::remainder::Remainder;
use super::rows::minimum;
use super::watch::Watch;

/// Raises the bound by `passes` passes; every min-marginal must be finite. Returns the bound and the number of
/// table entries visited.
pub(super) fn ascend(remainder: &mut Remainder, passes: usize, watch: &Watch) -> (f64, u64) {
    let mut ascent = Ascent::new(remainder);
    for pass in 0..passes {
        // Whoever lies at the near end of a table has collected all from it on the way back.
        let anew = pass == 0;
        ascent.pass(remainder, Direction { forward: true, anew }, watch);
        let back = Direction {
            forward: false,
            anew: false,
        };
        ascent.pass(remainder, back, watch);
    }
    let work = ascent.work;
    ascent.settle(remainder);
    (remainder.bound(), work)
}

/// A table of a variable, as seen from there.
struct Visit {
    table: usize,
    /// The variable's place in its scope.
    axis: usize,
    /// Whether the table has variables before this one, and after it.
    before: bool,
    after: bool,
}

#[derive(Clone, Copy)]
struct Direction {
    forward: bool,
    /// Whether tables may have changed at their near ends.
    anew: bool,
}

struct Ascent {
    variables: Vec<usize>,
    /// By variable in `variables`, its visits: from `visits[starts[i]]` to `visits[starts[i + 1]]`.
    visits: Vec<Visit>,
    starts: Vec<usize>,
    /// By table.
    lanes: Vec<Lane>,
    work: u64,
    /// Memory that is used again.
    messages: Vec<f64>,
}

impl Ascent {
    fn new(remainder: &Remainder) -> Ascent {
        let variables: Vec<usize> = remainder.variables().collect();
        let mut starts = vec![0];
        let mut visits = Vec::new();
        for &variable in &variables {
            visits.extend(remainder.incident[variable].iter().map(|&index| {
                let table = &remainder.tables[index];
                let axis = table.axis(variable);
                Visit {
                    table: index,
                    axis,
                    before: axis > 0,
                    after: axis + 1 < table.scope.len(),
                }
            }));
            starts.push(visits.len());
        }
        Ascent {
            variables,
            visits,
            starts,
            lanes: remainder.tables.iter().map(Lane::new).collect(),
            work: 0,
            messages: Vec::new(),
        }
    }

    fn pass(&mut self, remainder: &mut Remainder, direction: Direction, watch: &Watch) {
        let count = self.variables.len();
        for step in 0..count {
            let before = self.work;
            let index = if direction.forward { step } else { count - 1 - step };
            self.visit(remainder, index, direction);
            if watch.visited(self.work - before) {
                return;
            }
        }
    }

    fn visit(&mut self, remainder: &mut Remainder, index: usize, direction: Direction) {
        let Remainder {
            unary,
            tables,
            constant,
            ..
        } = remainder;
        let unary = &mut unary[self.variables[index]];
        let visits = &self.visits[self.starts[index]..self.starts[index + 1]];
        let size = unary.len();
        self.messages.clear();
        self.messages.resize(size * visits.len(), 0.0);
        let (mut count_ahead, mut count_behind) = (0, 0);
        let ends = |visit: &Visit| {
            if direction.forward {
                (visit.after, visit.before)
            } else {
                (visit.before, visit.after)
            }
        };
        // Collect: the variable takes over all that its tables know about it.
        for (visit, message) in visits.iter().zip(self.messages.chunks_exact_mut(size)) {
            let (ahead, behind) = ends(visit);
            count_ahead += usize::from(ahead);
            count_behind += usize::from(behind);
            if behind || direction.anew {
                let (lane, table) = (&mut self.lanes[visit.table], &tables[visit.table]);
                self.work += lane.min_marginals(table, visit.axis, message) as u64;
                for (cost, &collected) in unary.iter_mut().zip(&*message) {
                    *cost += collected;
                }
            }
        }
        let least = minimum(unary);
        *constant += least;
        for cost in unary.iter_mut() {
            *cost -= least;
        }
        // Hand on: an equal part to each table ahead; the variable keeps the rest.
        let parts = count_ahead.max(count_behind);
        if parts == 0 {
            return;
        }
        let part = 1.0 / parts as f64;
        for (visit, message) in visits.iter().zip(self.messages.chunks_exact(size)) {
            let handed = if ends(visit).0 { part } else { 0.0 };
            let moved = message
                .iter()
                .zip(&*unary)
                .map(|(message, cost)| message - handed * cost);
            self.lanes[visit.table].move_out(&tables[visit.table].shape, visit.axis, moved);
        }
        let kept = 1.0 - count_ahead as f64 * part;
        for cost in unary.iter_mut() {
            *cost *= kept;
        }
    }

    /// Takes off the tables what was moved out of them.
    fn settle(self, remainder: &mut Remainder) {
        for (index, lane) in self.lanes.into_iter().enumerate() {
            remainder.settle(index, lane);
        }
    }
}
