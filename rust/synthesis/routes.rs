//! How a solution creates the placements of a class that are read, before and behind the boundary.

use super::convert::{Conversions, Set};
use super::crossing::{Memory, Way};
use super::model::Model;

/// By number of a placement of a class's root, the placement that it is converted from.
pub type Plan = Vec<Option<usize>>;

/// How the placements of a class that are read come to be there.
#[derive(Debug)]
pub struct Route {
    /// In the phase of the producer.
    pub before: Plan,
    /// Behind the boundary, of classes that are there before it.
    pub after: Option<Plan>,
    /// What is kept over the boundary.
    pub kept: Set,
    /// What is there behind the boundary as it was before it: what is kept, and an input as stored.
    pub stays: Set,
    /// Those of the kept ones that have a price.
    pub priced: Set,
    /// The price of that.
    pub price: f64,
}

/// The route of a class under an assignment.
pub fn route(model: &mut Model, class: usize, assignment: &[usize]) -> Route {
    let (made, needs, way) = model.way(class, assignment);
    let produced = 1 << made.placement;
    let (demands, kind) = (&model.demands[class], model.kinds[class]);
    let crossing = demands.crossing(&model.prices[kind.prices], model.sets);
    let (kept, source, priced, price) = match way {
        Way::Nothing | Way::Again => (0, produced, 0, 0.0),
        Way::Keep(kept) => (
            kept,
            kept,
            crossing.priced(made, kept).unwrap_or_default(),
            crossing.price(made, kept),
        ),
        Way::Many(_) => unreachable!("a real way keeps known placements"),
    };
    let conversions = &mut model.conversions[kind.conversions];
    let first = conversions.with_ends(made.placement, needs.now | kept, &demands.ends);
    let stored = if demands.memory == Memory::Stored { produced } else { 0 };
    Route {
        before: plan(conversions, produced, first),
        after: demands.before.then(|| plan(conversions, source, needs.later)),
        kept,
        stays: kept | stored,
        priced,
        price,
    }
}

/// How to create a set from some placements.
fn plan(conversions: &mut Conversions, sources: Set, set: Set) -> Plan {
    let mut plan = vec![None; conversions.count()];
    let mut reached = sources;
    for (source, part) in conversions.parts(sources, set) {
        for (from, to) in conversions.plan(source, part) {
            if reached >> to & 1 == 0 {
                reached |= 1 << to;
                plan[to] = Some(from);
            }
        }
    }
    plan
}
