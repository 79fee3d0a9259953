//! Elimination orders: greedy, by the size of tables (Kjaerulff 1990).

use std::collections::BTreeSet;

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
        let mut queue: BTreeSet<((u64, u64), usize)> = scores.iter().copied().zip(0..).collect();
        let mut order = Order {
            variables: Vec::with_capacity(self.variables.len()),
            entries: 0,
        };
        while let Some((_, node)) = queue.pop_first() {
            order.variables.push(self.variables[node]);
            order.entries = order.entries.saturating_add(self.weight(node));
            if order.entries > limit || self.watch.is_over() {
                return None;
            }
            for other in self.eliminate(node, greedy) {
                queue.remove(&(scores[other], other));
                scores[other] = self.score(other, greedy);
                queue.insert((scores[other], other));
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
        for &a in &neighbours {
            let others = &mut self.adjacent[a];
            if let Ok(place) = others.binary_search(&node) {
                others.remove(place);
            }
        }
        for (index, &a) in neighbours.iter().enumerate() {
            self.watch.visited(neighbours.len() as u64);
            let added: Vec<usize> = missing(&neighbours[index + 1..], &self.adjacent[a]).collect();
            for b in added {
                if greedy == Greedy::WeightedMinFill {
                    let common = self.adjacent[a]
                        .iter()
                        .filter(|other| self.adjacent[b].binary_search(other).is_ok());
                    changed.extend(common);
                }
                for (one, other) in [(a, b), (b, a)] {
                    if let Err(place) = self.adjacent[one].binary_search(&other) {
                        self.adjacent[one].insert(place, other);
                    }
                }
            }
        }
        changed.sort_unstable();
        changed.dedup();
        changed
    }
}

/// Those of some nodes that a list in ascending order lacks.
fn missing<'a>(nodes: &'a [usize], list: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
    nodes.iter().copied().filter(|node| list.binary_search(node).is_err())
}
