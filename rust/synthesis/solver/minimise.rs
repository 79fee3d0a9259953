//! The inner loop of eliminations: tables that share a variable are added up and minimised over it.
//!
//! The sum itself is never stored. Its entries are made in blocks, one for each combination of labels of all variables
//! but the last: the variable's labels by those of the last one, whose costs lie side by side.

use super::rows::minima_of_columns;
use super::table::{Table, Walk, row_major};
use super::watch::Watch;

/// The sum of tables that hold `variable`, minimised over it; none where the watch ended it.
pub(super) fn minimise_over(variable: usize, tables: &[Table], watch: &Watch) -> Option<Table> {
    let mut others: Vec<(usize, usize)> = Vec::new();
    for table in tables {
        let sizes = table.scope.iter().copied().zip(table.shape.iter().copied());
        others.extend(sizes.filter(|&(other, _)| other != variable));
    }
    others.sort_unstable();
    others.dedup();
    let (scope, shape): (Vec<usize>, Vec<usize>) = others.into_iter().unzip();
    let labels = tables[0].shape[tables[0].axis(variable)];
    let size = shape.iter().product();
    let mut costs = vec![0.0; size];
    let (&last, outer) = scope.split_last().unwrap_or((&variable, &[]));
    let width = shape.last().copied().unwrap_or(1);

    // Tables with the last variable have blocks of rows, the others a single cost for each label. (Without any other
    // variable, all have rows of one entry.)
    let inner = [variable, last];
    let inner = &inner[..1 + scope.len().min(1)];
    let (mut rows, mut columns) = (Vec::new(), Vec::new());
    for table in tables {
        if scope.is_empty() || table.scope.binary_search(&last).is_ok() {
            rows.push(Aligned::new(table, outer, inner));
        } else {
            columns.push(Aligned::new(table, outer, &inner[..1]));
        }
    }
    absorb(&mut columns, size / width * labels);
    absorb(&mut rows, size * labels);

    // One loop over the last of the outer variables, a walk over those before.
    let strides = rows.iter().chain(&columns).map(|aligned| &aligned.strides[..]);
    let (steps, strides): (Vec<usize>, Vec<Vec<usize>>) = strides
        .map(|strides| {
            strides
                .split_last()
                .map_or((0, Vec::new()), |(&step, rest)| (step, rest.to_vec()))
        })
        .unzip();
    let before = outer.len().saturating_sub(1);
    let mut walk = Walk::new(&shape[..before], strides);
    let mut offsets = vec![0; steps.len()];
    let (mut row_sums, mut column_sums) = (vec![0.0; labels * width], vec![0.0; labels]);
    let steps_of_loop = shape[before..outer.len()].iter().product::<usize>();
    for results in costs.chunks_exact_mut(width * steps_of_loop) {
        if watch.visited((results.len() * labels) as u64) {
            return None;
        }
        offsets.copy_from_slice(&walk.offsets);
        for result in results.chunks_exact_mut(width) {
            let (row_offsets, column_offsets) = offsets.split_at(rows.len());
            let block = sum(&rows, row_offsets, &mut row_sums);
            let added = sum(&columns, column_offsets, &mut column_sums);
            minima_of_columns(block, added, result);
            for (offset, step) in offsets.iter_mut().zip(&steps) {
                *offset += step;
            }
        }
        walk.advance();
    }
    Some(Table { scope, shape, costs })
}

/// The sum of the tables' entries from these offsets on; in `space` unless it stands in a table, or is 0.
fn sum<'a>(tables: &'a [Aligned], offsets: &[usize], space: &'a mut [f64]) -> &'a [f64] {
    let at = |index: usize, size: usize| &tables[index].costs()[offsets[index]..offsets[index] + size];
    let size = space.len();
    match tables.len() {
        0 => return space,
        1 => return at(0, size),
        _ => {}
    }
    for ((sum, a), b) in space.iter_mut().zip(at(0, size)).zip(at(1, size)) {
        *sum = a + b;
    }
    for index in 2..tables.len() {
        for (sum, cost) in space.iter_mut().zip(at(index, size)) {
            *sum += cost;
        }
    }
    space
}

/// Adds tables to others that have their variables, too: once instead of in each block, unless the other one has as many
/// entries as all blocks together, `entries`.
fn absorb(tables: &mut Vec<Aligned>, entries: usize) {
    tables.sort_by_key(|table| table.costs().len());
    let mut index = 0;
    while index < tables.len() {
        let fits = |other: &Aligned| {
            let pairs = tables[index].strides.iter().zip(&other.strides);
            other.costs().len() < entries && pairs.into_iter().all(|(&own, &others)| own == 0 || others > 0)
        };
        let into = (index + 1..tables.len()).find(|&other| fits(&tables[other]));
        if let Some(into) = into {
            let table = tables.remove(index);
            tables[into - 1].add(&table);
        } else {
            index += 1;
        }
    }
}

/// A table's costs with the variables `inner` as the innermost, in this order.
struct Aligned<'a> {
    table: &'a Table,
    /// The costs, where they are not the table's as it is.
    copy: Option<Vec<f64>>,
    /// By outer variable, how far its next label lies; 0 where the table lacks it.
    strides: Vec<usize>,
    /// Number of labels of its own outer variables, and of the inner ones together.
    shape: Vec<usize>,
}

impl<'a> Aligned<'a> {
    fn new(table: &'a Table, outer: &[usize], inner: &[usize]) -> Aligned<'a> {
        let own = outer
            .iter()
            .filter(|variable| table.scope.binary_search(variable).is_ok());
        let order: Vec<usize> = own.chain(inner).copied().collect();
        let from = table.strides_in(&order);
        let mut shape: Vec<usize> = order
            .iter()
            .map(|&variable| table.shape[table.axis(variable)])
            .collect();
        let to = row_major(&shape);
        let copy = (from != to).then(|| table.permuted(&shape, &from));
        let mut position = 0;
        let strides = outer.iter().map(|variable| {
            if order.get(position) != Some(variable) {
                return 0;
            }
            position += 1;
            to[position - 1]
        });
        let strides = strides.collect();
        let inner = shape.split_off(order.len() - inner.len()).iter().product();
        shape.push(inner);
        Aligned {
            table,
            copy,
            strides,
            shape,
        }
    }

    fn costs(&self) -> &[f64] {
        self.copy.as_deref().unwrap_or(&self.table.costs)
    }

    /// Adds a table whose variables are some of its own.
    fn add(&mut self, other: &Aligned) {
        let strides = self.strides.iter().zip(&other.strides);
        let strides = strides.filter(|(own, _)| **own > 0).map(|(_, &other)| other).collect();
        let (&block, outer) = self.shape.split_last().expect("a block");
        let mut walk = Walk::new(outer, vec![strides]);
        for costs in self
            .copy
            .get_or_insert_with(|| self.table.costs.clone())
            .chunks_exact_mut(block)
        {
            for (cost, addend) in costs.iter_mut().zip(&other.costs()[walk.offsets[0]..]) {
                *cost += addend;
            }
            walk.advance();
        }
    }
}
