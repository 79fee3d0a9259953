//! The tables of a class through variables of its own, where one table over all of its parties would be too large.
//!
//! *Available*: the placements that are there in the phase of the producer. Where the class is read on both sides of the
//! boundary also *kept*, how it gets over, and *later*, the placements that are there behind it. Each is tied to the
//! parties, and to the one before it, by tables over two variables.

use super::convert::{Conversions, Set};
use super::crossing::{Crossing, Needs, Way};
use super::tables::{Own, Shape, Tables};

/// What a label of a class's own variable makes available.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// One set of placements; or, for all that are too large to be told apart, sets of which each of these holds one.
    sets: Vec<Set>,
    /// What can be had for nothing from it; anything from those that are not told apart.
    covers: Set,
}

impl Label {
    fn one(set: Set, conversions: &Conversions) -> Self {
        Self {
            sets: vec![set],
            covers: conversions.free(set),
        }
    }

    /// The cost of the cheapest of the sets.
    fn cost(&self, of: impl FnMut(Set) -> f64) -> f64 {
        self.sets.iter().copied().map(of).fold(f64::INFINITY, f64::min)
    }

    fn lacks(&self, set: Set) -> bool {
        set & !self.covers != 0
    }

    fn is_many(&self) -> bool {
        self.covers == Set::MAX
    }
}

/// The tables of a shape, without labels that another one makes useless.
pub fn pairwise(shape: &Shape, conversions: &mut Conversions, crossing: &Crossing) -> Tables {
    let needs = shape.parties.iter().flat_map(|(_, demanded)| demanded);
    let crosses = needs.fold(shape.fixed, |all, &needs| all | needs).later != 0;
    let (now, many) = unions(shape, conversions, crossing.sets, |needs| needs.now);
    let mut split = Split {
        shape,
        tables: Tables::default(),
    };
    if crosses {
        let (later, many_later) = unions(shape, conversions, crossing.sets, |needs| needs.later);
        let largest = |most: usize, set: &Set| most.max(crossing.most_kept(*set));
        let most = match &many_later {
            Some(_) => conversions.count(),
            None => later.iter().fold(0, largest),
        };
        let worth = conversions.worth_keeping(most, crossing.sets);
        let mut both: Vec<Set> = now.clone();
        for &set in &now {
            both.extend(worth.sets.iter().map(|&kept| conversions.least(set | kept)));
        }
        split.available(labels(distinct(both), many, conversions), conversions, crossing);
        let keep = worth
            .sets
            .iter()
            .copied()
            .map(Way::Keep)
            .chain(worth.many.map(Way::Many));
        let ways = [Way::Nothing, Way::Again].into_iter().chain(keep).collect();
        split.across(ways, labels(later, many_later, conversions), conversions, crossing);
    } else {
        split.available(labels(now, many, conversions), conversions, crossing);
    }
    while split.drop_useless() {}
    split.tables
}

/// The sets that readers can demand together, without what follows for nothing; and `Replicate`, from which much follows.
/// Where they are more than `limit`, only those of so few shards that they are not, but of two at least; and sets of which
/// each other one holds one.
fn unions(
    shape: &Shape,
    conversions: &Conversions,
    limit: usize,
    of: fn(&Needs) -> Set,
) -> (Vec<Set>, Option<Vec<Set>>) {
    let shards = |set: Set| (set & conversions.shards()).count_ones();
    let mut sets = vec![of(&shape.fixed)];
    let mut many = Vec::new();
    let mut all = sets[0];
    for (_, demanded) in &shape.parties {
        let demanded = distinct(demanded.iter().map(of).collect());
        let mut next = Vec::with_capacity(sets.len() * demanded.len());
        for &set in &sets {
            next.extend(demanded.iter().map(|demand| conversions.least(set | demand)));
        }
        sets = distinct(next);
        while sets.len() > limit {
            let most = sets.iter().map(|&set| shards(set)).max().unwrap_or(0);
            if most <= 2 {
                break;
            }
            many.extend(sets.extract_if(.., |set| shards(*set) == most));
        }
        all = demanded.iter().fold(all, |all, demand| all | demand);
    }
    let whole: Vec<Set> = sets.iter().map(|set| conversions.least(set | 1)).collect();
    sets.extend(whole);
    sets.push(conversions.least(all));
    (distinct(sets), (!many.is_empty()).then(|| distinct(many)))
}

fn labels(sets: Vec<Set>, many: Option<Vec<Set>>, conversions: &Conversions) -> Vec<Label> {
    let told_apart = sets.into_iter().map(|set| Label::one(set, conversions));
    let many = many.map(|sets| Label { sets, covers: Set::MAX });
    told_apart.chain(many).collect()
}

fn distinct(mut sets: Vec<Set>) -> Vec<Set> {
    sets.sort_unstable();
    sets.dedup();
    sets
}

struct Split<'a> {
    shape: &'a Shape,
    tables: Tables,
}

