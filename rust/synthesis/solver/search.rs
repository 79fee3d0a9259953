//! A* over partial assignments, in program order.
//!
//! A state is an assignment of the first variables; f is what it costs so far and, for each table, the least that it can
//! cost yet, by tables of minima over the variables to come. Since every table only learns more as variables are
//! assigned, f never falls along a path (the bound is admissible and consistent). Two states that agree on all variables
//! that share a table with a later one have the same future: only the cheaper is expanded.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use rustc_hash::FxHashSet;

use super::budget::Budget;
use super::remainder::Remainder;
use super::rows::minimum;
use super::table::Table;

/// Which state is expanded next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Strategy {
    /// The one of least f: the first complete assignment is the best.
    BestFirst,
    /// The deepest one, and of those the one of least f; ends at the first complete assignment.
    DepthFirst,
}

/// What a search found.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Labels (as the whole problem numbers them) of the open variables; other entries are unset.
    pub assignment: Option<Vec<usize>>,
    /// No assignment of the remainder costs less than the smaller one of this and `upper`.
    pub bound: f64,
    /// States expanded.
    pub states: u64,
}

/// Searches assignments that cost less than `upper`, until `states` have been expanded or, best first, the budget or its
/// memory is spent. (Depth first finds some assignment where nothing else did: limits cut it short only by its states.)
pub(super) fn search(
    remainder: &Remainder,
    strategy: Strategy,
    upper: f64,
    states: u64,
    budget: &mut Budget,
) -> Outcome {
    let space = Space::new(remainder);
    let mut nodes = vec![Node {
        parent: usize::MAX,
        position: 0,
        depth: 0,
    }];
    let mut open = BinaryHeap::new();
    let mut closed: FxHashSet<(usize, Vec<usize>)> = FxHashSet::default();
    let root = space.root;
    open.push(Entry {
        cost: root,
        depth: 0,
        node: 0,
        strategy,
    });
    let mut outcome = Outcome {
        assignment: None,
        bound: root,
        states: 0,
    };
    let mut positions = vec![0; remainder.labels.len()];
    let mut closed_words = 0;
    // Depth first, the least f of all open states is only known by looking; the root's stands in for it.
    while let Some(entry) = open.pop() {
        if strategy == Strategy::BestFirst {
            outcome.bound = entry.cost;
            budget.watch.note_bound(entry.cost);
        }
        if entry.cost >= upper {
            if strategy == Strategy::BestFirst {
                return outcome;
            }
            continue;
        }
        space.restore(&nodes, entry.node, &mut positions);
        if entry.depth == space.variables.len() {
            let mut assignment = vec![0; remainder.labels.len()];
            for &variable in &space.variables {
                assignment[variable] = remainder.labels[variable][positions[variable]];
            }
            outcome.assignment = Some(assignment);
            return outcome;
        }
        let is_spent = || {
            budget.is_spent()
                || words::<Node>(nodes.len()) + words::<Entry>(open.len()) + closed_words > budget.search_memory()
        };
        if outcome.states >= states || budget.watch.is_stopped() || (strategy == Strategy::BestFirst && is_spent()) {
            return outcome;
        }
        let frontier = &space.frontiers[entry.depth];
        let future = frontier.iter().map(|&variable| positions[variable]).collect();
        if !closed.insert((entry.depth, future)) {
            continue;
        }
        outcome.states += 1;
        closed_words += words::<(usize, Vec<usize>)>(1) + words::<usize>(frontier.len());
        let variable = space.variables[entry.depth];
        let added = space.added(entry.depth, &positions);
        budget.work(added.len() as u64 * remainder.incident[variable].len() as u64 + entry.depth as u64);
        for (position, added) in added.into_iter().enumerate() {
            let cost = entry.cost + added;
            if cost < upper {
                nodes.push(Node {
                    parent: entry.node,
                    position,
                    depth: entry.depth + 1,
                });
                open.push(Entry {
                    cost,
                    depth: entry.depth + 1,
                    node: nodes.len() - 1,
                    strategy,
                });
            }
        }
    }
    // Everything below `upper` has been looked at.
    outcome.bound = f64::INFINITY;
    outcome
}

