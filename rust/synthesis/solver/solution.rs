//! What a solve gives.

use super::certificate::Certificate;

/// Costs that differ by less than this count as equal, relative to the cost and to a thousandth of the largest one.
pub const TOLERANCE: f64 = 1e-9;

/// The best assignment found, and how good it is.
#[derive(Clone, Debug)]
pub struct Solution {
    /// One label for each variable.
    pub assignment: Vec<usize>,
    /// Its cost.
    pub cost: f64,
    /// No assignment costs less, up to [`TOLERANCE`]; equal to the cost where the assignment is proven optimal.
    pub bound: f64,
    /// The proof of the bound, unless an A* search proved more than the certificate, whose bound is then smaller.
    pub certificate: Certificate,
    /// Table entries computed by eliminations.
    pub table_entries: u64,
    /// Partial assignments expanded.
    pub states: u64,
}

impl Solution {
    /// How far the cost can be above the optimum, relative to the cost; 0 where the assignment is proven optimal.
    pub fn gap(&self) -> f64 {
        if self.cost > self.bound {
            (self.cost - self.bound) / self.cost.abs()
        } else {
            0.0
        }
    }
}

/// Why there is no solution.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SolveError {
    /// A factor is malformed, or a limit.
    #[error("{field}: {reason}")]
    Invalid {
        /// Which one.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Every assignment is forbidden.
    #[error("no assignment is allowed{}", .variable.map_or(String::new(), |v| format!(": variable {v} has no label left")))]
    Infeasible {
        /// A variable that lost all its labels, where that is how it was found.
        variable: Option<usize>,
    },
    /// The observer stopped the solve.
    #[error("the observer stopped the solve")]
    Stopped,
    /// A limit was reached before any assignment was found.
    #[error("no assignment was found within the limits (none costs less than {bound}); raise them")]
    LimitReached {
        /// No assignment costs less.
        bound: f64,
    },
}
