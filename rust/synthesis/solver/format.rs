//! The file format `hap-cfn-1` of weighted constraint problems: JSON, `null` for infinite costs.

use serde::{Deserialize, Serialize};

use super::problem::{Factor, Problem};

/// A problem with a name, as it stands in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// What the problem was made from.
    pub name: String,
    /// The problem.
    pub problem: Problem,
}

/// Name and version of the format.
const FORMAT: &str = "hap-cfn-1";

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    name: String,
    domains: Vec<usize>,
    factors: Vec<FileFactor>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct FileFactor {
    scope: Vec<usize>,
    costs: Vec<Option<f64>>,
}

/// Checks the name of a format.
pub(super) fn expect(found: &str, format: &str) -> Result<(), serde_json::Error> {
    if found == format {
        return Ok(());
    }
    let message = format!("format {found:?}, expected {format:?}");
    Err(<serde_json::Error as serde::de::Error>::custom(message))
}

impl Instance {
    /// Reads an instance; the problem in it is not yet validated.
    ///
    /// # Errors
    /// Text that is not JSON of this format; the error names line and column.
    pub fn from_json(json: &str) -> Result<Instance, serde_json::Error> {
        let file: File = serde_json::from_str(json)?;
        expect(&file.format, FORMAT)?;
        let factor = |factor: FileFactor| Factor {
            scope: factor.scope,
            costs: factor
                .costs
                .into_iter()
                .map(|cost| cost.unwrap_or(f64::INFINITY))
                .collect(),
        };
        let problem = Problem {
            domains: file.domains,
            factors: file.factors.into_iter().map(factor).collect(),
        };
        Ok(Instance {
            name: file.name,
            problem,
        })
    }

    /// Writes the instance.
    ///
    /// # Errors
    /// None in practice: numbers, strings and lists can always be written.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        let factor = |factor: &Factor| FileFactor {
            scope: factor.scope.clone(),
            costs: factor
                .costs
                .iter()
                .map(|&cost| cost.is_finite().then_some(cost))
                .collect(),
        };
        serde_json::to_string(&File {
            format: FORMAT.to_string(),
            name: self.name.clone(),
            domains: self.problem.domains.clone(),
            factors: self.problem.factors.iter().map(factor).collect(),
        })
    }
}
