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
    /// So many placements are kept, nobody says which. No program does that: it stands for all larger sets than are told
    /// apart, and costs no more than any of them.
    Many(usize),
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
    /// No more sets of placements to keep are told apart, if those of at most two are not more.
    pub sets: usize,
}

impl Crossing<'_> {
    /// The cheapest way to meet the needs by what is made, converted and kept, with its cost; and a cost that no way is
    /// below, the same one where all sets that may be kept are told apart.
    pub fn cheapest(&self, conversions: &mut Conversions, made: Made, needs: Needs) -> (Way, f64, f64) {
        let Needs { now, later } = needs;
        if later == 0 {
            let cost = self.create(conversions, made, now);
            return (Way::Nothing, cost, cost);
        }
        if made.again {
            let cost = self.create(conversions, made, now) + conversions.costs(later)[made.placement];
            return (Way::Again, cost, cost);
        }
        let mut best = (f64::INFINITY, 1 << made.placement);
        let most = self.most_kept(conversions.least(later));
        let worth = conversions.worth_keeping(most, self.sets);
        for &kept in &worth.sets {
            let price = self.price(made, kept);
            if price >= best.0 {
                continue;
            }
            // No sum is less than part of it, whatever its order.
            let spread = conversions.spread(kept, later);
            if price + spread < best.0 {
                let cost = self.create(conversions, made, now | kept) + price + spread;
                if cost < best.0 {
                    best = (cost, kept);
                }
            }
        }
        let least = |many| self.create(conversions, made, now) + self.price_of_many(made, many);
        (Way::Keep(best.1), best.0, worth.many.map_or(best.0, least).min(best.0))
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

    /// No set of so many placements has a lower price.
    pub fn price_of_many(&self, made: Made, many: usize) -> f64 {
        let always = if self.memory == Memory::Stored {
            1 << made.placement
        } else {
            0
        };
        let prices = (0..self.prices.len()).map(|number| self.price(made, always | 1 << number));
        let mut prices: Vec<f64> = prices.collect();
        prices.sort_by(f64::total_cmp);
        prices.iter().take(many).sum()
    }

    /// How many placements are kept at most to make a set without what follows for nothing: each of the set is made from
    /// one that is kept, and an input's own placement is kept anyway.
    pub fn most_kept(&self, later: Set) -> usize {
        later.count_ones() as usize + usize::from(self.memory == Memory::Stored)
    }
}
