//! The cheapest way to create placements of a tensor from the one that it was produced in.
//!
//! Placements are the nodes of a small directed graph, conversions its edges. Creating a set of placements is a Steiner
//! arborescence from the produced one, found exactly by dynamic programming over sets (Dreyfus and Wagner, 1971). So
//! chains such as reduce-scatter then all-to-all, and an all-gather shared by several shards, need no special case.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::classes::{placement_at, placement_count};
use super::costs::{Costs, Move};
use crate::graph::Tensor;
use crate::placement::{Placement, Placements};

/// A set of placements of a tensor: bit n is the placement with number n.
pub type Set = u64;

/// The numbers in a set, ascending.
pub fn numbers(set: Set) -> impl Iterator<Item = usize> {
    let mut left = set;
    std::iter::from_fn(move || {
        let number = (left != 0).then_some(left.trailing_zeros() as usize);
        left &= left.wrapping_sub(1);
        number
    })
}

/// How to create a set of placements, by the placement that is there.
#[derive(Debug)]
struct Row {
    costs: Vec<f64>,
    /// The placement to go to before the set is parted in two.
    via: Vec<usize>,
    /// By placement, the part of the set that is created first from there; nothing for sets of less than two.
    part: Vec<Set>,
}

/// The cheapest ways from one placement to another; of equal ones the one with the fewest steps.
#[derive(Debug)]
struct Paths {
    /// Costs by start and end.
    costs: Vec<Vec<f64>>,
    /// The first step by start and end.
    next: Vec<Vec<usize>>,
}

/// Conversions of one tensor, with remembered costs of sets.
#[derive(Debug)]
pub struct Conversions {
    moves: Vec<Vec<Option<Move>>>,
    paths: Paths,
    /// By placement, those that can be had from it for nothing, itself included.
    free: Vec<Set>,
    partial: Set,
    usable: Set,
    rows: Vec<Row>,
    known: FxHashMap<Set, usize>,
    ending_rows: FxHashMap<Vec<Set>, FxHashMap<Set, Vec<f64>>>,
    /// By what is there and what is created from it.
    spreads: FxHashMap<(Set, Set), f64>,
    /// By most placements, and most sets that are told apart.
    worth: FxHashMap<(usize, usize), Arc<Worth>>,
}

