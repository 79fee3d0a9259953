//! The cheapest way to create placements of a tensor from the one that it was produced in.
//!
//! Placements are the nodes of a small directed graph, conversions its edges. Creating a set of placements is a Steiner
//! arborescence from the produced one, found exactly by dynamic programming over sets (Dreyfus and Wagner, 1971). So
//! chains such as reduce-scatter then all-to-all, and an all-gather shared by several shards, need no special case.

use rustc_hash::FxHashMap;

use super::classes::{placement_at, placement_count};
use super::costs::{Costs, Move};
use crate::graph::Tensor;
use crate::placement::{Placement, Placements};

/// A set of placements of a tensor: bit n is the placement with number n.
pub type Set = u64;

/// The numbers in a set, ascending.
pub fn numbers(set: Set) -> impl Iterator<Item = usize> {
    (0..Set::BITS as usize).filter(move |number| set >> number & 1 == 1)
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Nothing is left to create, or there is no way.
    Stop,
    /// Convert to this placement and go on from there.
    Convert(usize),
    /// Create this set and the rest of the set, both from here.
    Split(Set),
}

#[derive(Debug)]
struct Row {
    costs: Vec<f64>,
    steps: Vec<Step>,
}

/// Conversions of one tensor, with remembered costs of sets.
#[derive(Debug)]
pub struct Conversions {
    moves: Vec<Vec<Option<Move>>>,
    partial: Option<usize>,
    usable: Set,
    rows: FxHashMap<Set, Row>,
    whole_rows: FxHashMap<Set, Vec<f64>>,
}

impl Conversions {
    /// The conversions of the tensor with an index. Placements that shard a forbidden axis are not used.
    pub fn new(index: usize, tensor: &Tensor, forbidden: &[bool], costs: &impl Costs) -> Self {
        let count = placement_count(tensor);
        let placements: Vec<Placements> = (0..count).map(|number| vec![placement_at(tensor, number)]).collect();
        let allowed = |placement: &Placements| match placement[0] {
            Placement::Shard(occurrence) => !forbidden[tensor.occurrences[occurrence as usize]],
            Placement::Replicate | Placement::Partial => true,
        };
        let convert = |from: &Placements, to: &Placements| {
            if from != to && allowed(from) && allowed(to) {
                costs.convert(index, from, to)
            } else {
                None
            }
        };
        Self {
            moves: placements
                .iter()
                .map(|from| placements.iter().map(|to| convert(from, to)).collect())
                .collect(),
            partial: tensor.summable.then_some(count - 1),
            usable: (0..count)
                .filter(|&number| allowed(&placements[number]))
                .map(|number| 1 << number)
                .sum(),
            rows: FxHashMap::default(),
            whole_rows: FxHashMap::default(),
        }
    }

    /// Number of placements, usable or not.
    pub fn count(&self) -> usize {
        self.moves.len()
    }

    /// The placements that are shards.
    pub fn shards(&self) -> Set {
        self.usable & !1 & !self.partial()
    }

    fn partial(&self) -> Set {
        self.partial.map_or(0, |number| 1 << number)
    }

    /// The conversion between two placements in one step.
    pub fn step(&self, from: usize, to: usize) -> Option<Move> {
        self.moves[from][to]
    }

    /// Cost of creating a set of placements, by the placement that is there.
    pub fn costs(&mut self, set: Set) -> &[f64] {
        self.prepare(set);
        &self.rows[&set].costs
    }

    /// The same, where the tensor must end in some placement that is not partial, too.
    pub fn whole_costs(&mut self, set: Set) -> &[f64] {
        if !self.whole_rows.contains_key(&set) {
            let mut costs = vec![0.0; self.count()];
            for (from, cost) in costs.iter_mut().enumerate() {
                let set = self.with_whole(from, set);
                *cost = self.costs(set)[from];
            }
            self.whole_rows.insert(set, costs);
        }
        &self.whole_rows[&set]
    }

    /// The set, with the placement that is not partial and is cheapest to create with it added where none is there.
    pub fn with_whole(&mut self, from: usize, set: Set) -> Set {
        let partial = self.partial();
        if (set | 1 << from) & !partial != 0 {
            return set;
        }
        let candidates = numbers(self.usable & !partial).map(|number| set | 1 << number);
        let mut best = (f64::INFINITY, set | 1);
        for candidate in candidates {
            let cost = self.costs(candidate)[from];
            if cost < best.0 {
                best = (cost, candidate);
            }
        }
        best.1
    }

    /// The placements that can be had for nothing from a set, itself included.
    pub fn free(&self, set: Set) -> Set {
        let mut reached = set;
        loop {
            let grown = numbers(reached).fold(reached, |grown, from| {
                let free = |to: &usize| self.moves[from][*to].is_some_and(|step| step.cost == 0.0);
                (0..self.moves.len())
                    .filter(free)
                    .fold(grown, |grown, to| grown | 1 << to)
            });
            if grown == reached {
                return reached;
            }
            reached = grown;
        }
    }

    /// The conversions that create a set at the least cost, each from a placement that is there by then.
    ///
    /// They reach every placement once. The cost must be finite.
    pub fn plan(&mut self, from: usize, set: Set) -> Vec<(usize, usize)> {
        self.prepare(set);
        let mut edges = Vec::new();
        let mut reached: Set = 1 << from;
        let mut pending = vec![(from, set)];
        while let Some((node, set)) = pending.pop() {
            match self.rows[&set].steps[node] {
                Step::Stop => debug_assert!(set & !(1 << node) == 0, "no conversions create the set"),
                Step::Split(part) => pending.extend([(node, set & !part), (node, part)]),
                Step::Convert(to) => {
                    if reached >> to & 1 == 0 {
                        reached |= 1 << to;
                        edges.push((node, to));
                    }
                    pending.push((to, set));
                }
            }
        }
        edges
    }

    /// Makes the row of a set, after the rows of its subsets.
    fn prepare(&mut self, set: Set) {
        if self.rows.contains_key(&set) {
            return;
        }
        let count = self.moves.len();
        let mut costs = vec![f64::INFINITY; count];
        let mut steps = vec![Step::Stop; count];
        if set == 0 {
            costs.fill(0.0);
        } else if set.count_ones() == 1 {
            costs[set.trailing_zeros() as usize] = 0.0;
        } else {
            // Every way to part the set in two, the lowest placement in the first.
            let lowest = set & set.wrapping_neg();
            let mut part = (set - 1) & set;
            while part != 0 {
                if part & lowest != 0 {
                    self.prepare(part);
                    self.prepare(set & !part);
                    let (first, second) = (&self.rows[&part].costs, &self.rows[&(set & !part)].costs);
                    for node in 0..count {
                        if first[node] + second[node] < costs[node] {
                            costs[node] = first[node] + second[node];
                            steps[node] = Step::Split(part);
                        }
                    }
                }
                part = (part - 1) & set;
            }
        }
        // Bellman-Ford in rounds, so that of equal ways the one with the fewest steps is taken.
        loop {
            let previous = costs.clone();
            for (node, moves) in self.moves.iter().enumerate() {
                for (to, step) in moves.iter().enumerate() {
                    let Some(step) = step else { continue };
                    if step.cost + previous[to] < costs[node] {
                        costs[node] = step.cost + previous[to];
                        steps[node] = Step::Convert(to);
                    }
                }
            }
            if costs == previous {
                break;
            }
        }
        self.rows.insert(set, Row { costs, steps });
    }
}
