//! True costs under prices: seconds of computation and of communication, weighed.

use rustc_hash::FxHashMap;

use super::costs::{Costs, Move};
use super::request::{Prices, SynthesisError};
use crate::cost::CostModel;
use crate::graph::{Graph, Operator};
use crate::placement::{Placement, Placements};

/// Seconds of a cost model under prices: `theta * sum_d weights[d] * compute_d + (1 - theta * hidden) * communication`.
#[derive(Debug)]
pub struct PricedCosts<'a> {
    model: &'a CostModel<'a>,
    /// By operator and choice.
    compute: Vec<Vec<f64>>,
    communication: f64,
}

impl<'a> PricedCosts<'a> {
    /// Costs of the graph that the model was made for.
    ///
    /// # Errors
    /// Weights that are not one per device, are negative or do not sum to one; a theta outside 0 to 1.
    pub fn new(graph: &Graph, model: &'a CostModel<'a>, prices: &Prices) -> Result<Self, SynthesisError> {
        let weights = by_kind(&weights(prices, model.devices())?, model.alike());
        let overlap = model.overlap();
        let theta = prices.theta.unwrap_or(1.0 / (1.0 + overlap));
        if !(0.0..=1.0).contains(&theta) {
            return Err(wrong("prices.theta", "a number from 0 to 1", format!("{theta}")));
        }
        let communication = 1.0 - theta * overlap;
        // Most operators of a deep model cost the same as another one.
        let mut known: FxHashMap<Vec<u64>, usize> = FxHashMap::default();
        let mut compute: Vec<Vec<f64>> = Vec::with_capacity(graph.operators.len());
        let mut dtypes: FxHashMap<&str, u64> = FxHashMap::default();
        for (index, operator) in graph.operators.iter().enumerate() {
            let next = dtypes.len() as u64;
            let dtype = *dtypes.entry(&operator.dtype).or_insert(next);
            let same = *known
                .entry(signature(operator, dtype, model.alike_axes()))
                .or_insert(index);
            if same < index {
                compute.push(compute[same].clone());
                continue;
            }
            let price = |choice| {
                let seconds = weights
                    .iter()
                    .map(|&(device, weight)| weight * model.compute(index, choice, device));
                theta * seconds.sum::<f64>() + communication * model.inside(choice)
            };
            compute.push(operator.choices.iter().map(price).collect());
        }
        Ok(Self {
            model,
            compute,
            communication,
        })
    }
}

impl Costs for PricedCosts<'_> {
    fn compute(&self, operator: usize, choice: usize) -> f64 {
        self.compute[operator][choice]
    }

    fn alike_axis(&self, axis: usize) -> usize {
        self.model.alike_axes()[axis]
    }

    fn kind(&self, tensor: usize) -> usize {
        usize::from(self.model.in_buckets(tensor))
    }

    fn convert(&self, tensor: usize, from: &Placements, to: &Placements) -> Option<Move> {
        let step = self.model.conversion(tensor, from, to)?;
        let cost = self.communication * step.seconds;
        Some(Move {
            conversion: step.conversion,
            implementation: step.implementation,
            cost,
        })
    }
}

/// All that the cost of an operator depends on; where a list ends follows from the words before.
fn signature(operator: &Operator, dtype: u64, alike_axes: &[usize]) -> Vec<u64> {
    let axis = |axis: Option<usize>| axis.map_or(0, |axis| 1 + alike_axes[axis] as u64);
    let bytes = operator.operand_bytes.iter().chain(&operator.result_bytes);
    let mut words = vec![
        dtype,
        u64::from(operator.layout),
        operator.flops.to_bits(),
        operator.operands.len() as u64,
        operator.results.len() as u64,
    ];
    words.extend(bytes.map(|bytes| bytes.to_bits()));
    for choice in &operator.choices {
        words.push(axis(choice.axis));
        let placements = choice.inputs.iter().chain(&choice.outputs).flatten();
        words.extend(placements.map(|it| u64::from(matches!(it, Placement::Shard(_)))));
        words.push(choice.collectives.len() as u64);
        for collective in &choice.collectives {
            words.push(collective.conversion as u64);
            words.push(collective.bytes.to_bits());
            words.push(axis(collective.axis));
        }
    }
    words
}

/// The weights of devices that are alike together, with the first of these; those that are not 0.
fn by_kind(weights: &[f64], alike: &[usize]) -> Vec<(usize, f64)> {
    let mut sums = vec![0.0; weights.len()];
    for (&first, weight) in alike.iter().zip(weights) {
        sums[first] += weight;
    }
    sums.into_iter()
        .enumerate()
        .filter(|(_, weight)| *weight != 0.0)
        .collect()
}

fn weights(prices: &Prices, devices: usize) -> Result<Vec<f64>, SynthesisError> {
    let Some(weights) = &prices.weights else {
        return Ok(vec![1.0 / devices as f64; devices]);
    };
    let sum: f64 = weights.iter().sum();
    if weights.len() != devices {
        return Err(wrong(
            "prices.weights",
            &format!("one per device, {devices}"),
            format!("{}", weights.len()),
        ));
    }
    if !weights.iter().all(|weight| *weight >= 0.0) || (sum - 1.0).abs() > 1e-6 {
        return Err(wrong(
            "prices.weights",
            "numbers that are not negative and sum to 1",
            format!("{weights:?}"),
        ));
    }
    Ok(weights.clone())
}

fn wrong(field: &str, expected: &str, got: String) -> SynthesisError {
    SynthesisError::Request {
        field: field.to_owned(),
        expected: expected.to_owned(),
        got,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Choice;
    use crate::synthesis::testing::operator;

    #[test]
    fn operators_of_other_lists_have_other_signatures() {
        let made = |results: usize, choices: usize| {
            let choice = Choice {
                outputs: vec![vec![Placement::Replicate]; results],
                ..Choice::default()
            };
            let mut made = operator("made".into(), vec![], (0..results).collect(), vec![choice; choices]);
            made.result_bytes = [64.0, 0.0][..results].to_vec();
            signature(&made, 0, &[])
        };
        // As many words, and all of them 0 behind the bytes of the first result.
        assert_eq!(made(1, 3).len(), made(2, 2).len());
        assert_ne!(made(1, 3), made(2, 2));
        assert_eq!(made(2, 2), made(2, 2));
    }
}
