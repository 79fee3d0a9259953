//! Shares: which fraction of each axis each device gets.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::Graph;
use crate::program::Splits;

/// Fractions by axis (index into [`Graph::axes`]) and device (rank). Each list sums to one; zeros are allowed.
pub type Shares = Vec<Vec<f64>>;

/// Fractions by the name of the axis.
pub type NamedShares = BTreeMap<String, Vec<f64>>;

/// How far a list of fractions may be from summing to one.
const TOLERANCE: f64 = 1e-6;

/// The splits or shares do not fit the graph or the cluster.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SharesError(String);

/// The fractions that integer splits stand for.
///
/// # Errors
/// An axis without a split, an unknown axis, a list that does not have one number per device or does not sum to the
/// axis' size.
pub fn from_splits(graph: &Graph, devices: usize, splits: &Splits) -> Result<Shares, SharesError> {
    by_axis(graph, devices, splits, |name, size, units| {
        let total = units.iter().try_fold(0u64, |total, unit| total.checked_add(*unit));
        if total != Some(size) {
            return Err(SharesError(format!(
                "the split {units:?} of axis \"{name}\" does not sum to its size, {size}"
            )));
        }
        Ok(units.iter().map(|unit| *unit as f64 / size as f64).collect())
    })
}

/// Real fractions by the index of the axis.
///
/// # Errors
/// An axis without shares, an unknown axis, a list that does not have one number per device, holds a negative
/// number, or does not sum to one.
pub fn from_fractions(graph: &Graph, devices: usize, shares: &NamedShares) -> Result<Shares, SharesError> {
    by_axis(graph, devices, shares, |name, _, fractions| {
        if let Some(wrong) = fractions
            .iter()
            .find(|fraction| !(fraction.is_finite() && **fraction >= 0.0))
        {
            return Err(SharesError(format!(
                "axis \"{name}\" has a share of {wrong}, expected a number from 0 to 1"
            )));
        }
        let total: f64 = fractions.iter().sum();
        if (total - 1.0).abs() > TOLERANCE {
            return Err(SharesError(format!(
                "the shares {fractions:?} of axis \"{name}\" sum to {total}, expected 1"
            )));
        }
        Ok(fractions.to_vec())
    })
}

fn by_axis<T>(
    graph: &Graph,
    devices: usize,
    named: &BTreeMap<String, Vec<T>>,
    convert: impl Fn(&str, u64, &[T]) -> Result<Vec<f64>, SharesError>,
) -> Result<Shares, SharesError> {
    let known: BTreeSet<&String> = graph.axes.iter().map(|axis| &axis.name).collect();
    if let Some(unknown) = named.keys().find(|name| !known.contains(name)) {
        return Err(SharesError(format!(
            "there is a split for \"{unknown}\", which is no axis of the graph"
        )));
    }
    graph
        .axes
        .iter()
        .map(|axis| {
            let values = named
                .get(&axis.name)
                .ok_or_else(|| SharesError(format!("axis \"{}\" has no split: one per axis is needed", axis.name)))?;
            if values.len() != devices {
                let found = values.len();
                let message = format!(
                    "the split of axis \"{}\" is for {found} devices, expected {devices}",
                    axis.name
                );
                return Err(SharesError(message));
            }
            convert(&axis.name, axis.size, values)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::perceptron;

    fn splits(batch: &[u64]) -> Splits {
        let whole = |units: u64| vec![units, 0];
        BTreeMap::from([
            ("batch".into(), batch.to_vec()),
            ("hidden".into(), whole(4)),
            ("inner".into(), whole(5)),
        ])
    }

    #[test]
    fn splits_become_fractions() {
        let graph = perceptron(1, [8, 4, 5]);
        let shares = from_splits(&graph, 2, &splits(&[6, 2])).expect("valid splits");
        assert_eq!(shares, [vec![0.75, 0.25], vec![1.0, 0.0], vec![1.0, 0.0]]);
        let named = graph
            .axes
            .iter()
            .zip(&shares)
            .map(|(axis, list)| (axis.name.clone(), list.clone()))
            .collect();
        assert_eq!(from_fractions(&graph, 2, &named).expect("valid shares"), shares);
    }

    #[test]
    fn errors_name_the_axis() {
        let graph = perceptron(1, [8, 4, 5]);
        let message = |splits: Splits| from_splits(&graph, 2, &splits).expect_err("not valid").to_string();
        assert!(message(splits(&[6, 1])).contains("[6, 1] of axis \"batch\" does not sum to its size, 8"));
        assert!(message(splits(&[6, 1, 1])).contains("axis \"batch\" is for 3 devices, expected 2"));
        assert!(message(splits(&[u64::MAX, 9])).contains("does not sum"));
        let mut unknown = splits(&[6, 2]);
        unknown.insert("other".into(), vec![1, 1]);
        assert!(message(unknown).contains("\"other\", which is no axis"));
        let mut missing = splits(&[6, 2]);
        missing.remove("inner");
        assert!(message(missing).contains("axis \"inner\" has no split"));
        let named = |batch: [f64; 2]| {
            let list = |shares: [f64; 2]| shares.to_vec();
            let rest = list([1.0, 0.0]);
            NamedShares::from([
                ("batch".into(), list(batch)),
                ("hidden".into(), rest.clone()),
                ("inner".into(), rest),
            ])
        };
        for wrong in [[0.5, 0.4], [-0.5, 1.5], [f64::NAN, 1.0]] {
            let message = from_fractions(&graph, 2, &named(wrong))
                .expect_err("not valid")
                .to_string();
            assert!(message.contains("batch"), "{message}");
        }
    }
}
