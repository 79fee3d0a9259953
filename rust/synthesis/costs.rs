//! What choices and conversions cost, as the synthesiser sees it.

use crate::graph::Graph;
use crate::placement::{Placement, Placements};
use crate::program::{Conversion, Implementation};

/// A conversion of a tensor from one placement to another, in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Move {
    /// How data moves.
    pub conversion: Conversion,
    /// How the collective is carried out; none where nothing moves.
    pub implementation: Option<Implementation>,
    /// Its cost, at least 0.
    pub cost: f64,
}

/// The additive cost of a program: a sum over its choices and its conversions.
pub trait Costs {
    /// Cost of running an operator by one of its choices, both by index.
    fn compute(&self, operator: usize, choice: usize) -> f64;

    /// Cost of keeping an input of the graph (by index) in a placement.
    fn keep(&self, _input: usize, _placement: Placement) -> f64 {
        0.0
    }

    /// Conversion of a tensor (by index) in one step; none where there is no such step.
    fn convert(&self, tensor: usize, from: &Placements, to: &Placements) -> Option<Move>;

    /// The first axis that costs the same as this one. Both by index.
    fn alike_axis(&self, axis: usize) -> usize {
        axis
    }

    /// Tensors (by index) of equal bytes, axes and kinds have conversions of equal costs.
    fn kind(&self, tensor: usize) -> usize;
}

/// Costs drawn from a seed, so that the cheapest program is a random one: 0 to 1 for each choice, 0 to 0.1 for each
/// collective, nothing for layout operators and where nothing moves. The implementation of a collective is drawn, too.
#[derive(Clone, Copy, Debug)]
pub struct RandomCosts<'a> {
    graph: &'a Graph,
    seed: u64,
}

impl<'a> RandomCosts<'a> {
    /// Costs of `graph` drawn from `seed`.
    pub fn new(graph: &'a Graph, seed: u64) -> Self {
        Self { graph, seed }
    }

    fn draw(&self, words: [u64; 4]) -> u64 {
        words.iter().fold(mix(self.seed), |state, &word| mix(state ^ word))
    }

    /// Uniform in 0 .. 1.
    fn uniform(&self, words: [u64; 4]) -> f64 {
        (self.draw(words) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// One step of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn word(placement: Placement) -> u64 {
    match placement {
        Placement::Replicate => 0,
        Placement::Partial => 1,
        Placement::Shard(occurrence) => 2 + u64::from(occurrence),
    }
}

impl Costs for RandomCosts<'_> {
    fn compute(&self, operator: usize, choice: usize) -> f64 {
        if self.graph.operators[operator].layout {
            return 0.0;
        }
        self.uniform([0, operator as u64, choice as u64, 0])
    }

    fn keep(&self, input: usize, placement: Placement) -> f64 {
        self.uniform([1, input as u64, word(placement), 0])
    }

    fn convert(&self, tensor: usize, from: &Placements, to: &Placements) -> Option<Move> {
        let conversion = Conversion::between(self.graph, tensor, from, to)?;
        let summable = self.graph.tensors[tensor].summable;
        let ([from], [to]) = (from.as_slice(), to.as_slice()) else {
            return None;
        };
        if !summable && [from, to].contains(&&Placement::Partial) {
            return None;
        }
        let words = [2, tensor as u64, word(*from), word(*to)];
        let all = conversion.implementations();
        let implementation = (!all.is_empty()).then(|| all[self.draw(words) as usize % all.len()]);
        let cost = if implementation.is_some() {
            0.1 * self.uniform(words)
        } else {
            0.0
        };
        Some(Move {
            conversion,
            implementation,
            cost,
        })
    }

    fn kind(&self, tensor: usize) -> usize {
        tensor
    }
}
