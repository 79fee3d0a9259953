//! Cost tables of a class: over its producer and readers at once, or pairwise.

use rustc_hash::FxHashMap;

use super::convert::{Conversions, Set};
use super::crossing::{Crossing, Made, Memory, Needs, Way};
use super::model::{Encoding, Kind};
use super::pairwise::{Label, pairwise};

/// What the tables of a class depend on, beside its conversions. Classes of equal shape have equal tables.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The conversions and the prices of keeping.
    pub kind: Kind,
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
        Self {
            own: Vec::new(),
            factors: vec![((0..shape.parties.len()).collect(), joint(shape, conversions, &crossing))],
        }
    }
}

/// The joint table: what costs the same, since the same is made and demanded, is found once.
fn joint(shape: &Shape, conversions: &mut Conversions, crossing: &Crossing) -> Vec<f64> {
    // What some labels of the first parties make and demand together, and by entry of their table, which of these.
    let mut states: Vec<(Option<Made>, Needs)> = vec![(None, shape.fixed)];
    let mut entries = vec![0];
    for (produced, demanded) in &shape.parties {
        let mut known: FxHashMap<(Option<Made>, Needs), usize> = FxHashMap::default();
        let mut next = Vec::new();
        let mut steps = Vec::with_capacity(states.len() * demanded.len());
        for &(made, needs) in &states {
            for (label, &demand) in demanded.iter().enumerate() {
                let made = produced.as_ref().map_or(made, |produced| Some(produced[label]));
                let state = (made, needs | demand);
                steps.push(*known.entry(state).or_insert_with(|| {
                    next.push(state);
                    next.len() - 1
                }));
            }
        }
        let labels = demanded.len();
        entries = entries
            .iter()
            .flat_map(|&state| &steps[state * labels..][..labels])
            .copied()
            .collect();
        states = next;
    }
    let costs = states.iter().map(|&(made, needs)| {
        let made = made.unwrap_or_else(|| unreachable!("the first party produces"));
        crossing.cheapest(conversions, made, needs).2
    });
    let costs: Vec<f64> = costs.collect();
    entries.into_iter().map(|state| costs[state]).collect()
}
