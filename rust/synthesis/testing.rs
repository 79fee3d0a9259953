//! Random graphs and costs for the tests.

use super::costs::{Costs, Move};
use crate::graph::{Axis, Choice, Graph, Input, InputKind, Operator, Output, OutputKind, Tensor};
use crate::placement::{Placement, Placements};
use crate::program::Conversion;

/// A small generator of random numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// How random graphs look.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    pub seed: u64,
    pub operators: usize,
    /// Percent of operators that are views.
    pub views: usize,
    /// Whether views read only the newest tensor, and nobody else reads what a view reads.
    pub chains: bool,
}

/// All placements of a tensor.
pub fn placements(tensor: &Tensor) -> Vec<Placement> {
    let shards = (0..tensor.occurrences.len() as u32).map(Placement::Shard);
    let partial = tensor.summable.then_some(Placement::Partial);
    std::iter::once(Placement::Replicate)
        .chain(shards)
        .chain(partial)
        .collect()
}

pub fn tensor(name: String, occurrences: Vec<usize>, summable: bool) -> Tensor {
    let bytes = 64.0 * 2f64.powi(occurrences.len() as i32);
    let dtype = if summable { "float32" } else { "bool" };
    Tensor {
        name,
        dtype: dtype.into(),
        bytes,
        occurrences,
        scattered: false,
        summable,
    }
}

pub fn operator(name: String, operands: Vec<usize>, results: Vec<usize>, choices: Vec<Choice>) -> Operator {
    Operator {
        name,
        target: "test.operator".into(),
        operand_bytes: vec![64.0; operands.len()],
        result_bytes: vec![64.0; results.len()],
        operands,
        results,
        flops: 1e6,
        dtype: "float32".into(),
        family: None,
        layout: false,
        reuses: None,
        fused: false,
        opaque: false,
        partial: false,
        choices,
    }
}

/// A random graph; at most some thousand assignments of labels.
pub fn random_graph(recipe: Recipe) -> Graph {
    let mut random = Random(recipe.seed);
    let mut graph = Graph {
        format: "hap-graph-1".into(),
        axes: ["a", "b", "c"]
            .map(|name| Axis {
                name: name.into(),
                size: 4,
                parts: Vec::new(),
                of: None,
            })
            .to_vec(),
        tensors: Vec::new(),
        inputs: Vec::new(),
        operators: Vec::new(),
        outputs: Vec::new(),
    };
    let kinds = [
        InputKind::Parameter,
        InputKind::Input,
        InputKind::Buffer,
        InputKind::Tangent,
    ];
    let mut assignments = 1;
    for index in 0..1 + random.below(2) {
        let occurrences = random_axes(&mut random);
        let kind = if index == 0 {
            InputKind::Parameter
        } else {
            kinds[random.below(4)]
        };
        assignments *= 1 + occurrences.len();
        graph.inputs.push(Input {
            kind,
            name: format!("in{index}"),
            tensor: graph.tensors.len(),
        });
        graph.tensors.push(tensor(format!("input{index}"), occurrences, true));
    }
    // By tensor, whether it may still be read.
    let mut closed: Vec<bool> = vec![false; graph.tensors.len()];
    for index in 0..recipe.operators {
        let open: Vec<usize> = (0..graph.tensors.len()).filter(|&tensor| !closed[tensor]).collect();
        let recent = |random: &mut Random| {
            let range = if random.chance(60) {
                open.len().min(2)
            } else {
                open.len()
            };
            open[open.len() - 1 - random.below(range)]
        };
        if random.chance(recipe.views) {
            let source = if recipe.chains {
                graph.tensors.len() - 1
            } else {
                recent(&mut random)
            };
            if let Some(view) = random_view(&mut random, &graph, source, index, &mut assignments) {
                let occurrences = view.1;
                let summable = graph.tensors[source].summable;
                graph
                    .tensors
                    .push(tensor(format!("view{index}"), occurrences, summable));
                graph.operators.push(view.0);
                closed.push(false);
                closed[source] |= recipe.chains;
                continue;
            }
        }
        let operands: Vec<usize> = (0..1 + random.below(2)).map(|_| recent(&mut random)).collect();
        let first = graph.tensors.len();
        let results: Vec<usize> = (first..first + if random.chance(20) { 2 } else { 1 }).collect();
        for &result in &results {
            let occurrences = random_axes(&mut random);
            let summable = !random.chance(15);
            graph
                .tensors
                .push(tensor(format!("tensor{result}"), occurrences, summable));
            closed.push(false);
        }
        let count = 1 + random.below(if assignments > 400 { 1 } else { 4 });
        assignments *= count;
        let choices = (0..count).map(|choice| random_choice(&mut random, &graph, &operands, &results, choice == 0));
        let choices = choices.collect();
        graph
            .operators
            .push(operator(format!("operator{index}"), operands, results, choices));
    }
    random_outputs(&mut random, &mut graph, &closed);
    graph.validate().expect("a valid graph");
    graph
}

fn random_axes(random: &mut Random) -> Vec<usize> {
    (0..1 + random.below(2)).map(|_| random.below(3)).collect()
}

