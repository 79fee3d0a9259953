//! The cost of a class whose tensors are read on both sides of the boundary between forward and backward.
//!
//! What the backward reads is made again there (the producer runs a second time), or made from what is *kept*: some of its
//! placements, or others, from which the rest is converted behind the boundary. Keeping one shard of an activation, and
//! gathering a sharded parameter a second time, are choices of that kind.

use super::convert::{Conversions, Set, numbers};

/// The placements demanded of a class, as sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Needs {
    /// In the phase in which the class is produced.
    pub now: Set,
    /// In the backward, of a class that is produced before it.
    pub later: Set,
}

impl std::ops::BitOr for Needs {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self {
            now: self.now | other.now,
            later: self.later | other.later,
        }
    }
}

/// What one label of a producer yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Made {
    /// The number of the placement.
    pub placement: usize,
    /// Whether it is made a second time, in the backward.
    pub again: bool,
}

/// Whose memory a class is in, which decides what keeping it costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Memory {
    /// Of its own.
    #[default]
    Own,
    /// That of an input: the placement that is stored is there all the time.
    Stored,
    /// As produced, that of another tensor, of which it is a view: only by keeping that can it be there again.
    Lent,
    /// Its own, held to the end of the step in any case, as an output.
    Held,
}

/// How a class gets over the boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The backward does not read it.
    Nothing,
    /// The backward makes it again: nothing is kept.
    Again,
    /// These placements are kept.
    Keep(Set),
}

/// What the costs of a class depend on, beside its conversions.
#[derive(Clone, Copy, Debug)]
pub struct Crossing<'a> {
    /// Sets of placements, one of each of which is demanded in the phase of the producer.
    pub ends: &'a [Set],
    /// Whose memory it is.
    pub memory: Memory,
    /// By placement, the price of keeping it; empty where all is one phase.
    pub prices: &'a [f64],
}

impl Crossing<'_> {
    /// Least cost of what is made, converted and kept to meet the needs, and the way that costs it.
    pub fn cheapest(&self, conversions: &mut Conversions, made: Made, needs: Needs) -> (f64, Way) {
        let Needs { now, later } = needs;
        if later == 0 {
            return (self.create(conversions, made, now), Way::Nothing);
        }
        if made.again {
            let cost = self.create(conversions, made, now) + conversions.costs(later)[made.placement];
            return (cost, Way::Again);
        }
        let mut best = (f64::INFINITY, Way::Keep(1 << made.placement));
        let most = conversions.least(later).count_ones() as usize;
        for kept in worth_keeping(conversions, most, self.memory) {
            let price = self.price(made, kept);
            if price < best.0 {
                let cost = self.create(conversions, made, now | kept) + price + conversions.spread(kept, later);
                if cost < best.0 {
                    best = (cost, Way::Keep(kept));
                }
            }
        }
        best
    }

    /// Cost of creating a set of placements in the phase of the producer.
    pub fn create(&self, conversions: &mut Conversions, made: Made, set: Set) -> f64 {
        (if self.ends.is_empty() {
            conversions.costs(set)
        } else {
            conversions.ending_costs(set, self.ends)
        })[made.placement]
    }

    /// The price of keeping a set of placements; infinite where it cannot be kept.
    pub fn price(&self, made: Made, kept: Set) -> f64 {
        let price = |priced| numbers(priced).map(|number| self.prices[number]).sum();
        self.priced(made, kept).map_or(f64::INFINITY, price)
    }

    /// Those of a set of placements that have a price when it is kept; none where it cannot be. What an input stores is
    /// always among what is kept of it.
    pub fn priced(&self, made: Made, kept: Set) -> Option<Set> {
        let produced = 1 << made.placement;
        match self.memory {
            Memory::Own => Some(kept),
            Memory::Held => Some(0),
            Memory::Stored => (kept & produced != 0).then_some(kept & !produced),
            Memory::Lent => (kept & produced == 0).then_some(kept),
        }
    }
}

/// More sets than this are not tried.
const KEPT_SETS: usize = 256;

/// What is worth keeping to make sets of so many placements: each is made from one that is kept, and an input's own
/// placement is kept anyway. No more placements at a time than there are few enough sets for, but two at least.
pub fn worth_keeping(conversions: &Conversions, later: usize, memory: Memory) -> Vec<Set> {
    let most = later + usize::from(memory == Memory::Stored);
    let mut kept = vec![0];
    let mut last = kept.clone();
    for size in 1..=most.max(2) {
        let larger = |&set: &Set| {
            let above = if set == 0 { 0 } else { set.ilog2() as usize + 1 };
            (above..conversions.count()).map(move |number| set | 1 << number)
        };
        last = last.iter().flat_map(larger).collect();
        if size > 2 && kept.len() + last.len() > KEPT_SETS {
            break;
        }
        kept.extend(&last);
    }
    kept.split_off(1)
}
