//! What a byte of memory costs, and which bytes of a program are priced.
//!
//! Two moments count: the one *between* forward and backward, with weight `between`, and the end of the step, with the
//! rest of the weight. Inputs as stored and the optimiser's state are there at both, what the backward needs of the
//! forward at the first, gradients and what the optimiser makes for all of them at the second. No device holds less than
//! that at its peak, as the simulation finds it ([`crate::memory`]), so
//! `bound - sum_d seconds_per_byte[d] * capacity[d]` bounds the time of every program that fits.

use super::classes::{Classes, placement_at};
use super::request::{MemoryPrices, SynthesisError};
use crate::graph::{Graph, OutputKind};
use crate::memory::optimiser_factor;
use crate::placement::Placement;
use crate::shares::Shares;

/// Stretches of a graph that prices may differ by.
const STRETCHES: usize = 16;

/// The prices of a request, for one graph under given shares.
#[derive(Debug)]
pub struct HeldPrices<'a> {
    graph: &'a Graph,
    shares: &'a Shares,
    prices: &'a MemoryPrices,
    /// Seconds per byte of a whole tensor on every device.
    whole: f64,
    /// By axis, seconds per byte of a tensor that is sharded along it.
    sharded: Vec<f64>,
    /// By tensor, the stretch of the graph that it is in.
    stretches: Vec<usize>,
    /// By input, bytes that are held for a byte of it: itself and its optimiser's state; and those at the end of the step.
    stored: Vec<(f64, f64)>,
}

impl<'a> HeldPrices<'a> {
    /// # Errors
    /// Prices that are not one per device, or negative; a weight outside 0 to 1.
    pub fn new(
        graph: &'a Graph,
        shares: &'a Shares,
        devices: usize,
        prices: &'a MemoryPrices,
    ) -> Result<Self, SynthesisError> {
        let wrong = |field: &str, expected: &str, got: String| SynthesisError::Request {
            field: format!("prices.memory.{field}"),
            expected: expected.to_owned(),
            got,
        };
        let seconds = &prices.seconds_per_byte;
        if seconds.len() != devices {
            let expected = format!("one per device, {devices}");
            return Err(wrong("seconds_per_byte", &expected, seconds.len().to_string()));
        }
        if !seconds.iter().all(|price| (0.0..f64::INFINITY).contains(price)) {
            let expected = "finite numbers that are not negative";
            return Err(wrong("seconds_per_byte", expected, format!("{seconds:?}")));
        }
        if !(0.0..=1.0).contains(&prices.between) {
            return Err(wrong("between", "a number from 0 to 1", prices.between.to_string()));
        }
        if !(0.0..=1.0).contains(&prices.skew) {
            return Err(wrong("skew", "a number from 0 to 1", prices.skew.to_string()));
        }
        let along = |shares: &Vec<f64>| seconds.iter().zip(shares).map(|(price, share)| price * share).sum();
        Ok(Self {
            graph,
            shares,
            prices,
            whole: seconds.iter().sum(),
            sharded: shares.iter().map(along).collect(),
            stretches: if prices.skew == 0.0 {
                vec![0; graph.tensors.len()]
            } else {
                stretches(graph)
            },
            stored: stored(graph, &Classes::new(graph, true), prices),
        })
    }

    /// The segments that the forward is cut in.
    pub fn segments(&self) -> usize {
        self.prices.segments as usize
    }

    /// The stretch of the graph that a tensor (by index) is in; prices differ by it.
    pub fn stretch(&self, tensor: usize) -> usize {
        self.stretches[tensor]
    }

    /// Seconds that a tensor (by index) in a placement costs if it is held all the time.
    fn price(&self, index: usize, placement: Placement) -> f64 {
        let tensor = &self.graph.tensors[index];
        let late = self.stretch(index) as f64 / STRETCHES as f64;
        let per_byte = match placement {
            Placement::Shard(occurrence) => self.sharded[tensor.occurrences[occurrence as usize]],
            Placement::Replicate | Placement::Partial => self.whole,
        };
        tensor.bytes * per_byte * (1.0 + self.prices.skew * (1.0 - late))
    }