/// Sets of placements that are worth keeping.
#[derive(Debug)]
pub struct Worth {
    /// The sets, the smallest first.
    pub sets: Vec<Set>,
    /// Where larger ones are not told apart, how many placements those have at least.
    pub many: Option<usize>,
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
        let moves: Vec<Vec<Option<Move>>> = placements
            .iter()
            .map(|from| placements.iter().map(|to| convert(from, to)).collect())
            .collect();
        let paths = Paths::new(&moves);
        let free = |costs: &Vec<f64>| set_of((0..count).filter(|&to| costs[to] == 0.0));
        Self {
            free: paths.costs.iter().map(free).collect(),
            moves,
            paths,
            partial: if tensor.summable { 1 << (count - 1) } else { 0 },
            usable: set_of((0..count).filter(|&number| allowed(&placements[number]))),
            rows: Vec::new(),
            known: FxHashMap::default(),
            ending_rows: FxHashMap::default(),
            spreads: FxHashMap::default(),
            worth: FxHashMap::default(),
        }
    }

    /// Number of placements, usable or not.
    pub fn count(&self) -> usize {
        self.moves.len()
    }

    /// The placements that are shards.
    pub fn shards(&self) -> Set {
        self.usable & !1 & !self.partial
    }

    /// The conversion between two placements in one step.
    pub fn step(&self, from: usize, to: usize) -> Option<Move> {
        self.moves[from][to]
    }

    /// Cost of creating a set of placements, by the placement that is there.
    pub fn costs(&mut self, set: Set) -> &[f64] {
        let row = self.row(set);
        &self.rows[row].costs
    }

    /// The same, where one placement of each of the sets `ends` must be there, too.
    pub fn ending_costs(&mut self, set: Set, ends: &[Set]) -> &[f64] {
        let known = self.ending_rows.get(ends).is_some_and(|rows| rows.contains_key(&set));
        if !known {
            let mut costs = vec![0.0; self.count()];
            for (from, cost) in costs.iter_mut().enumerate() {
                let set = self.with_ends(from, set, ends);
                *cost = self.costs(set)[from];
            }
            self.ending_rows.entry(ends.to_vec()).or_default().insert(set, costs);
        }
        &self.ending_rows[ends][&set]
    }

    /// The set, with a placement of each of the sets `ends` added where none is there: those that are cheapest to create
    /// with it.
    pub fn with_ends(&mut self, from: usize, set: Set, ends: &[Set]) -> Set {
        let Some((&end, others)) = ends.split_first() else {
            return set;
        };
        if (set | 1 << from) & end != 0 {
            return self.with_ends(from, set, others);
        }
        let mut best = (f64::INFINITY, set | end & end.wrapping_neg());
        for number in numbers(end) {
            let candidate = self.with_ends(from, set | 1 << number, others);
            let cost = self.costs(candidate)[from];
            if cost < best.0 {
                best = (cost, candidate);
            }
        }
        best.1
    }

    /// The placements that can be had for nothing from a set, itself included.
    pub fn free(&self, set: Set) -> Set {
        numbers(set).fold(set, |reached, from| reached | self.free[from])
    }

    /// The set without what can be had for nothing from the rest of it.
    pub fn least(&self, set: Set) -> Set {
        numbers(set).fold(set, |least, number| {
            let rest = least & !(1 << number);
            rest | least & 1 << number & !self.free(rest)
        })
    }

    /// The least cost of creating a set where some placements are there.
    pub fn spread(&mut self, there: Set, set: Set) -> f64 {
        if let Some(&cost) = self.spreads.get(&(there, set)) {
            return cost;
        }
        let cost = self.share(there, set).0;
        self.spreads.insert((there, set), cost);
        cost
    }

    /// The sets of at most so many placements. Where they would be more than `limit`, only smaller ones, but of two at
    /// least.
    pub fn worth_keeping(&mut self, most: usize, limit: usize) -> Arc<Worth> {
        let count = self.count();
        let worth = self.worth.entry((most, limit));
        Arc::clone(worth.or_insert_with(|| Arc::new(Worth::new(count, most, limit))))
    }

    /// Which part of a set is created from each of the placements that are there, at that cost.
    pub fn parts(&mut self, there: Set, set: Set) -> Vec<(usize, Set)> {
        let (mut there, mut set) = (there, set);
        let mut parts = Vec::new();
        while there != 0 {
            let (_, part) = self.share(there, set);
            parts.push((there.trailing_zeros() as usize, part));
            there &= there - 1;
            set &= !part;
        }
        parts
    }

    /// The least cost, and the part that is created from the first of the placements.
    fn share(&mut self, there: Set, set: Set) -> (f64, Set) {
        let (first, others) = (there.trailing_zeros() as usize, there & (there - 1));
        if others == 0 {
            return (self.costs(set)[first], set);
        }
        let mut best = (f64::INFINITY, set);
        let mut part = set;
        loop {
            let own = self.costs(part)[first];
            if own < best.0 {
                let cost = own + self.share(others, set & !part).0;
                if cost < best.0 {
                    best = (cost, part);
                }
            }
            if part == 0 {
                return best;
            }
            part = (part - 1) & set;
        }
    }

    /// The conversions that create a set at the least cost, each from a placement that is there by then.
    ///
    /// They reach every placement once. The cost must be finite.
    pub fn plan(&mut self, from: usize, set: Set) -> Vec<(usize, usize)> {
        let mut edges = Vec::new();
        let mut reached: Set = 1 << from;
        let mut pending = vec![(from, set)];
        while let Some((from, set)) = pending.pop() {
            let row = self.row(set);
            let via = self.rows[row].via[from];
            let mut node = from;
            while node != via {
                let next = self.paths.next[node][via];
                if reached >> next & 1 == 0 {
                    reached |= 1 << next;
                    edges.push((node, next));
                }
                node = next;
            }
            if set.count_ones() > 1 {
                let part = self.rows[row].part[via];
                pending.extend([(via, set & !part), (via, part)]);
            }
        }
        edges
    }

    /// The row of a set, made when it is first asked for, after the rows of its subsets.
    fn row(&mut self, set: Set) -> usize {
        if let Some(&row) = self.known.get(&set) {
            return row;
        }
        let count = self.count();
        let mut there = vec![f64::INFINITY; count];
        let mut part = vec![0; count];
        if set.count_ones() < 2 {
            // Nothing to create: any placement will do. One placement: it must be there.
            let done = |number: usize| set == 0 || set >> number & 1 == 1;
            (0..count)
                .filter(|&number| done(number))
                .for_each(|number| there[number] = 0.0);
        } else {
            // Every way to part the set in two, the lowest placement in the first.
            let lowest = set & set.wrapping_neg();
            let mut first = (set - 1) & set;
            while first != 0 {
                if first & lowest != 0 {
                    let (one, other) = (self.row(first), self.row(set & !first));
                    let costs = self.rows[one].costs.iter().zip(&self.rows[other].costs);
                    for (node, (one, other)) in costs.enumerate() {
                        if one + other < there[node] {
                            there[node] = one + other;
                            part[node] = first;
                        }
                    }
                }
                first = (first - 1) & set;
            }
        }
        let mut costs = there.clone();
        let mut via: Vec<usize> = (0..count).collect();
        for (from, paths) in self.paths.costs.iter().enumerate() {
            for (to, path) in paths.iter().enumerate() {
                if path + there[to] < costs[from] {
                    costs[from] = path + there[to];
                    via[from] = to;
                }
            }
        }
        self.rows.push(Row { costs, via, part });
        self.known.insert(set, self.rows.len() - 1);
        self.rows.len() - 1
    }
}

