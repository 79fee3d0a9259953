//! The inner loop of eliminations: tables that share a variable are added up and minimised over it.
//!
//! The sum itself is never stored. Its entries are made in blocks, one for each combination of labels of all variables
//! but the last: the variable's labels by those of the last one, whose costs lie side by side.

use super::rows::minima_of_columns;
use super::table::{Table, Walk, row_major};

/// The sum of tables that hold `variable`, minimised over it.
pub(super) fn minimise_over(variable: usize, tables: &[Table]) -> Table {
    let mut others: Vec<(usize, usize)> = Vec::new();
    for table in tables {
        let sizes = table.scope.iter().copied().zip(table.shape.iter().copied());
        others.extend(sizes.filter(|&(other, _)| other != variable));
    }
    others.sort_unstable();
    others.dedup();
    let (scope, shape): (Vec<usize>, Vec<usize>) = others.into_iter().unzip();
    let labels = tables[0].shape[tables[0].axis(variable)];
    let (last, outer) = match scope.split_last() {
        Some((&last, outer)) => (Some(last), outer),
        None => (None, &[][..]),
    };
    let width = shape.last().copied().unwrap_or(1);

    // Tables with the last variable (without others: all) have rows, the others a single cost for each label.
    let (with, without): (Vec<&Table>, Vec<&Table>) =
        tables.iter().partition(|table: &&Table| last.is_none_or(|last| table.scope.contains(&last)));
    let inner = [variable].into_iter().chain(last).collect::<Vec<_>>();
    let rows: Vec<Aligned> = with.iter().map(|table| Aligned::new(table, outer, &inner)).collect();
    let scalars: Vec<Aligned> = without.iter().map(|table| Aligned::new(table, outer, &inner[..1])).collect();
    let strides = rows.iter().chain(&scalars).map(|aligned| aligned.strides.clone()).collect();
    let mut walk = Walk::new(&shape[..outer.len()], strides);

    let size: usize = shape.iter().product();
    let mut costs = vec![0.0; size];
    let mut sums = vec![0.0; if rows.len() > 1 { labels * width } else { 0 }];
    let mut less = vec![0.0; labels];
    for result in costs.chunks_exact_mut(width) {
        let (row_offsets, offsets) = walk.offsets.split_at(rows.len());
        less.fill(0.0);
        for (aligned, &offset) in scalars.iter().zip(offsets) {
            for (less, cost) in less.iter_mut().zip(&aligned.costs()[offset..]) {
                *less -= cost;
            }
        }
        let block = |index: usize| &rows[index].costs()[row_offsets[index]..][..labels * width];
        if rows.len() == 1 {
            minima_of_columns(block(0), &less, result);
        } else {
            for ((sum, a), b) in sums.iter_mut().zip(block(0)).zip(block(1)) {
                *sum = a + b;
            }
            (2..rows.len()).for_each(|index| add(&mut sums, block(index)));
            minima_of_columns(&sums, &less, result);
        }
        walk.advance();
    }
    Table { scope, shape, costs }
}

fn add(sums: &mut [f64], addends: &[f64]) {
    for (sum, addend) in sums.iter_mut().zip(addends) {
        *sum += addend;
    }
}

/// A table's costs with the variables `inner` as the innermost, in this order.
struct Aligned<'a> {
    table: &'a Table,
    /// The costs, where they do not lie so in the table.
    copy: Option<Vec<f64>>,
    /// By outer variable, how far its next label lies.
    strides: Vec<usize>,
}

impl<'a> Aligned<'a> {
    fn new(table: &'a Table, outer: &[usize], inner: &[usize]) -> Aligned<'a> {
        let own = outer.iter().filter(|variable| table.scope.binary_search(variable).is_ok());
        let order: Vec<usize> = own.chain(inner).copied().collect();
        let from = table.strides_in(&order);
        let shape: Vec<usize> = order.iter().map(|&variable| table.shape[table.axis(variable)]).collect();
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
        Aligned { table, copy, strides }
    }

    fn costs(&self) -> &[f64] {
        self.copy.as_deref().unwrap_or(&self.table.costs)
    }
}