    /// The price of storing an input (by index) in a placement.
    pub fn stored(&self, input: usize, placement: Placement) -> f64 {
        self.price(self.graph.inputs[input].tensor, placement) * self.stored_factor(input)
    }

    /// The price of storing all inputs in these placements.
    pub fn storing(&self, placements: &[Placement]) -> f64 {
        let placements = placements.iter().enumerate();
        placements
            .map(|(input, &placement)| self.stored(input, placement))
            .sum()
    }

    /// The price of keeping a tensor (by index) from the forward to the backward.
    pub fn kept(&self, tensor: usize, placement: Placement) -> f64 {
        self.price(tensor, placement) * self.prices.between
    }

    /// The same bytes by device: of inputs as stored, and of kept tensors.
    pub fn bytes(&self, stored: &[Placement], kept: &[(usize, Placement)]) -> Vec<f64> {
        let stored = stored.iter().enumerate().map(|(input, &placement)| {
            let tensor = self.graph.inputs[input].tensor;
            (tensor, placement, self.stored_factor(input))
        });
        let kept = kept
            .iter()
            .map(|&(tensor, placement)| (tensor, placement, self.prices.between));
        let mut bytes = vec![0.0; self.prices.seconds_per_byte.len()];
        for (tensor, placement, factor) in stored.chain(kept) {
            let tensor = &self.graph.tensors[tensor];
            for (device, bytes) in bytes.iter_mut().enumerate() {
                let share = match placement {
                    Placement::Shard(occurrence) => self.shares[tensor.occurrences[occurrence as usize]][device],
                    Placement::Replicate | Placement::Partial => 1.0,
                };
                *bytes += factor * share * tensor.bytes;
            }
        }
        bytes
    }

    fn stored_factor(&self, input: usize) -> f64 {
        let (always, gradient) = self.stored[input];
        always + (1.0 - self.prices.between) * gradient
    }
}

/// By tensor, the stretch of the graph, or of its inputs, that it is in.
fn stretches(graph: &Graph) -> Vec<usize> {
    let count = graph.tensors.len();
    let mut stretches: Vec<usize> = (0..count).map(|tensor| STRETCHES * tensor / count).collect();
    for (place, input) in graph.inputs.iter().enumerate() {
        stretches[input.tensor] = STRETCHES * place / graph.inputs.len();
    }
    stretches
}

/// By input, the bytes held for a byte of it all the time, and those at the end of the step: of its gradient, and of what
/// the optimiser makes.
fn stored(graph: &Graph, classes: &Classes, prices: &MemoryPrices) -> Vec<(f64, f64)> {
    let mut held = vec![(1.0, 0.0); graph.inputs.len()];
    // A tensor that is the gradient of several parameters counts once, and not at all where it may be in the memory of
    // an input or of another tensor.
    let mut counted = vec![false; graph.tensors.len()];
    for input in &graph.inputs {
        counted[classes.root[input.tensor]] = true;
    }
    for operator in graph.operators.iter().filter(|operator| operator.layout) {
        for &result in operator
            .results
            .iter()
            .filter(|&&result| classes.root[result] == result)
        {
            counted[result] = true;
        }
    }
    let gradients = graph
        .outputs
        .iter()
        .filter(|output| output.kind == OutputKind::Gradient);
    for output in gradients {
        let Some(input) = graph.inputs.iter().position(|input| Some(input.tensor) == output.of) else {
            continue;
        };
        let (tensor, root) = (&graph.tensors[output.tensor], classes.root[output.tensor]);
        let parameter = &graph.tensors[graph.inputs[input].tensor];
        let factor = optimiser_factor(parameter);
        held[input].0 = 1.0 + f64::from(prices.optimiser_tensors) * factor;
        held[input].1 = f64::from(prices.temporaries.together) * factor;
        if !std::mem::replace(&mut counted[root], true) {
            held[input].1 += tensor.bytes / parameter.bytes;
        }
    }
    held
}

/// The prices of keeping a tensor (by index) in each of its placements.
pub fn prices(prices: &HeldPrices, tensor: usize, count: usize) -> Vec<f64> {
    (0..count)
        .map(|number| prices.kept(tensor, placement_at(&prices.graph.tensors[tensor], number)))
        .collect()
}
