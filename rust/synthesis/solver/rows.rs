//! The inner loops of dual ascent: minima and sums along one variable of a row-major table.
//!
//! Variables have few labels, so that rows are short; the loops over rows of 2 to 8 entries are compiled for each length.

/// Where a variable lies in a table: its label changes every `inner` entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub size: usize,
    pub inner: usize,
}

/// Calls `$function::<$length>` where the length is short, else `$general`.
macro_rules! by_length {
    ($length:expr, $function:ident($($argument:expr),*), $general:ident($($other:expr),*)) => {
        match $length {
            2 => $function::<2>($($argument),*),
            3 => $function::<3>($($argument),*),
            4 => $function::<4>($($argument),*),
            5 => $function::<5>($($argument),*),
            6 => $function::<6>($($argument),*),
            7 => $function::<7>($($argument),*),
            8 => $function::<8>($($argument),*),
            _ => $general($($other),*),
        }
    };
}

/// The least cost of each label along `span`.
pub(super) fn min_marginals(costs: &[f64], span: Span, result: &mut [f64]) {
    if span.inner == 1 {
        by_length!(
            span.size,
            minima_of_columns(costs, result),
            minima_of_long_columns(costs, result)
        );
    } else {
        result.fill(f64::INFINITY);
        by_length!(
            span.inner,
            minima_of_rows(costs, result),
            minima_of_long_rows(costs, span.inner, result)
        );
    }
}

/// Adds a cost to each label along `span`.
pub(super) fn add_along(costs: &mut [f64], span: Span, added: &[f64]) {
    if span.inner == 1 {
        by_length!(
            span.size,
            add_to_columns(costs, added),
            add_to_long_columns(costs, added)
        );
    } else {
        by_length!(
            span.inner,
            add_to_rows(costs, added),
            add_to_long_rows(costs, span.inner, added)
        );
    }
}

/// The smaller of two costs, neither of which is NaN: a single instruction, unlike `f64::min`.
fn lesser(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}

/// The least of some costs; infinite if there are none.
pub(super) fn minimum(costs: &[f64]) -> f64 {
    let (rows, rest) = costs.as_chunks::<8>();
    let mut least = [f64::INFINITY; 8];
    for row in rows {
        for (least, &cost) in least.iter_mut().zip(row) {
            *least = lesser(cost, *least);
        }
    }
    let least = least.iter().fold(f64::INFINITY, |least, &cost| lesser(cost, least));
    rest.iter().fold(least, |least, &cost| lesser(cost, least))
}

/// Appends the least cost of each row of `length` costs.
pub(super) fn row_minima(costs: &[f64], length: usize, result: &mut Vec<f64>) {
    by_length!(
        length,
        minima_of_short_rows(costs, result),
        minima_of_each_row(costs, length, result)
    );
}

fn minima_of_short_rows<const LENGTH: usize>(costs: &[f64], result: &mut Vec<f64>) {
    let least = |row: &[f64; LENGTH]| row.iter().fold(f64::INFINITY, |least, &cost| lesser(cost, least));
    result.extend(costs.as_chunks::<LENGTH>().0.iter().map(least));
}

fn minima_of_each_row(costs: &[f64], length: usize, result: &mut Vec<f64>) {
    result.extend(costs.chunks_exact(length).map(minimum));
}

fn minima_of_columns<const SIZE: usize>(costs: &[f64], result: &mut [f64]) {
    let mut least = [f64::INFINITY; SIZE];
    for row in costs.as_chunks::<SIZE>().0 {
        for (least, &cost) in least.iter_mut().zip(row) {
            *least = lesser(cost, *least);
        }
    }
    result.copy_from_slice(&least);
}

/// Eight columns at a time, so that their minima stay in registers.
fn minima_of_long_columns(costs: &[f64], result: &mut [f64]) {
    let size = result.len();
    let (eights, rest) = result.as_chunks_mut::<8>();
    for (index, result) in eights.iter_mut().enumerate() {
        let mut least = [f64::INFINITY; 8];
        for row in costs.chunks_exact(size) {
            for (least, &cost) in least.iter_mut().zip(&row[8 * index..8 * index + 8]) {
                *least = lesser(cost, *least);
            }
        }
        *result = least;
    }
    rest.fill(f64::INFINITY);
    let start = size - rest.len();
    for row in costs.chunks_exact(size) {
        for (least, &cost) in rest.iter_mut().zip(&row[start..]) {
            *least = lesser(cost, *least);
        }
    }
}

fn minima_of_rows<const INNER: usize>(costs: &[f64], result: &mut [f64]) {
    let rows = costs.as_chunks::<INNER>().0;
    for block in rows.chunks_exact(result.len()) {
        for (least, row) in result.iter_mut().zip(block) {
            *least = row.iter().fold(*least, |least, &cost| lesser(cost, least));
        }
    }
}

fn minima_of_long_rows(costs: &[f64], inner: usize, result: &mut [f64]) {
    for block in costs.chunks_exact(result.len() * inner) {
        for (least, row) in result.iter_mut().zip(block.chunks_exact(inner)) {
            *least = lesser(minimum(row), *least);
        }
    }
}

fn add_to_columns<const SIZE: usize>(costs: &mut [f64], added: &[f64]) {
    let mut addends = [0.0; SIZE];
    addends.copy_from_slice(added);
    for row in costs.as_chunks_mut::<SIZE>().0 {
        for (cost, &addend) in row.iter_mut().zip(&addends) {
            *cost += addend;
        }
    }
}

fn add_to_long_columns(costs: &mut [f64], added: &[f64]) {
    for row in costs.chunks_exact_mut(added.len()) {
        for (cost, &addend) in row.iter_mut().zip(added) {
            *cost += addend;
        }
    }
}

fn add_to_rows<const INNER: usize>(costs: &mut [f64], added: &[f64]) {
    let rows = costs.as_chunks_mut::<INNER>().0;
    for block in rows.chunks_exact_mut(added.len()) {
        for (row, &addend) in block.iter_mut().zip(added) {
            for cost in row {
                *cost += addend;
            }
        }
    }
}

fn add_to_long_rows(costs: &mut [f64], inner: usize, added: &[f64]) {
    for block in costs.chunks_exact_mut(added.len() * inner) {
        for (row, &addend) in block.chunks_exact_mut(inner).zip(added) {
            for cost in row {
                *cost += addend;
            }
        }
    }
}
