//! Weighted constraint problems: variables with finite domains, and factors that charge for labels taken together.

use super::SolveError;

/// A cost for every combination of labels of the variables in `scope`.
#[derive(Clone, Debug, PartialEq)]
pub struct Factor {
    /// The variables, each at most once, in any order.
    pub scope: Vec<usize>,
    /// Costs in row-major order over `scope` (last variable fastest); infinite where forbidden.
    pub costs: Vec<f64>,
}

/// Minimise the sum of all factors over one label per variable.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Problem {
    /// Number of labels of each variable. Variables stand in topological (program) order.
    pub domains: Vec<usize>,
    /// The factors; scopes may repeat, in any order.
    pub factors: Vec<Factor>,
}

impl Problem {
    /// Cost of an assignment (one label per variable): the sum of all factors.
    pub fn cost(&self, assignment: &[usize]) -> f64 {
        assert_eq!(assignment.len(), self.domains.len(), "one label per variable");
        let entry = |factor: &Factor| {
            let index = factor
                .scope
                .iter()
                .fold(0, |index, &v| index * self.domains[v] + assignment[v]);
            factor.costs[index]
        };
        self.factors.iter().map(entry).sum()
    }

    /// The largest finite cost, in absolute value: rounding errors are relative to it.
    pub fn largest_cost(&self) -> f64 {
        let costs = self.factors.iter().flat_map(|factor| &factor.costs);
        costs
            .filter(|cost| cost.is_finite())
            .fold(0.0, |largest, cost| cost.abs().max(largest))
    }

    /// Checks that every factor is well formed.
    ///
    /// # Errors
    /// [`SolveError::Invalid`] names the first factor that is not.
    pub fn validate(&self) -> Result<(), SolveError> {
        for (index, factor) in self.factors.iter().enumerate() {
            let fail = |reason: String| {
                let field = format!("factor {index}");
                Err(SolveError::Invalid { field, reason })
            };
            for (position, &variable) in factor.scope.iter().enumerate() {
                if variable >= self.domains.len() {
                    return fail(format!(
                        "variable {variable} of the scope, but there are {}",
                        self.domains.len()
                    ));
                }
                if factor.scope[..position].contains(&variable) {
                    return fail(format!("variable {variable} stands twice in the scope"));
                }
            }
            let expected = factor
                .scope
                .iter()
                .try_fold(1usize, |size, &v| size.checked_mul(self.domains[v]));
            if expected != Some(factor.costs.len()) {
                let expected = expected.map_or("more than memory holds".to_string(), |size| size.to_string());
                return fail(format!(
                    "{} costs, expected {expected} for its scope",
                    factor.costs.len()
                ));
            }
            if let Some(cost) = factor
                .costs
                .iter()
                .find(|cost| cost.is_nan() || **cost == f64::NEG_INFINITY)
            {
                return fail(format!("cost {cost}; costs are numbers or +infinity"));
            }
        }
        Ok(())
    }
}
