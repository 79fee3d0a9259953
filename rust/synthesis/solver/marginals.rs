//! Min-marginals of a table, the least cost of each label of one of its variables, while costs are moved into it and out.
//!
//! The table itself stays as it is. Beside it stand, for each number of first variables, the table's minima over all
//! variables after them, and the sums of what those have added: a min-marginal takes no more than one look at the minima
//! over the variables behind, with the sums of those before. Both hold until a variable of theirs moves costs, so that
//! visits in order, and back in the reverse order, make each only once.

use super::rows::{minima_of_columns, minima_of_rows};
use super::table::Table;

/// What has been added to a table by label, with the minima and sums that follow.
#[derive(Default)]
pub(super) struct Lane {
    /// One after the other, since many are made:
    /// * *added*: one cost per label, variable after variable; negative where costs were moved out;
    /// * *minima*: for 1, 2, ... first variables, but not all: the least cost of each combination of their labels, with
    ///   what the other variables have added;
    /// * *sums*: for 0, 1, ... first variables, but not all: what each combination of their labels has added.
    space: Vec<f64>,
    /// Where the minima begin, and the sums.
    minima: usize,
    sums: usize,
    /// Minima over this number of first variables, and over more, are up to date.
    minima_from: usize,
    /// Sums over this number of first variables, and over less, are up to date.
    sums_to: usize,
}

impl Lane {
    pub fn new(table: &Table) -> Lane {
        let mut lane = Lane::default();
        lane.begin(table);
        lane
    }

    /// Makes it that of a table to which nothing was added, in the same memory.
    pub fn begin(&mut self, table: &Table) {
        let count = table.shape.len();
        let (all, _) = level(&table.shape, count);
        self.minima = table.shape.iter().sum();
        self.sums = self.minima + all.saturating_sub(1);
        self.space.clear();
        self.space.resize(self.sums + all, 0.0);
        self.minima_from = count;
        self.sums_to = count.saturating_sub(1); // nothing has moved
    }

    /// The least cost of each label of the variable with this place in the scope, with all that was added.
    /// Returns the number of entries visited.
    pub fn min_marginals(&mut self, table: &Table, axis: usize, result: &mut [f64]) -> usize {
        let mut visited = 0;
        while self.minima_from > axis + 1 {
            visited += self.lower(table);
        }
        while self.sums_to < axis {
            self.raise(&table.shape);
        }
        let (start, size) = level(&table.shape, axis + 1);
        let costs = if axis + 1 == table.shape.len() {
            &table.costs
        } else {
            &self.space[self.minima + start - 1..][..size]
        };
        let (start, size) = level(&table.shape, axis);
        minima_of_columns(costs, &self.space[self.sums + start..][..size], result);
        for (cost, added) in result.iter_mut().zip(&self.space[labels_before(&table.shape, axis)..]) {
            *cost += added;
        }
        visited + costs.len()
    }

    /// Makes the minima over one variable less. Returns the number of entries visited.
    fn lower(&mut self, table: &Table) -> usize {
        self.minima_from -= 1;
        let axis = self.minima_from;
        let (start, size) = level(&table.shape, axis);
        let (added, minima) = self.space.split_at_mut(self.minima);
        let added = &added[labels_before(&table.shape, axis)..][..table.shape[axis]];
        let (minima, from) = minima.split_at_mut(start - 1 + size);
        let costs = if axis + 1 == table.shape.len() {
            &table.costs
        } else {
            &from[..size * added.len()]
        };
        minima_of_rows(costs, added, &mut minima[start - 1..]);
        costs.len()
    }

    /// Makes the sums over one variable more.
    fn raise(&mut self, shape: &[usize]) {
        let axis = self.sums_to;
        self.sums_to += 1;
        let (start, size) = level(shape, axis);
        let (added, sums) = self.space.split_at_mut(self.sums);
        let own = &added[labels_before(shape, axis)..][..shape[axis]];
        let (from, sums) = sums.split_at_mut(start + size);
        for (sums, before) in sums.chunks_exact_mut(own.len()).zip(&from[start..]) {
            for (sum, cost) in sums.iter_mut().zip(own) {
                *sum = before + cost;
            }
        }
    }

    /// Moves costs out of the labels of the variable with this place in the scope.
    pub fn move_out(&mut self, shape: &[usize], axis: usize, costs: impl Iterator<Item = f64>) {
        for (added, cost) in self.space[labels_before(shape, axis)..self.minima]
            .iter_mut()
            .zip(costs)
        {
            *added -= cost;
        }
        self.minima_from = self.minima_from.max(axis + 1);
        self.sums_to = self.sums_to.min(axis);
    }

    /// Adds to the table's entries what was added by label. Returns what was moved out.
    pub fn settle(mut self, table: &mut Table) -> Vec<f64> {
        let last = table.shape.len() - 1;
        while self.sums_to < last {
            self.raise(&table.shape);
        }
        let own = &self.space[labels_before(&table.shape, last)..self.minima];
        let (start, _) = level(&table.shape, last);
        for (row, sum) in table
            .costs
            .chunks_exact_mut(own.len())
            .zip(&self.space[self.sums + start..])
        {
            for (cost, own) in row.iter_mut().zip(own) {
                *cost += sum + own;
            }
        }
        self.space[..self.minima].iter().map(|cost| -cost).collect()
    }
}

/// Where the entries over so many first variables lie among those over 0, 1, ..., and their number.
fn level(shape: &[usize], count: usize) -> (usize, usize) {
    shape[..count]
        .iter()
        .fold((0, 1), |(start, size), labels| (start + size, size * labels))
}

fn labels_before(shape: &[usize], axis: usize) -> usize {
    shape[..axis].iter().sum()
}
