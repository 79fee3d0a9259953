//! The inner loops: minima over the rows and columns of row-major costs, each less what its row or column pays.
//!
//! Variables have few labels, so that rows are short; the loops over rows of 2 to 8 entries are compiled for each length.

/// Calls `$function::<$length>` where the length is short, else `$general`.
macro_rules! by_length {
    ($length:expr, $function:ident, $general:ident, ($($argument:expr),*)) => {
        match $length {
            2 => $function::<2>($($argument),*),
            3 => $function::<3>($($argument),*),
            4 => $function::<4>($($argument),*),
            5 => $function::<5>($($argument),*),
            6 => $function::<6>($($argument),*),
            7 => $function::<7>($($argument),*),
            8 => $function::<8>($($argument),*),
            _ => $general($($argument),*),
        }
    };
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

/// The least cost of each row, every column less its entry of `columns` (one per entry of a row).
pub(super) fn minima_of_rows(costs: &[f64], columns: &[f64], result: &mut [f64]) {
    by_length!(columns.len(), minima_of_short_rows, minima_of_long_rows, (costs, columns, result));
}

fn minima_of_short_rows<const LENGTH: usize>(costs: &[f64], columns: &[f64], result: &mut [f64]) {
    let mut less = [0.0; LENGTH];
    less.copy_from_slice(columns);
    for (result, row) in result.iter_mut().zip(costs.as_chunks::<LENGTH>().0) {
        let mut least = [0.0; LENGTH];
        for ((least, cost), less) in least.iter_mut().zip(row).zip(&less) {
            *least = cost - less;
        }
        // Halves against each other: several minima at a time.
        let mut length = LENGTH;
        while length > 1 {
            let half = length.div_ceil(2);
            for index in 0..length / 2 {
                least[index] = lesser(least[index], least[index + half]);
            }
            length = half;
        }
        *result = least[0];
    }
}

fn minima_of_long_rows(costs: &[f64], columns: &[f64], result: &mut [f64]) {
    let (less, less_rest) = columns.as_chunks::<8>();
    for (result, row) in result.iter_mut().zip(costs.chunks_exact(columns.len())) {
        let (eights, rest) = row.as_chunks::<8>();
        let mut least = [f64::INFINITY; 8];
        for (eight, less) in eights.iter().zip(less) {
            for ((least, cost), less) in least.iter_mut().zip(eight).zip(less) {
                *least = lesser(cost - less, *least);
            }
        }
        let least = least.iter().fold(f64::INFINITY, |least, &cost| lesser(cost, least));
        let rest = rest.iter().zip(less_rest);
        *result = rest.fold(least, |least, (cost, less)| lesser(cost - less, least));
    }
}

/// The least cost of each column, every row less its entry of `rows`.
pub(super) fn minima_of_columns(costs: &[f64], rows: &[f64], result: &mut [f64]) {
    by_length!(result.len(), minima_of_few_columns, minima_of_many_columns, (costs, rows, result));
}

fn minima_of_few_columns<const LENGTH: usize>(costs: &[f64], rows: &[f64], result: &mut [f64]) {
    let mut least = [f64::INFINITY; LENGTH];
    for (row, &less) in costs.as_chunks::<LENGTH>().0.iter().zip(rows) {
        for (least, &cost) in least.iter_mut().zip(row) {
            *least = lesser(cost - less, *least);
        }
    }
    result.copy_from_slice(&least);
}

/// Eight columns at a time, so that their minima stay in registers.
fn minima_of_many_columns(costs: &[f64], rows: &[f64], result: &mut [f64]) {
    let size = result.len();
    let (eights, rest) = result.as_chunks_mut::<8>();
    for (index, result) in eights.iter_mut().enumerate() {
        let mut least = [f64::INFINITY; 8];
        for (row, &less) in costs.chunks_exact(size).zip(rows) {
            for (least, &cost) in least.iter_mut().zip(&row[8 * index..8 * index + 8]) {
                *least = lesser(cost - less, *least);
            }
        }
        *result = least;
    }
    rest.fill(f64::INFINITY);
    let start = size - rest.len();
    for (row, &less) in costs.chunks_exact(size).zip(rows) {
        for (least, &cost) in rest.iter_mut().zip(&row[start..]) {
            *least = lesser(cost - less, *least);
        }
    }
}
