//! Elimination of variables by dynamic programming (bucket elimination: Dechter 1999).

use std::collections::BTreeSet;
use std::rc::Rc;

use super::remainder::Remainder;
use super::rows::minimum;
use super::table::Table;
use super::watch::Watch;

/// The tables that held a variable when it was eliminated: they choose its label once the others' are known.
pub(super) struct Bucket {
    pub variable: usize,
    pub tables: Vec<Table>,
    /// The labels behind the tables' axes: first those of the variable, then those of the others.
    pub labels: Vec<(usize, Rc<[usize]>)>,
}

impl Bucket {
    /// The label with the least cost; the first one of several.
    pub fn best_label(&self, assignment: &[usize]) -> usize {
        let labels = &self.labels[0].1;
        let mut costs = vec![0.0; labels.len()];
        for table in &self.tables {
            let mut offset = 0;
            let mut stride = 1;
            let mut own = 0;
            for (&variable, &size) in table.scope.iter().zip(&table.shape).rev() {
                if variable == self.variable {
                    own = stride;
                } else {
                    offset += stride * self.position(variable, assignment[variable]);
                }
                stride *= size;
            }
            for (position, cost) in costs.iter_mut().enumerate() {
                *cost += table.costs[offset + position * own];
            }
        }
        let least = minimum(&costs);
        let position = costs
            .iter()
            .position(|&cost| cost == least)
            .expect("a variable has labels");
        labels[position]
    }

    fn position(&self, variable: usize, label: usize) -> usize {
        let (_, labels) = self
            .labels
            .iter()
            .find(|(other, _)| *other == variable)
            .expect("in the bucket's scope");
        labels
            .binary_search(&label)
            .expect("labels only become fewer, so it was there")
    }
}

/// A sum of tables with up to so many times the entries of the limit is made too, where the table that it leaves has at
/// most [`GROWTH`] times the entries of those that it replaces: dual ascent then takes no longer and bounds better.
const FREE: u64 = 16;
const GROWTH: u64 = 2;

/// Eliminates every variable whose sum of tables has at most `limit` entries, the smallest first, and those whose
/// elimination is as good as free; then adds each table whose variables all stand in another to that other. Returns the
/// number of entries added up.
pub(super) fn eliminate_small(remainder: &mut Remainder, limit: u64, watch: &Watch) -> u64 {
    let mut entries = 0;
    let mut sizes = Neighbourhood::new(remainder);
    let mut queue = BTreeSet::new();
    let mut queued: Vec<u64> = vec![0; remainder.labels.len()];
    for variable in remainder.variables() {
        queued[variable] = sizes.entries(remainder, variable);
        queue.insert((queued[variable], variable));
    }
    while let Some((size, variable)) = queue.pop_first() {
        if size > limit && (size > FREE.saturating_mul(limit) || grows(remainder, variable, size)) {
            continue; // until a neighbour's elimination changes its size
        }
        let neighbours = sizes.neighbours(remainder, variable);
        let Some(added) = remainder.eliminate(variable, watch) else {
            break;
        };
        entries += added;
        for neighbour in neighbours {
            queue.remove(&(queued[neighbour], neighbour));
            queued[neighbour] = sizes.entries(remainder, neighbour);
            queue.insert((queued[neighbour], neighbour));
        }
    }
    absorb(remainder);
    entries
}

/// Whether eliminating a variable, whose tables' sum has `size` entries, leaves a table much larger than those.
fn grows(remainder: &Remainder, variable: usize, size: u64) -> bool {
    let entries = |&index: &usize| remainder.tables[index].costs.len() as u64;
    let replaced: u64 = remainder.incident[variable].iter().map(entries).sum();
    size / remainder.labels[variable].len() as u64 > GROWTH * replaced
}

/// Adds each table to the smallest one whose variables include its own: the sum of their minima can only grow.
fn absorb(remainder: &mut Remainder) {
    for index in 0..remainder.tables.len() {
        let Some(&first) = remainder.tables[index].scope.first() else {
            continue;
        };
        let table = &remainder.tables[index];
        let includes = |other: &Table| {
            other.scope.len() > table.scope.len() && table.scope.iter().all(|v| other.scope.binary_search(v).is_ok())
        };
        let larger = remainder.incident[first]
            .iter()
            .copied()
            .filter(|&other| includes(&remainder.tables[other]));
        if let Some(into) = larger.min_by_key(|&other| remainder.tables[other].costs.len()) {
            remainder.join(index, into);
        }
    }
}

/// Finds the variables that share a table with a given one.
struct Neighbourhood {
    /// For each variable, the last query that met it.
    met: Vec<usize>,
    query: usize,
}

impl Neighbourhood {
    fn new(remainder: &Remainder) -> Neighbourhood {
        Neighbourhood {
            met: vec![0; remainder.labels.len()],
            query: 0,
        }
    }

    fn neighbours(&mut self, remainder: &Remainder, variable: usize) -> Vec<usize> {
        self.query += 1;
        self.met[variable] = self.query;
        let mut neighbours = Vec::new();
        for &index in &remainder.incident[variable] {
            for &other in &remainder.tables[index].scope {
                if self.met[other] != self.query {
                    self.met[other] = self.query;
                    neighbours.push(other);
                }
            }
        }
        neighbours
    }

    /// Number of entries of the sum of a variable's tables.
    fn entries(&mut self, remainder: &Remainder, variable: usize) -> u64 {
        let size = |variable: usize| remainder.labels[variable].len() as u64;
        let neighbours = self.neighbours(remainder, variable);
        neighbours
            .into_iter()
            .fold(size(variable), |entries, other| entries.saturating_mul(size(other)))
    }
}
