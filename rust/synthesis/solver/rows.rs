//! The inner loops: minima over the rows and columns of row-major costs, to which something is added by row or column.
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

/// The least cost of each row, with `added` to its entries (one cost per column).
pub(super) fn minima_of_rows(costs: &[f64], added: &[f64], result: &mut [f64]) {
    by_length!(
        added.len(),
        minima_of_short_rows,
        minima_of_long_rows,
        (costs, added, result)
    );
}

fn minima_of_short_rows<const LENGTH: usize>(costs: &[f64], added: &[f64], result: &mut [f64]) {
    let mut addends = [0.0; LENGTH];
    addends.copy_from_slice(added);
    for (result, row) in result.iter_mut().zip(costs.as_chunks::<LENGTH>().0) {
        let mut least = [0.0; LENGTH];
        for ((least, cost), addend) in least.iter_mut().zip(row).zip(&addends) {
            *least = cost + addend;
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

fn minima_of_long_rows(costs: &[f64], added: &[f64], result: &mut [f64]) {
    let (addends, addends_rest) = added.as_chunks::<8>();
    for (result, row) in result.iter_mut().zip(costs.chunks_exact(added.len())) {
        let (eights, rest) = row.as_chunks::<8>();
        let mut least = [f64::INFINITY; 8];
        for (eight, addends) in eights.iter().zip(addends) {
            for ((least, cost), addend) in least.iter_mut().zip(eight).zip(addends) {
                *least = lesser(cost + addend, *least);
            }
        }
        let least = least.iter().fold(f64::INFINITY, |least, &cost| lesser(cost, least));
        let rest = rest.iter().zip(addends_rest);
        *result = rest.fold(least, |least, (cost, addend)| lesser(cost + addend, least));
    }
}

/// The least cost of each column, with `added` to its entries (one cost per row).
pub(super) fn minima_of_columns(costs: &[f64], added: &[f64], result: &mut [f64]) {
    by_length!(
        result.len(),
        minima_of_few_columns,
        minima_of_many_columns,
        (costs, added, result)
    );
}

fn minima_of_few_columns<const LENGTH: usize>(costs: &[f64], added: &[f64], result: &mut [f64]) {
    let mut least = [f64::INFINITY; LENGTH];
    for (row, &addend) in costs.as_chunks::<LENGTH>().0.iter().zip(added) {
        for (least, &cost) in least.iter_mut().zip(row) {
            *least = lesser(cost + addend, *least);
        }
    }
    result.copy_from_slice(&least);
}

/// Eight columns at a time, so that their minima stay in registers.
fn minima_of_many_columns(costs: &[f64], added: &[f64], result: &mut [f64]) {
    let size = result.len();
    let (eights, rest) = result.as_chunks_mut::<8>();
    for (index, result) in eights.iter_mut().enumerate() {
        let mut least = [f64::INFINITY; 8];
        for (row, &addend) in costs.chunks_exact(size).zip(added) {
            for (least, &cost) in least.iter_mut().zip(&row[8 * index..8 * index + 8]) {
                *least = lesser(cost + addend, *least);
            }
        }
        *result = least;
    }
    rest.fill(f64::INFINITY);
    let start = size - rest.len();
    for (row, &addend) in costs.chunks_exact(size).zip(added) {
        for (least, &cost) in rest.iter_mut().zip(&row[start..]) {
            *least = lesser(cost + addend, *least);
        }
    }
}