impl Worth {
    fn new(count: usize, most: usize, limit: usize) -> Self {
        let mut sets = vec![0];
        let mut last = sets.clone();
        let mut many = None;
        for size in 1..=most.max(2) {
            let larger = |&set: &Set| {
                let above = if set == 0 { 0 } else { set.ilog2() as usize + 1 };
                (above..count).map(move |number| set | 1 << number)
            };
            last = last.iter().flat_map(larger).collect();
            if size > 2 && sets.len() + last.len() > limit {
                many = Some(size);
                break;
            }
            sets.extend(&last);
        }
        Self {
            sets: sets.split_off(1),
            many,
        }
    }
}

impl Paths {
    /// Bellman-Ford in rounds.
    fn new(moves: &[Vec<Option<Move>>]) -> Self {
        let count = moves.len();
        let mut costs = vec![vec![f64::INFINITY; count]; count];
        let mut next: Vec<Vec<usize>> = (0..count).map(|_| (0..count).collect()).collect();
        for (number, costs) in costs.iter_mut().enumerate() {
            costs[number] = 0.0;
        }
        loop {
            let previous = costs.clone();
            for (from, moves) in moves.iter().enumerate() {
                for (middle, step) in moves.iter().enumerate() {
                    let Some(step) = step else { continue };
                    for to in 0..count {
                        if step.cost + previous[middle][to] < costs[from][to] {
                            costs[from][to] = step.cost + previous[middle][to];
                            next[from][to] = middle;
                        }
                    }
                }
            }
            if costs == previous {
                return Self { costs, next };
            }
        }
    }
}

fn set_of(numbers: impl Iterator<Item = usize>) -> Set {
    numbers.fold(0, |set, number| set | 1 << number)
}