impl Split<'_> {
    /// The number of a variable of the class's own.
    fn number(&self, own: usize) -> usize {
        self.shape.parties.len() + own
    }

    fn factor(&mut self, one: usize, other: usize, costs: Vec<f64>) {
        if costs.iter().any(|&cost| cost != 0.0) {
            self.tables.factors.push((vec![one, other], costs));
        }
    }

    /// What is there in the phase of the producer covers what is demanded there, and is created there.
    fn available(&mut self, labels: Vec<Label>, conversions: &mut Conversions, crossing: &Crossing) {
        let fixed = self.shape.fixed.now;
        for (party, (produced, demanded)) in self.shape.parties.iter().enumerate() {
            let mut costs = Vec::with_capacity(demanded.len() * labels.len());
            for (number, demand) in demanded.iter().enumerate() {
                costs.extend(labels.iter().map(|label| match produced {
                    _ if label.lacks(demand.now | fixed) => f64::INFINITY,
                    Some(made) => label.cost(|set| crossing.create(conversions, made[number], set)),
                    None => 0.0,
                }));
            }
            self.factor(party, self.number(0), costs);
        }
        self.tables.own.push(Own::Available(labels));
    }

    /// What is kept is available before the boundary; what is there behind it comes from that, or is made again.
    fn across(&mut self, ways: Vec<Way>, later: Vec<Label>, conversions: &mut Conversions, crossing: &Crossing) {
        let Own::Available(available) = &self.tables.own[0] else {
            unreachable!("what is available comes first");
        };
        let mut costs = Vec::with_capacity(available.len() * ways.len());
        for label in available {
            costs.extend(ways.iter().map(|way| match way {
                Way::Keep(kept) if label.lacks(*kept) => f64::INFINITY,
                Way::Keep(_) | Way::Many(_) | Way::Nothing | Way::Again => 0.0,
            }));
        }
        self.factor(self.number(0), self.number(1), costs);
        let fixed = self.shape.fixed.later;
        for (party, (produced, demanded)) in self.shape.parties.iter().enumerate() {
            let mut costs = Vec::with_capacity(demanded.len() * later.len());
            for (number, demand) in demanded.iter().enumerate() {
                costs.extend(later.iter().map(|label| match produced {
                    _ if label.lacks(demand.later | fixed) => f64::INFINITY,
                    Some(made) if made[number].again => {
                        label.cost(|set| conversions.costs(set)[made[number].placement])
                    }
                    Some(_) | None => 0.0,
                }));
            }
            self.factor(party, self.number(2), costs);
            let Some(made) = produced else { continue };
            let costs = made.iter().flat_map(|&made| {
                ways.iter().map(move |way| match (made.again, way) {
                    (_, Way::Nothing) | (true, Way::Again) => 0.0,
                    (false, Way::Keep(kept)) => crossing.price(made, *kept),
                    (false, Way::Many(many)) => crossing.price_of_many(made, *many),
                    (false, Way::Again) | (true, Way::Keep(_) | Way::Many(_)) => f64::INFINITY,
                })
            });
            let costs = costs.collect();
            self.factor(party, self.number(1), costs);
        }
        let mut costs = Vec::with_capacity(ways.len() * later.len());
        for way in &ways {
            costs.extend(later.iter().map(|label| match way {
                Way::Nothing if label.sets != [0] => f64::INFINITY,
                Way::Keep(kept) => label.cost(|set| conversions.spread(*kept, set)),
                // It is not worth it for fewer.
                Way::Many(many) if !label.is_many() && crossing.most_kept(label.sets[0]) < *many => f64::INFINITY,
                Way::Nothing | Way::Again | Way::Many(_) => 0.0,
            }));
        }
        self.factor(self.number(1), self.number(2), costs);
        self.tables.own.extend([Own::Kept(ways), Own::Later(later)]);
    }

    /// Drops labels than which another one is as good with all neighbours; whether there were any.
    fn drop_useless(&mut self) -> bool {
        let mut dropped = false;
        for own in (0..self.tables.own.len()).rev() {
            let labels = self.tables.own[own].labels();
            let rows: Vec<Vec<f64>> = (0..labels).map(|label| self.row(own, label)).collect();
            let makes_useless = |better: usize, label: usize| {
                better != label
                    && rows[better].iter().zip(&rows[label]).all(|(a, b)| a <= b)
                    && (better < label || rows[better] != rows[label])
            };
            let useful: Vec<bool> = (0..labels)
                .map(|label| !(0..labels).any(|better| makes_useless(better, label)))
                .collect();
            if useful.contains(&false) {
                self.retain(own, &useful);
                dropped = true;
            }
        }
        dropped
    }

    /// All costs of a label.
    fn row(&self, own: usize, label: usize) -> Vec<f64> {
        let (variable, labels) = (self.number(own), self.tables.own[own].labels());
        let mut row = Vec::new();
        for (scope, costs) in &self.tables.factors {
            if scope[1] == variable {
                row.extend(costs.iter().skip(label).step_by(labels));
            } else if scope[0] == variable {
                let width = costs.len() / labels;
                row.extend(&costs[label * width..][..width]);
            }
        }
        row
    }

    fn retain(&mut self, own: usize, useful: &[bool]) {
        let (variable, labels) = (self.number(own), useful.len());
        for (scope, costs) in &mut self.tables.factors {
            let width = if scope[1] == variable { 1 } else { costs.len() / labels };
            if scope.contains(&variable) {
                let mut place = 0..costs.len();
                costs.retain(|_| place.next().is_some_and(|place| useful[place / width % labels]));
            }
        }
        let mut label = useful.iter();
        let mut keep = || label.next().is_some_and(|&useful| useful);
        match &mut self.tables.own[own] {
            Own::Available(labels) | Own::Later(labels) => labels.retain(|_| keep()),
            Own::Kept(ways) => ways.retain(|_| keep()),
        }
    }
}
