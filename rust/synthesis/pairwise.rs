//! The tables of a class through variables of its own, where one table over all of its parties would be too large.
//!
//! *Available*: the placements that are there in the phase of the producer. Where the class is read on both sides of the
//! boundary also *kept*, how it gets over, and *later*, the placements that are there behind it. Each is tied to the
//! parties, and to the one before it, by tables over two variables.

use super::convert::{Conversions, Set};
use super::crossing::{Crossing, Needs, Way, worth_keeping};
use super::tables::{Own, Shape, Tables};

/// Where there are more sets than this, only those of at most two shards are tried.
const SETS: usize = 256;

/// The tables of a shape, without labels that another one makes useless.
pub fn pairwise(shape: &Shape, conversions: &mut Conversions, crossing: &Crossing) -> Tables {
    let needs = shape.parties.iter().flat_map(|(_, demanded)| demanded);
    let crosses = needs.fold(shape.fixed, |all, &needs| all | needs).later != 0;
    let now = unions(shape, conversions, |needs| needs.now);
    let mut split = Split {
        shape,
        tables: Tables::default(),
    };
    if crosses {
        let later = unions(shape, conversions, |needs| needs.later);
        let most = later.iter().map(|set| set.count_ones()).max().unwrap_or(0) as usize;
        let kept = worth_keeping(conversions, most, shape.memory);
        let mut both: Vec<Set> = now.clone();
        for &set in &now {
            both.extend(kept.iter().map(|&kept| conversions.least(set | kept)));
        }
        split.available(distinct(both), conversions, crossing);
        let keep = kept.into_iter().map(Way::Keep);
        let ways = [Way::Nothing, Way::Again].into_iter().chain(keep).collect();
        split.across(ways, later, conversions, crossing);
    } else {
        split.available(now, conversions, crossing);
    }
    while split.drop_useless() {}
    split.tables
}

/// The sets that readers can demand together, without what follows for nothing; and `Replicate`, from which much follows.
fn unions(shape: &Shape, conversions: &Conversions, of: fn(&Needs) -> Set) -> Vec<Set> {
    let mut sets = vec![of(&shape.fixed)];
    let mut all = sets[0];
    for (_, demanded) in &shape.parties {
        let demanded = distinct(demanded.iter().map(of).collect());
        let mut next = Vec::with_capacity(sets.len() * demanded.len());
        for &set in &sets {
            next.extend(demanded.iter().map(|demand| conversions.least(set | demand)));
        }
        sets = distinct(next);
        if sets.len() > SETS {
            sets.retain(|set| (set & conversions.shards()).count_ones() <= 2);
        }
        all = demanded.iter().fold(all, |all, demand| all | demand);
    }
    let whole: Vec<Set> = sets.iter().map(|set| conversions.least(set | 1)).collect();
    sets.extend(whole);
    sets.push(conversions.least(all));
    distinct(sets)
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
    fn available(&mut self, sets: Vec<Set>, conversions: &mut Conversions, crossing: &Crossing) {
        let fixed = self.shape.fixed.now;
        for (party, (produced, demanded)) in self.shape.parties.iter().enumerate() {
            let mut costs = Vec::with_capacity(demanded.len() * sets.len());
            for (label, demand) in demanded.iter().enumerate() {
                costs.extend(sets.iter().map(|&set| match produced {
                    _ if (demand.now | fixed) & !conversions.free(set) != 0 => f64::INFINITY,
                    Some(made) => crossing.create(conversions, made[label], set),
                    None => 0.0,
                }));
            }
            self.factor(party, self.number(0), costs);
        }
        self.tables.own.push(Own::Available(sets));
    }

    /// What is kept is available before the boundary; what is there behind it comes from that, or is made again.
    fn across(&mut self, ways: Vec<Way>, later: Vec<Set>, conversions: &mut Conversions, crossing: &Crossing) {
        let Own::Available(available) = &self.tables.own[0] else {
            unreachable!("what is available comes first");
        };
        let mut costs = Vec::with_capacity(available.len() * ways.len());
        for &set in available {
            costs.extend(ways.iter().map(|way| match way {
                Way::Keep(kept) if kept & !conversions.free(set) != 0 => f64::INFINITY,
                Way::Keep(_) | Way::Nothing | Way::Again => 0.0,
            }));
        }
        self.factor(self.number(0), self.number(1), costs);
        let fixed = self.shape.fixed.later;
        for (party, (produced, demanded)) in self.shape.parties.iter().enumerate() {
            let mut costs = Vec::with_capacity(demanded.len() * later.len());
            for (label, demand) in demanded.iter().enumerate() {
                costs.extend(later.iter().map(|&set| match produced {
                    _ if (demand.later | fixed) & !conversions.free(set) != 0 => f64::INFINITY,
                    Some(made) if made[label].again => conversions.costs(set)[made[label].placement],
                    Some(_) | None => 0.0,
                }));
            }
            self.factor(party, self.number(2), costs);
            let Some(made) = produced else { continue };
            let costs = made.iter().flat_map(|&made| {
                ways.iter().map(move |way| match (made.again, way) {
                    (_, Way::Nothing) | (true, Way::Again) => 0.0,
                    (false, Way::Keep(kept)) => crossing.price(made, *kept),
                    (false, Way::Again) | (true, Way::Keep(_)) => f64::INFINITY,
                })
            });
            let costs = costs.collect();
            self.factor(party, self.number(1), costs);
        }
        let mut costs = Vec::with_capacity(ways.len() * later.len());
        for way in &ways {
            costs.extend(later.iter().map(|&set| match way {
                Way::Nothing if set != 0 => f64::INFINITY,
                Way::Nothing | Way::Again => 0.0,
                Way::Keep(kept) => conversions.spread(*kept, set),
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
            Own::Available(sets) | Own::Later(sets) => sets.retain(|_| keep()),
            Own::Kept(ways) => ways.retain(|_| keep()),
        }
    }
}
