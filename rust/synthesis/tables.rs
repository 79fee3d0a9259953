//! Cost tables of a class: over its producer and readers at once, or through an availability variable.

use super::convert::{Conversions, Set, numbers};

/// What the tables of a class depend on, beside its conversions. Classes of equal shape have equal tables.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The conversions' number among all that differ.
    pub conversions: usize,
    /// By variable in ascending order: by label, the placement produced (of the producer), and the placements demanded.
    pub parties: Vec<(Option<Vec<usize>>, Vec<Set>)>,
    /// Placements demanded whatever is decided.
    pub fixed: Set,
    /// Sets of placements, one of each of which is demanded.
    pub ends: Vec<Set>,
}

impl Shape {
    /// Number of entries of the joint table.
    pub fn entries(&self) -> usize {
        self.parties
            .iter()
            .fold(1, |entries, (_, demanded)| entries.saturating_mul(demanded.len()))
    }

    fn cost(&self, conversions: &mut Conversions, from: usize, set: Set) -> f64 {
        let set = set | self.fixed;
        (if self.ends.is_empty() {
            conversions.costs(set)
        } else {
            conversions.ending_costs(set, &self.ends)
        })[from]
    }

    fn produced(&self) -> &[usize] {
        self.parties
            .iter()
            .find_map(|(produced, _)| produced.as_deref())
            .unwrap_or_default()
    }
}

/// The tables of a class.
#[derive(Clone, Debug, PartialEq)]
pub enum Tables {
    /// One table over all parties.
    Joint(Vec<f64>),
    /// A variable that says which placements are made available, and one table for each party with that variable.
    Available {
        /// Labels of the variable.
        sets: Vec<Set>,
        /// By party, costs over (the party, the variable).
        pairs: Vec<Vec<f64>>,
    },
}

impl Tables {
    /// The tables of a shape: the joint one where it has at most `limit` entries.
    pub fn new(shape: &Shape, conversions: &mut Conversions, limit: usize) -> Self {
        if shape.entries() <= limit || shape.parties.len() < 3 {
            let mut costs = Vec::with_capacity(shape.entries());
            fill(shape, conversions, 0, 0, None, &mut costs);
            return Self::Joint(costs);
        }
        let sets = available_sets(shape, conversions);
        let pairs = shape.parties.iter().map(|(produced, demanded)| {
            let mut costs = Vec::with_capacity(demanded.len() * sets.len());
            for (label, &demand) in demanded.iter().enumerate() {
                costs.extend(sets.iter().map(|&set| match produced {
                    _ if (demand | shape.fixed) & !conversions.free(set) != 0 => f64::INFINITY,
                    Some(produced) => shape.cost(conversions, produced[label], set),
                    None => 0.0,
                }));
            }
            costs
        });
        let pairs = pairs.collect();
        Self::Available { sets, pairs }
    }
}

/// Appends the joint table's rest, for labels of the first parties that produce `from` and demand `set`.
fn fill(
    shape: &Shape,
    conversions: &mut Conversions,
    party: usize,
    set: Set,
    from: Option<usize>,
    costs: &mut Vec<f64>,
) {
    let Some((produced, demanded)) = shape.parties.get(party) else {
        costs.extend(from.map(|from| shape.cost(conversions, from, set)));
        return;
    };
    for (label, demand) in demanded.iter().enumerate() {
        let from = produced.as_ref().map_or(from, |produced| Some(produced[label]));
        fill(shape, conversions, party + 1, set | demand, from, costs);
    }
}

/// More subsets of shards than this are not tried all; then those of at most two.
const SUBSETS: u32 = 7;

/// The sets of placements worth making available: shards, with or without `Replicate`, with or without `Partial`.
///
/// Left out is what follows for nothing from the rest of the set, and every set that another one makes useless.
fn available_sets(shape: &Shape, conversions: &mut Conversions) -> Vec<Set> {
    let demanded = shape
        .parties
        .iter()
        .flat_map(|(_, demanded)| demanded)
        .fold(shape.fixed, |all, set| all | set);
    // Replicated (number 0) is worth having even if nobody reads it: the rest follows from it.
    let extras = demanded & !conversions.shards() | 1;
    let shards = demanded & conversions.shards();
    let all = shards.count_ones() <= SUBSETS;
    let minimal = |&set: &Set| numbers(set).all(|number| conversions.free(set & !(1 << number)) >> number & 1 == 0);
    let mut candidates: Vec<Set> = Vec::new();
    for extra in subsets(extras, u32::MAX) {
        candidates.extend(subsets(shards, if all { u32::MAX } else { 2 }).map(|set| set | extra));
    }
    if !candidates.contains(&demanded) {
        candidates.push(demanded);
    }
    candidates.retain(minimal);
    let reach: Vec<Set> = candidates.iter().map(|&set| conversions.free(set) & demanded).collect();
    let costs: Vec<Vec<f64>> = candidates
        .iter()
        .map(|&set| {
            shape
                .produced()
                .iter()
                .map(|&from| shape.cost(conversions, from, set))
                .collect()
        })
        .collect();
    let makes_useless = |better: usize, set: usize| {
        let covers = reach[set] & !reach[better] == 0;
        let cheaper = costs[better].iter().zip(&costs[set]).all(|(a, b)| a <= b);
        let equal = reach[set] == reach[better] && costs[set] == costs[better];
        covers && cheaper && (!equal || better < set)
    };
    let useful = |set: &usize| !(0..candidates.len()).any(|better| better != *set && makes_useless(better, *set));
    (0..candidates.len())
        .filter(useful)
        .map(|set| candidates[set])
        .collect()
}

/// The subsets of a set with at most `size` elements, ascending.
fn subsets(set: Set, size: u32) -> impl Iterator<Item = Set> {
    let mut next = Some(0);
    std::iter::from_fn(move || {
        let subset: Set = next?;
        let following = (subset | !set).wrapping_add(1) & set;
        next = (following != 0).then_some(following);
        Some(subset)
    })
    .filter(move |subset| subset.count_ones() <= size)
}
