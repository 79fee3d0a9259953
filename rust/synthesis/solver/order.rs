//! Elimination orders: greedy, by the size of tables (Kjaerulff 1990).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::remainder::Remainder;
use super::watch::Watch;

/// An elimination order of all open variables and the number of table entries that it takes.
pub(super) struct Order {
    pub variables: Vec<usize>,
    pub entries: u64,
}

/// What the next variable should have least of.
#[derive(Clone, Copy, PartialEq)]
enum Greedy {
    /// Entries of the sum of its tables.
    MinWeight,
    /// Edges that its elimination adds, each weighted with the product of its ends' numbers of labels.
    WeightedMinFill,
}

/// Weights below this are cheaper to work off than a second order is to find.
const CHEAP: u64 = 20_000;

/// The cheaper of min-weight and weighted min-fill; none if both take more than `limit` entries, or the watch
/// ended it.
pub(super) fn best_order(remainder: &Remainder, limit: u64, watch: &Watch<'_>) -> Option<Order> {
    let graph = Graph::new(remainder, watch);
    let first = graph.clone().order(Greedy::MinWeight, limit);
    let limit = first.as_ref().map_or(limit, |order| order.entries.saturating_sub(1));
    if limit < CHEAP {
        return first;
    }
    graph.order(Greedy::WeightedMinFill, limit).or(first)
}

/// Open variables, and which of them share a table.
#[derive(Clone)]
struct Graph<'a> {
    watch: &'a Watch<'a>,
    variables: Vec<usize>,
    sizes: Vec<u64>,
    /// Ascending; there are few.
    adjacent: Vec<Vec<usize>>,
}

impl<'a> Graph<'a> {
    fn new(remainder: &Remainder, watch: &'a Watch<'a>) -> Self {
        let variables: Vec<usize> = remainder.variables().collect();
        let mut node = vec![usize::MAX; remainder.labels.len()];
        for (index, &variable) in variables.iter().enumerate() {
            node[variable] = index;
        }
        let mut adjacent = vec![Vec::new(); variables.len()];
        for table in remainder.live_tables() {
            for &a in &table.scope {
                adjacent[node[a]].extend(table.scope.iter().filter(|&&b| b != a).map(|&b| node[b]));
            }
        }
        for neighbours in &mut adjacent {
            neighbours.sort_unstable();
            neighbours.dedup();
        }
        let sizes = variables
            .iter()
            .map(|&variable| remainder.labels[variable].len() as u64)
            .collect();
        Graph {
            watch,
            variables,
            sizes,
            adjacent,
        }
    }

    fn order(mut self, greedy: Greedy, limit: u64) -> Option<Order> {
        let mut scores: Vec<(u64, u64)> = (0..self.variables.len()).map(|node| self.score(node, greedy)).collect();
        // Scores that have changed since stay in it; they are passed over.
        let mut queue: BinaryHeap<Reverse<((u64, u64), usize)>> =
            scores.iter().copied().zip(0..).map(Reverse).collect();
        let mut eliminated = vec![false; scores.len()];
        let mut order = Order {
            variables: Vec::with_capacity(self.variables.len()),
            entries: 0,
        };
        while let Some(Reverse((score, node))) = queue.pop() {
            if score != scores[node] || std::mem::replace(&mut eliminated[node], true) {
                continue;
            }
            order.variables.push(self.variables[node]);
            order.entries = order.entries.saturating_add(self.weight(node));
            if order.entries > limit || self.watch.is_over() {
                return None;
            }
            for other in self.eliminate(node, greedy) {
                let score = self.score(other, greedy);
                if std::mem::replace(&mut scores[other], score) != score {
                    queue.push(Reverse((score, other)));
                }
            }
        }
        Some(order)
    }

    fn score(&self, node: usize, greedy: Greedy) -> (u64, u64) {
        match greedy {
            Greedy::MinWeight => (self.weight(node), 0),
            Greedy::WeightedMinFill => (self.fill(node), self.weight(node)),
        }
    }

    fn weight(&self, node: usize) -> u64 {
        let neighbours = self.adjacent[node].iter().map(|&other| self.sizes[other]);
        neighbours.fold(self.sizes[node], u64::saturating_mul)
    }

    fn fill(&self, node: usize) -> u64 {
        let mut fill = 0u64;
        for (index, &a) in self.adjacent[node].iter().enumerate() {
            // A look at a neighbour takes about as long as an entry of a table.
            self.watch.visited(self.adjacent[node].len() as u64);
            let missing = missing(&self.adjacent[node][index + 1..], &self.adjacent[a]);
            let weight: u64 = missing.map(|b| self.sizes[b]).sum();
            fill = fill.saturating_add(self.sizes[a].saturating_mul(weight));
        }
        fill
    }

    /// Joins the neighbours of a node and takes it out. Returns the nodes whose scores may have changed.
    fn eliminate(&mut self, node: usize, greedy: Greedy) -> Vec<usize> {
        let neighbours = std::mem::take(&mut self.adjacent[node]);
        let mut changed = neighbours.clone();
        for (index, &a) in neighbours.iter().enumerate() {
            self.watch.visited(neighbours.len() as u64);
            if greedy == Greedy::WeightedMinFill {
                for b in missing(&neighbours[index + 1..], &self.adjacent[a]) {
                    let common = self.adjacent[a]
                        .iter()
                        .filter(|&&other| other != node && self.adjacent[b].binary_search(&other).is_ok());
                    changed.extend(common);
                }
            }
        }
        for &a in &neighbours {
            let joined = union(&self.adjacent[a], &neighbours, |other| other != node && other != a);
            self.adjacent[a] = joined;
        }
        changed.sort_unstable();
        changed.dedup();
        changed
    }
}

/// Those nodes of two lists in ascending order that a condition holds for, in ascending order.
fn union(mut one: &[usize], mut other: &[usize], keep: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut joined = Vec::with_capacity(one.len() + other.len());
    while let (Some(&a), Some(&b)) = (one.first(), other.first()) {
        let next = a.min(b);
        one = &one[usize::from(a == next)..];
        other = &other[usize::from(b == next)..];
        joined.extend(keep(next).then_some(next));
    }
    joined.extend(one.iter().chain(other).copied().filter(|&node| keep(node)));
    joined
}

/// Those of some nodes that a list in ascending order lacks.
fn missing<'a>(nodes: &'a [usize], list: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
    nodes.iter().copied().filter(|node| list.binary_search(node).is_err())
}
