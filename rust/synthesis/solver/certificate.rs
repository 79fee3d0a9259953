//! Certificates: why no assignment costs less than a bound.
//!
//! A certificate is a list of steps. Each turns a weighted constraint problem into a simpler one, and each can be checked
//! by itself:
//!
//! * [`Step::Shift`] and [`Step::Join`] change no assignment's cost (a *reparametrisation*: the new tables sum to the old);
//! * [`Step::Eliminate`] and [`Step::Fix`] take a variable out and keep the least cost of each assignment of the others;
//! * [`Step::Drop`] deletes labels. The sum of minima of the tables, taken with such a label, is a lower bound of every
//!   assignment that has it, and must reach the certificate's bound.
//!
//! So where the last problem's sum of minima reaches it as well, no assignment of the problem costs less than the bound.
//! [`check`](super::check) takes the steps one by one, from the problem's own factors. The file format is JSON.

use serde::{Deserialize, Serialize};

use super::format::expect;

/// A step of the proof. Tables are named by their scopes, variables in ascending order; two never share a scope.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// Moves costs from the table over `scope` to the tables over its single variables.
    Shift {
        /// The table.
        scope: Vec<usize>,
        /// What moves to each label left, variable after variable.
        costs: Vec<f64>,
    },
    /// Adds the table over `scope` to the one over `into`, which holds all its variables.
    Join {
        /// The table that goes.
        scope: Vec<usize>,
        /// The table that stays.
        into: Vec<usize>,
    },
    /// Deletes labels of a variable (numbered as in the problem) that no assignment cheaper than the bound has.
    Drop {
        /// The variable.
        variable: usize,
        /// The labels.
        labels: Vec<usize>,
    },
    /// Takes out a variable that has one label left.
    Fix {
        /// The variable.
        variable: usize,
    },
    /// Adds up all tables with the variable and keeps their minimum over it.
    Eliminate {
        /// The variable.
        variable: usize,
    },
}

/// A proof that no assignment costs less than `bound`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// An assignment of finite cost: where the bound is its cost, it is optimal.
    pub assignment: Vec<usize>,
    /// Its cost.
    pub cost: f64,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The bound that they prove, at most the assignment's cost.
    pub bound: f64,
}

/// Why a certificate is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CertificateError {
    /// The assignment does not fit the problem, or is forbidden.
    #[error("the assignment must give every variable a label of its domain, at a finite cost")]
    Assignment,
    /// The assignment has another cost.
    #[error("the assignment costs {cost}, not {claimed}")]
    Cost {
        /// What it costs.
        cost: f64,
        /// What the certificate claims.
        claimed: f64,
    },
    /// A step names a table, variable or label that is not there.
    #[error("step {step}: {reason}")]
    Step {
        /// Its index.
        step: usize,
        /// What is wrong.
        reason: String,
    },
    /// A dropped label may be part of an assignment cheaper than the bound.
    #[error("step {step}: label {label} of variable {variable} can cost {cost}, less than the bound {bound}")]
    Drop {
        /// Index of the step.
        step: usize,
        /// The variable.
        variable: usize,
        /// Its label.
        label: usize,
        /// A lower bound of the assignments with it.
        cost: f64,
        /// What the certificate claims.
        bound: f64,
    },
    /// The steps prove less than is claimed.
    #[error("the steps prove a bound of {proven}, not {claimed}")]
    Bound {
        /// What they prove.
        proven: f64,
        /// What the certificate claims.
        claimed: f64,
    },
}

/// Name and version of the format.
const FORMAT: &str = "hap-certificate-1";

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    certificate: Certificate,
}

impl Certificate {
    /// Reads a certificate; what it claims is not yet checked.
    ///
    /// # Errors
    /// Text that is not JSON of this format; the error names line and column.
    pub fn from_json(json: &str) -> Result<Certificate, serde_json::Error> {
        let file: File = serde_json::from_str(json)?;
        expect(&file.format, FORMAT)?;
        Ok(file.certificate)
    }

    /// Writes the certificate.
    ///
    /// # Errors
    /// None in practice: numbers, strings and lists can always be written.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(&File {
            format: FORMAT.to_string(),
            certificate: self.clone(),
        })
    }
}
