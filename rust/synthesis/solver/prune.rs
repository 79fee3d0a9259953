//! Reduced costs: what each label costs at least above the bound, and which labels they leave.

use super::marginals::Lane;
use super::remainder::Remainder;
use super::rows::minimum;

/// For each open variable and label: no assignment with that label costs less than the bound plus this. Empty for the
/// other variables.
pub(super) fn reduced_costs(remainder: &Remainder) -> Vec<Vec<f64>> {
    let mut reduced: Vec<Vec<f64>> = vec![Vec::new(); remainder.labels.len()];
    for variable in remainder.variables() {
        let unary = &remainder.unary[variable];
        let least = minimum(unary);
        reduced[variable] = unary.iter().map(|cost| cost - least).collect();
    }
    let (mut lane, mut least_costs) = (Lane::default(), Vec::new());
    for table in remainder.live_tables() {
        lane.begin(table);
        for (axis, &variable) in table.scope.iter().enumerate() {
            least_costs.resize(table.shape[axis], 0.0);
            lane.min_marginals(table, axis, &mut least_costs);
            let least = minimum(&least_costs);
            for (reduced, &cost) in reduced[variable].iter_mut().zip(&least_costs) {
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
