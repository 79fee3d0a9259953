//! Reduced costs: what each label costs at least above the bound, and which labels they leave.

use super::remainder::Remainder;
use super::table::minimum;

/// For each open variable and label: no assignment with that label costs less than the bound plus this. Empty for the
/// other variables.
pub(super) fn reduced_costs(remainder: &Remainder) -> Vec<Vec<f64>> {
    let mut reduced: Vec<Vec<f64>> = vec![Vec::new(); remainder.labels.len()];
    for variable in remainder.variables() {
        let unary = &remainder.unary[variable];
        let least = minimum(unary);
        reduced[variable] = unary.iter().map(|cost| cost - least).collect();
    }
    let mut min_marginals = Vec::new();
    for table in remainder.live_tables() {
        for (axis, &variable) in table.scope.iter().enumerate() {
            min_marginals.resize(table.shape[axis], 0.0);
            table.min_marginals(table.span(axis), &mut min_marginals);
            let least = minimum(&min_marginals);
            for (reduced, &cost) in reduced[variable].iter_mut().zip(&min_marginals) {
                *reduced += cost - least;
            }
        }
    }
    reduced
}

/// Labels to drop: variable and positions.
pub(super) type Drops = Vec<(usize, Vec<usize>)>;

/// The labels whose reduced costs are above `threshold`.
///
/// # Errors
/// A variable that would lose all its labels, with those.
pub(super) fn labels_above(reduced: &[Vec<f64>], threshold: f64) -> Result<Drops, Drops> {
    let mut drops = Vec::new();
    for (variable, reduced) in reduced.iter().enumerate() {
        let above: Vec<usize> = (0..reduced.len())
            .filter(|&position| reduced[position] > threshold)
            .collect();
        if !above.is_empty() && above.len() == reduced.len() {
            return Err(vec![(variable, above)]);
        }
        if !above.is_empty() {
            drops.push((variable, above));
        }
    }
    Ok(drops)
}