/// Memory of so many values, in units of 8 bytes.
fn words<T>(count: usize) -> u64 {
    (count * size_of::<T>()).div_ceil(8) as u64
}

/// An assigned variable and those before it.
struct Node {
    parent: usize,
    /// Position of the label of the variable assigned last.
    position: usize,
    depth: usize,
}

/// A state to be expanded.
struct Entry {
    /// f: a lower bound of the complete assignments below it.
    cost: f64,
    depth: usize,
    node: usize,
    strategy: Strategy,
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        let cheaper = other.cost.total_cmp(&self.cost);
        let deeper = self.depth.cmp(&other.depth);
        let order = match self.strategy {
            Strategy::BestFirst => cheaper.then(deeper),
            Strategy::DepthFirst => deeper.then(cheaper),
        };
        order.then(other.node.cmp(&self.node))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

/// The variables in order, with the tables of minima.
struct Space<'a> {
    remainder: &'a Remainder,
    variables: Vec<usize>,
    /// For each depth, the assigned variables that share a table with an unassigned one.
    frontiers: Vec<Vec<usize>>,
    /// For each table, its minima over all but the first variables of its scope: over none assigned, one, and so on.
    minima: Vec<Vec<Vec<f64>>>,
    /// Least unary cost of each open variable.
    least: Vec<f64>,
    /// f of the empty assignment.
    root: f64,
}

impl Space<'_> {
    fn new(remainder: &Remainder) -> Space<'_> {
        let variables: Vec<usize> = remainder.variables().collect();
        let mut last_neighbour: Vec<usize> = (0..remainder.labels.len()).collect();
        for table in remainder.live_tables() {
            for &variable in &table.scope {
                last_neighbour[variable] = last_neighbour[variable].max(table.scope[table.scope.len() - 1]);
            }
        }
        let frontier = |depth: usize| {
            let next = variables.get(depth).copied().unwrap_or(usize::MAX);
            variables[..depth]
                .iter()
                .copied()
                .filter(|&variable| last_neighbour[variable] >= next)
                .collect()
        };
        let least = remainder.unary.iter().map(|costs| minimum(costs)).collect();
        Space {
            frontiers: (0..=variables.len()).map(frontier).collect(),
            minima: remainder.tables.iter().map(prefix_minima).collect(),
            root: remainder.bound(),
            least,
            variables,
            remainder,
        }
    }

    /// Sets the positions of the variables assigned at a node.
    fn restore(&self, nodes: &[Node], mut node: usize, positions: &mut [usize]) {
        while nodes[node].depth > 0 {
            positions[self.variables[nodes[node].depth - 1]] = nodes[node].position;
            node = nodes[node].parent;
        }
    }

    /// How much each label of the next variable adds to f.
    fn added(&self, depth: usize, positions: &[usize]) -> Vec<f64> {
        let variable = self.variables[depth];
        let mut added: Vec<f64> = self.remainder.unary[variable]
            .iter()
            .map(|cost| cost - self.least[variable])
            .collect();
        for &index in &self.remainder.incident[variable] {
            let table = &self.remainder.tables[index];
            let axis = table.axis(variable);
            let assigned = table.scope[..axis].iter().zip(&table.shape);
            let row = assigned.fold(0, |row, (&other, &size)| row * size + positions[other]);
            let before = self.minima[index][axis][row];
            let after = &self.minima[index][axis + 1][row * added.len()..];
            for (added, &after) in added.iter_mut().zip(after) {
                *added += after - before;
            }
        }
        added
    }
}

fn prefix_minima(table: &Table) -> Vec<Vec<f64>> {
    let mut minima = vec![table.costs.clone()];
    for &size in table.shape.iter().rev() {
        let next = minima[minima.len() - 1].chunks_exact(size).map(minimum).collect();
        minima.push(next);
    }
    minima.reverse();
    minima
}
