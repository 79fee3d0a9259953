//! Random graphs and costs for the tests, and an oracle that shares nothing with the model.

use std::collections::{BTreeMap, BinaryHeap};

use super::costs::{Costs, Move};
use crate::graph::{Axis, Choice, Graph, Input, InputKind, Operator, Output, OutputKind, Tensor};
use crate::placement::{Placement, Placements};
use crate::program::{Conversion, Instruction, Program};

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
        layout: false,
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
        assignments *= if kind == InputKind::Tangent {
            1
        } else {
            1 + occurrences.len()
        };
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
    Choice { inputs, outputs, axis }
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
    let kept = graph
        .inputs
        .iter()
        .filter(|input| matches!(input.kind, InputKind::Parameter | InputKind::Buffer));
    for input in kept.cloned().collect::<Vec<_>>() {
        let axes = &graph.tensors[input.tensor].occurrences;
        let alike: Vec<usize> = open
            .iter()
            .copied()
            .filter(|&it| graph.tensors[it].occurrences == *axes)
            .collect();
        if !alike.is_empty() && random.chance(80) {
            let kind = if input.kind == InputKind::Parameter {
                OutputKind::Gradient
            } else {
                OutputKind::Buffer
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

    fn convert(&self, tensor: usize, from: &Placements, to: &Placements) -> Option<Move> {
        let tensor = &self.graph.tensors[tensor];
        if !tensor.summable && (from[0] == Placement::Partial || to[0] == Placement::Partial) {
            return None;
        }
        let conversion = Conversion::between(from, to)?;
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

/// Whether a layout operator maps every placement of operand and result.
fn is_view(graph: &Graph, operator: &Operator) -> bool {
    operator.layout && operator.choices.len() == placements(&graph.tensors[operator.operands[0]]).len()
}

/// Least cost over all assignments: every operator's choice and every input's placement, with the cheapest conversions by
/// exhaustive search over sets of (tensor, placement) that are there.
pub fn brute_force(graph: &Graph, costs: &impl Costs) -> f64 {
    let mut oracle = Oracle {
        graph,
        costs,
        known: BTreeMap::new(),
    };
    let views: Vec<bool> = graph
        .operators
        .iter()
        .map(|operator| is_view(graph, operator))
        .collect();
    let kept = |kind| matches!(kind, InputKind::Parameter | InputKind::Buffer | InputKind::Input);
    let counts: Vec<usize> = graph
        .inputs
        .iter()
        .map(|input| {
            if kept(input.kind) {
                1 + graph.tensors[input.tensor].occurrences.len()
            } else {
                1
            }
        })
        .chain(
            graph
                .operators
                .iter()
                .zip(&views)
                .map(|(it, &view)| if view { 1 } else { it.choices.len() }),
        )
        .collect();
    let mut labels = vec![0; counts.len()];
    let mut best = f64::INFINITY;
    loop {
        best = best.min(oracle.cost(&labels, &views));
        let Some(next) = (0..labels.len()).rev().find(|&place| labels[place] + 1 < counts[place]) else {
            return best;
        };
        labels[next] += 1;
        labels[next + 1..].fill(0);
    }
}

/// Tensors and placements, as (tensor, placement) pairs.
type Pairs = Vec<(usize, Placement)>;

struct Oracle<'a, C> {
    graph: &'a Graph,
    costs: &'a C,
    /// By produced pair, demanded pairs and tensors that must not end partial.
    known: BTreeMap<(usize, Placement, Pairs, Vec<usize>), f64>,
}

impl<C: Costs> Oracle<'_, C> {
    fn cost(&mut self, labels: &[usize], views: &[bool]) -> f64 {
        let graph = self.graph;
        let (inputs, operators) = labels.split_at(graph.inputs.len());
        let mut total = 0.0;
        let mut produced: Pairs = Vec::new();
        let mut demanded: Pairs = Vec::new();
        for (index, (input, &label)) in graph.inputs.iter().zip(inputs).enumerate() {
            let placement = placements(&graph.tensors[input.tensor])[label];
            total += self.costs.keep(index, placement);
            produced.push((input.tensor, placement));
        }
        for (index, operator) in graph.operators.iter().enumerate().filter(|(index, _)| !views[*index]) {
            let choice = &operator.choices[operators[index]];
            total += self.costs.compute(index, operators[index]);
            produced.extend(
                operator
                    .results
                    .iter()
                    .zip(&choice.outputs)
                    .map(|(&tensor, to)| (tensor, to[0])),
            );
            demanded.extend(
                operator
                    .operands
                    .iter()
                    .zip(&choice.inputs)
                    .map(|(&tensor, from)| (tensor, from[0])),
            );
        }
        let mut whole = Vec::new();
        for output in &graph.outputs {
            match output.kind {
                OutputKind::Loss | OutputKind::InputGradient => demanded.push((output.tensor, Placement::Replicate)),
                OutputKind::Output => whole.push(output.tensor),
                OutputKind::Gradient | OutputKind::Buffer => {
                    let kept = produced.iter().find(|pair| Some(pair.0) == output.of);
                    demanded.extend(kept.map(|pair| (output.tensor, pair.1)));
                }
            }
        }
        demanded.sort();
        demanded.dedup();
        for (tensor, placement) in produced {
            let group = self.group(tensor, views);
            let pairs = demanded
                .iter()
                .copied()
                .filter(|pair| group.contains(&pair.0))
                .collect();
            let whole: Vec<usize> = whole.iter().copied().filter(|tensor| group.contains(tensor)).collect();
            let key = (tensor, placement, pairs, whole);
            let cost = self
                .known
                .get(&key)
                .copied()
                .unwrap_or_else(|| self.search(&group, &key));
            self.known.insert(key, cost);
            total += cost;
        }
        total
    }

    /// A tensor and everything that is a view of it.
    fn group(&self, tensor: usize, views: &[bool]) -> Vec<usize> {
        let mut group = vec![tensor];
        for (operator, _) in self.graph.operators.iter().zip(views).filter(|(_, view)| **view) {
            if group.contains(&operator.operands[0]) {
                group.extend(&operator.results);
            }
        }
        group
    }

    /// Dijkstra over the sets of pairs that are there.
    fn search(&self, group: &[usize], key: &(usize, Placement, Pairs, Vec<usize>)) -> f64 {
        let graph = self.graph;
        let pairs: Pairs = group
            .iter()
            .flat_map(|&tensor| {
                placements(&graph.tensors[tensor])
                    .into_iter()
                    .map(move |placement| (tensor, placement))
            })
            .collect();
        let bit = |pair: (usize, Placement)| 1usize << pairs.iter().position(|it| *it == pair).expect("a pair");
        let mut steps: Vec<(usize, usize, f64)> = Vec::new();
        for &(tensor, from) in &pairs {
            for to in placements(&graph.tensors[tensor]) {
                if let Some(step) = self.costs.convert(tensor, &vec![from], &vec![to]) {
                    steps.push((bit((tensor, from)), bit((tensor, to)), step.cost));
                }
            }
        }
        for operator in graph
            .operators
            .iter()
            .filter(|it| is_view(graph, it) && group.contains(&it.operands[0]))
        {
            for choice in &operator.choices {
                let from = bit((operator.operands[0], choice.inputs[0][0]));
                steps.push((from, bit((operator.results[0], choice.outputs[0][0])), 0.0));
            }
        }
        let needed = key.2.iter().fold(0, |set, &pair| set | bit(pair));
        let not_partial = |tensor: usize, set: usize| {
            placements(&graph.tensors[tensor])
                .into_iter()
                .any(|it| it != Placement::Partial && set & bit((tensor, it)) != 0)
        };
        let mut best = vec![f64::INFINITY; 1 << pairs.len()];
        let start = bit((key.0, key.1));
        best[start] = 0.0;
        // Costs are not negative, so that their bits order as they do.
        let mut open = BinaryHeap::from([(std::cmp::Reverse(0f64.to_bits()), start)]);
        while let Some((std::cmp::Reverse(bits), set)) = open.pop() {
            let cost = f64::from_bits(bits);
            if cost > best[set] {
                continue;
            }
            if needed & !set == 0 && key.3.iter().all(|&tensor| not_partial(tensor, set)) {
                return cost;
            }
            for &(from, to, step) in &steps {
                if set & from != 0 && cost + step < best[set | to] {
                    best[set | to] = cost + step;
                    open.push((std::cmp::Reverse((cost + step).to_bits()), set | to));
                }
            }
        }
        f64::INFINITY
    }
}

/// Checks a program instruction by instruction against its graph and sums its cost.
pub fn walk(graph: &Graph, costs: &impl Costs, program: &Program) -> f64 {
    let find = |name: &str| {
        graph
            .tensors
            .iter()
            .position(|tensor| tensor.name == *name)
            .expect("a tensor")
    };
    let mut there: Vec<(usize, Placements)> = Vec::new();
    let mut computed = vec![false; graph.operators.len()];
    let mut total = 0.0;
    let mut outputs = 0;
    for instruction in &program.instructions {
        match instruction {
            Instruction::Input { tensor, placement } => {
                let index = graph
                    .inputs
                    .iter()
                    .position(|input| input.tensor == find(tensor))
                    .expect("an input");
                total += costs.keep(index, placement[0]);
                there.push((find(tensor), placement.clone()));
            }
            Instruction::Compute {
                operator,
                inputs,
                outputs,
                ..
            } => {
                let index = graph
                    .operators
                    .iter()
                    .position(|it| it.name == *operator)
                    .expect("an operator");
                let node = &graph.operators[index];
                for ((name, placement), &tensor) in inputs.iter().zip(&node.operands) {
                    assert_eq!(find(name), tensor);
                    assert!(
                        there.contains(&(tensor, placement.clone())),
                        "{operator} reads {name} {placement:?}"
                    );
                }
                let same = |choice: &&Choice| {
                    choice.inputs.iter().eq(inputs.iter().map(|it| &it.1))
                        && choice.outputs.iter().eq(outputs.iter().map(|it| &it.1))
                };
                assert!(
                    node.choices.iter().any(|choice| same(&choice)),
                    "{operator} has no such choice"
                );
                assert!(node.layout || !computed[index], "{operator} is computed twice");
                let choices = node.choices.iter().enumerate().filter(|(_, choice)| same(choice));
                total += choices
                    .map(|(choice, _)| costs.compute(index, choice))
                    .fold(f64::INFINITY, f64::min);
                computed[index] = true;
                there.extend(node.results.iter().copied().zip(outputs.iter().map(|it| it.1.clone())));
            }
            Instruction::Convert {
                tensor,
                from,
                to,
                conversion,
                ..
            } => {
                let index = find(tensor);
                assert!(
                    there.contains(&(index, from.clone())),
                    "{tensor} is converted from {from:?}"
                );
                assert!(!there.contains(&(index, to.clone())), "{tensor} gains {to:?} twice");
                let step = costs.convert(index, from, to).expect("a conversion");
                assert_eq!(step.conversion, *conversion);
                total += step.cost;
                there.push((index, to.clone()));
            }
            Instruction::Output {
                name,
                tensor,
                placement,
            } => {
                let output = &graph.outputs[outputs];
                assert_eq!((&output.name, output.tensor), (name, find(tensor)));
                assert!(
                    there.contains(&(output.tensor, placement.clone())),
                    "{name} is not there"
                );
                let kept = there.iter().find(|pair| Some(pair.0) == output.of).map(|pair| &pair.1);
                match output.kind {
                    OutputKind::Loss | OutputKind::InputGradient => assert_eq!(*placement, [Placement::Replicate]),
                    OutputKind::Output => assert_ne!(*placement, [Placement::Partial]),
                    OutputKind::Gradient | OutputKind::Buffer => assert_eq!(Some(placement), kept),
                }
                outputs += 1;
            }
        }
    }
    assert_eq!(outputs, graph.outputs.len());
    assert!(computed.iter().all(|&computed| computed), "an operator is not computed");
    total
}