/// A choice that shares the work along one axis, or along none.
fn random_choice(random: &mut Random, graph: &Graph, operands: &[usize], results: &[usize], whole: bool) -> Choice {
    let shared = random.below(3);
    let mut axis = None;
    let mut place = |&tensor: &usize| {
        let tensor = &graph.tensors[tensor];
        let along = |placement: &Placement| match placement {
            Placement::Shard(occurrence) => tensor.occurrences[*occurrence as usize] == shared,
            Placement::Replicate | Placement::Partial => true,
        };
        let all: Vec<Placement> = placements(tensor).into_iter().filter(along).collect();
        let placement = if whole {
            Placement::Replicate
        } else {
            all[random.below(all.len())]
        };
        if matches!(placement, Placement::Shard(_)) {
            axis = Some(shared);
        }
        vec![placement]
    };
    let inputs: Vec<Placements> = operands.iter().map(&mut place).collect();
    let outputs: Vec<Placements> = results.iter().map(&mut place).collect();
    Choice {
        inputs,
        outputs,
        axis,
        ..Choice::default()
    }
}

/// A layout operator that reverses the axes, and the axes of its result; sometimes without a choice for some placement.
fn random_view(
    random: &mut Random,
    graph: &Graph,
    source: usize,
    index: usize,
    assignments: &mut usize,
) -> Option<(Operator, Vec<usize>)> {
    let tensor = &graph.tensors[source];
    let occurrences: Vec<usize> = tensor.occurrences.iter().rev().copied().collect();
    let last = occurrences.len() as u32 - 1;
    let mut choices: Vec<Choice> = placements(tensor)
        .into_iter()
        .map(|from| {
            let to = match from {
                Placement::Shard(occurrence) => Placement::Shard(last - occurrence),
                other => other,
            };
            let axis = match from {
                Placement::Shard(occurrence) => Some(tensor.occurrences[occurrence as usize]),
                Placement::Replicate | Placement::Partial => None,
            };
            Choice {
                inputs: vec![vec![from]],
                outputs: vec![vec![to]],
                axis,
                ..Choice::default()
            }
        })
        .collect();
    if random.chance(25) {
        choices.pop();
        if *assignments > 400 {
            return None;
        }
        *assignments *= choices.len();
    }
    let mut view = operator(
        format!("operator{index}"),
        vec![source],
        vec![graph.tensors.len()],
        choices,
    );
    view.layout = true;
    Some((view, occurrences))
}

fn random_outputs(random: &mut Random, graph: &mut Graph, closed: &[bool]) {
    let output = |kind, tensor: usize, of| Output {
        kind,
        name: format!("{kind:?} {tensor} of {of:?}"),
        tensor,
        of,
    };
    let open: Vec<usize> = (0..graph.tensors.len()).filter(|&tensor| !closed[tensor]).collect();
    graph
        .outputs
        .push(output(OutputKind::Loss, graph.tensors.len() - 1, None));
    let followed = graph.inputs.iter().filter(|input| input.kind != InputKind::Input);
    for input in followed.cloned().collect::<Vec<_>>() {
        let axes = &graph.tensors[input.tensor].occurrences;
        let alike: Vec<usize> = open
            .iter()
            .copied()
            .filter(|&it| graph.tensors[it].occurrences == *axes)
            .collect();
        if !alike.is_empty() && random.chance(80) {
            let kind = match input.kind {
                InputKind::Parameter => OutputKind::Gradient,
                InputKind::Buffer => OutputKind::Buffer,
                _ => OutputKind::Output,
            };
            graph
                .outputs
                .push(output(kind, alike[random.below(alike.len())], Some(input.tensor)));
        }
    }
    if random.chance(60) {
        graph
            .outputs
            .push(output(OutputKind::Output, open[random.below(open.len())], None));
    }
    if random.chance(30) {
        graph
            .outputs
            .push(output(OutputKind::InputGradient, open[random.below(open.len())], None));
    }
}

/// Costs that depend on the bytes and axes of a tensor alone.
#[derive(Clone, Copy, Debug)]
pub struct TestCosts<'a> {
    pub graph: &'a Graph,
    pub seed: u64,
    /// Whether slices, pads and keep-ones cost nothing.
    pub free: bool,
}

impl TestCosts<'_> {
    fn uniform(&self, words: [u64; 4]) -> f64 {
        let state = words.iter().fold(self.seed, |state, &word| Random(state ^ word).next());
        (state >> 40) as f64 / (1u64 << 24) as f64
    }
}

impl Costs for TestCosts<'_> {
    fn compute(&self, operator: usize, choice: usize) -> f64 {
        if self.graph.operators[operator].layout {
            0.0
        } else {
            self.uniform([1, operator as u64, choice as u64, 0])
        }
    }

    fn kind(&self, _tensor: usize) -> usize {
        0
    }

    fn convert(&self, tensor: usize, from: &Placements, to: &Placements) -> Option<Move> {
        let conversion = Conversion::between(self.graph, tensor, from, to)?;
        let tensor = &self.graph.tensors[tensor];
        if !tensor.summable && (from[0] == Placement::Partial || to[0] == Placement::Partial) {
            return None;
        }
        let word = |placement: Placement| match placement {
            Placement::Replicate => 100,
            Placement::Partial => 101,
            Placement::Shard(occurrence) => tensor.occurrences[occurrence as usize] as u64,
        };
        let cost = self.uniform([2, word(from[0]), word(to[0]), tensor.bytes as u64]);
        let moves = conversion.is_collective();
        let implementation = conversion.implementations().first().copied();
        Some(Move {
            conversion,
            implementation,
            cost: if moves || !self.free { cost } else { 0.0 },
        })
    }
}
