//! An oracle that shares nothing with the model: brute force over all decisions, and a walk over a program.

use std::collections::{BTreeMap, BinaryHeap};

use super::costs::Costs;
use super::request::Constraints;
use super::testing::placements;
use crate::graph::{Choice, Graph, InputKind, Operator, OutputKind};
use crate::placement::{Placement, Placements};
use crate::program::{Instruction, Program};

/// Whether a layout operator maps every placement of operand and result.
fn is_view(graph: &Graph, operator: &Operator) -> bool {
    operator.layout && operator.choices.len() == placements(&graph.tensors[operator.operands[0]]).len()
}

/// Least cost over all assignments: every operator's choice and every input's placement, with the cheapest conversions by
/// exhaustive search over sets of (tensor, placement) that are there.
///
/// Of the constraints, those on inputs and outputs are kept to.
pub fn brute_force(graph: &Graph, costs: &impl Costs, constraints: &Constraints) -> f64 {
    let mut oracle = Oracle {
        graph,
        costs,
        constraints,
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
    let kept_to = |labels: &[usize]| {
        graph.inputs.iter().zip(labels).all(|(input, &label)| {
            let tensor = &graph.tensors[input.tensor];
            let allowed = constraints.placements.get(&tensor.name);
            allowed.is_none_or(|allowed| allowed.contains(&placements(tensor)[label]))
        })
    };
    loop {
        if kept_to(&labels) {
            best = best.min(oracle.cost(&labels, &views));
        }
        let Some(next) = (0..labels.len()).rev().find(|&place| labels[place] + 1 < counts[place]) else {
            return best;
        };
        labels[next] += 1;
        labels[next + 1..].fill(0);
    }
}

/// Tensors and placements, as (tensor, placement) pairs.
type Pairs = Vec<(usize, Placement)>;

/// A produced pair, the demanded pairs of its group, and its outputs with the placements that each may end in.
type Key = (usize, Placement, Pairs, Vec<(usize, Vec<Placement>)>);

struct Oracle<'a, C> {
    graph: &'a Graph,
    costs: &'a C,
    constraints: &'a Constraints,
    known: BTreeMap<Key, f64>,
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
        let mut ends = Vec::new();
        for output in &graph.outputs {
            match output.kind {
                OutputKind::Loss | OutputKind::InputGradient => demanded.push((output.tensor, Placement::Replicate)),
                OutputKind::Output => {
                    let mut may = placements(&graph.tensors[output.tensor]);
                    may.retain(|it| *it != Placement::Partial);
                    if let Some(allowed) = self.constraints.outputs.get(&output.name) {
                        may.retain(|it| allowed.contains(it));
                    }
                    ends.push((output.tensor, may));
                }
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
            let ends = ends.iter().filter(|end| group.contains(&end.0)).cloned().collect();
            let key = (tensor, placement, pairs, ends);
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
    fn search(&self, group: &[usize], key: &Key) -> f64 {
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
        let ended = |end: &(usize, Vec<Placement>), set: usize| end.1.iter().any(|&it| set & bit((end.0, it)) != 0);
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
            if needed & !set == 0 && key.3.iter().all(|end| ended(end, set)) {
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
            Instruction::Free { .. } => panic!("nothing is freed: {instruction:?}"),
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
