//! Cost tables of a class: over its producer and readers at once, or pairwise.

use rustc_hash::FxHashMap;

use super::convert::{Conversions, Set};
use super::crossing::{Crossing, Made, Memory, Needs, Way};
use super::model::Encoding;
use super::pairwise::{Label, pairwise};

/// What the tables of a class depend on, beside its conversions. Classes of equal shape have equal tables.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The conversions' number among all that differ.
    pub conversions: usize,
    /// By variable in ascending order: by label, what is produced (of the producer), and the placements demanded.
    pub parties: Vec<(Option<Vec<Made>>, Vec<Needs>)>,
    /// Placements demanded whatever is decided.
    pub fixed: Needs,
    /// Sets of placements, one of each of which is demanded.
    pub ends: Vec<Set>,
    /// Whose memory the class is in.
    pub memory: Memory,
}

impl Shape {
    /// Number of entries of the joint table.
    pub fn entries(&self) -> usize {
        self.parties
            .iter()
            .fold(1, |entries, (_, demanded)| entries.saturating_mul(demanded.len()))
    }
}

/// What the costs of a shape are taken from.
struct Costs<'a> {
    shape: &'a Shape,
    conversions: &'a mut Conversions,
    crossing: Crossing<'a>,
    /// Of what is read on both sides of the boundary.
    known: FxHashMap<(Made, Needs), f64>,
}

impl Costs<'_> {
    fn of(&mut self, made: Made, needs: Needs) -> f64 {
        let needs = needs | self.shape.fixed;
        if needs.later == 0 {
            return self.crossing.create(self.conversions, made, needs.now);
        }
        let (crossing, conversions) = (self.crossing, &mut *self.conversions);
        let known = self.known.entry((made, needs));
        *known.or_insert_with(|| crossing.cheapest(conversions, made, needs).2)
    }
}

/// A variable of a class's own.
#[derive(Clone, Debug, PartialEq)]
pub enum Own {
    /// By label, the placements that are made available in the phase of the producer.
    Available(Vec<Label>),
    /// By label, how the class gets over the boundary.
    Kept(Vec<Way>),
    /// By label, the placements that are made available behind the boundary.
    Later(Vec<Label>),
}

impl Own {
    /// Number of labels.
    pub fn labels(&self) -> usize {
        match self {
            Self::Available(labels) | Self::Later(labels) => labels.len(),
            Self::Kept(ways) => ways.len(),
        }
    }
}

/// The tables of a class: one over all parties, or pairwise ones through variables of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tables {
    /// The variables.
    pub own: Vec<Own>,
    /// Costs over parties, by number, and variables, by number behind those of the parties.
    pub factors: Vec<(Vec<usize>, Vec<f64>)>,
}

impl Tables {
    /// The tables of a shape. `prices` are those of keeping each placement over the boundary, where there is one.
    pub fn new(shape: &Shape, conversions: &mut Conversions, prices: &[f64], encoding: Encoding) -> Self {
        let crossing = Crossing {
            ends: &shape.ends,
            memory: shape.memory,
            prices,
            sets: encoding.sets,
        };
        if shape.entries() > encoding.joint_entries && shape.parties.len() > 2 {
            return pairwise(shape, conversions, &crossing);
        }
        let mut costs = Costs {
            shape,
            conversions,
            crossing,
            known: FxHashMap::default(),
        };
        let mut entries = Vec::with_capacity(shape.entries());
        fill(&mut costs, 0, Needs::default(), None, &mut entries);
        Self {
            own: Vec::new(),
            factors: vec![((0..shape.parties.len()).collect(), entries)],
        }
    }
}

/// Appends the joint table's rest, for labels of the first parties that make `made` and demand `needs`.
fn fill(costs: &mut Costs, party: usize, needs: Needs, made: Option<Made>, entries: &mut Vec<f64>) {
    let shape = costs.shape;
    let Some((produced, demanded)) = shape.parties.get(party) else {
        entries.extend(made.map(|made| costs.of(made, needs)));
        return;
    };
    for (label, &demand) in demanded.iter().enumerate() {
        let made = produced.as_ref().map_or(made, |produced| Some(produced[label]));
        fill(costs, party + 1, needs | demand, made, entries);
    }
}
