//! An oracle that shares nothing with the model: brute force over all decisions.

use std::collections::{BTreeMap, BinaryHeap};

use super::costs::Costs;
use super::held::HeldPrices;
use super::request::Constraints;
use super::testing::placements;
use crate::graph::{Graph, Operator, OutputKind};
use crate::placement::Placement;

/// Whether a layout operator maps every placement of operand and result.
fn is_view(graph: &Graph, operator: &Operator) -> bool {
    operator.layout && operator.choices.len() == placements(&graph.tensors[operator.operands[0]]).len()
}

/// Least cost over all assignments: every operator's choice and every input's placement, with the cheapest conversions by
/// exhaustive search over sets of (tensor, placement) that are there.
///
/// Of the constraints, those on inputs and outputs are kept to. Where memory has prices, every forward operator may run
/// twice, and of every class any placements may be kept.
pub fn brute_force(graph: &Graph, costs: &impl Costs, constraints: &Constraints, memory: Option<&HeldPrices>) -> f64 {
    let forward = forward(graph);
    let mut oracle = Oracle {
        graph,
        costs,
        constraints,
        memory,
        known: BTreeMap::new(),
        forward: &forward,
    };
    let views: Vec<bool> = graph
        .operators
        .iter()
        .map(|operator| is_view(graph, operator))
        .collect();
    let counts: Vec<usize> = graph
        .inputs
        .iter()
        .map(|input| {
            if graph.sharded(input) {
                1 + graph.tensors[input.tensor].occurrences.len()
            } else {
                1
            }
        })
        .chain(
            graph
                .operators
                .iter()
                .enumerate()
                .map(|(index, it)| match views[index] {
                    true => 1,
                    false if memory.is_some() && forward[index] => 2 * it.choices.len(),
                    false => it.choices.len(),
                }),
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

/// What the cost of a class depends on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    made: (usize, Placement),
    again: bool,
    /// Demanded in the phase of the producer, and behind the boundary.
    now: Pairs,
    later: Pairs,
    /// Outputs with the placements that each may end in.
    ends: Vec<(usize, Vec<Placement>)>,
}

/// By operator, whether a loss, an output or a new buffer needs it.
fn forward(graph: &Graph) -> Vec<bool> {
    let ends = graph
        .outputs
        .iter()
        .filter(|output| !matches!(output.kind, OutputKind::Gradient | OutputKind::InputGradient));
    let mut open: Vec<usize> = ends.map(|output| output.tensor).collect();
    let mut forward = vec![false; graph.operators.len()];
    while let Some(tensor) = open.pop() {
        let maker = graph.operators.iter().position(|it| it.results.contains(&tensor));
        if let Some(maker) = maker.filter(|&maker| !forward[maker]) {
            forward[maker] = true;
            open.extend(&graph.operators[maker].operands);
        }
    }
    forward
}

struct Oracle<'a, C> {
    graph: &'a Graph,
    costs: &'a C,
    constraints: &'a Constraints,
    memory: Option<&'a HeldPrices<'a>>,
    known: BTreeMap<Key, f64>,
    forward: &'a [bool],
}

impl<C: Costs> Oracle<'_, C> {
    fn cost(&mut self, labels: &[usize], views: &[bool]) -> f64 {
        let graph = self.graph;
        let (inputs, operators) = labels.split_at(graph.inputs.len());
        let mut total = 0.0;
        // With whether it is there before the boundary, and whether it is made again behind it.
        let mut produced: Vec<((usize, Placement), bool, bool)> = Vec::new();
        let (mut before, mut behind) = (Pairs::new(), Pairs::new());
        for (index, (input, &label)) in graph.inputs.iter().zip(inputs).enumerate() {
            let placement = placements(&graph.tensors[input.tensor])[label];
            total += self.costs.keep(index, placement);
            total += self.memory.map_or(0.0, |memory| memory.stored(index, placement));
            produced.push(((input.tensor, placement), true, false));
        }
        for (index, operator) in graph.operators.iter().enumerate().filter(|(index, _)| !views[*index]) {
            let again = operators[index] >= operator.choices.len();
            let number = operators[index] % operator.choices.len();
            let choice = &operator.choices[number];
            total += self.costs.compute(index, number) * if again { 2.0 } else { 1.0 };
            let forward = self.forward[index] || self.memory.is_none();
            let results = operator.results.iter().zip(&choice.outputs);
            produced.extend(results.map(|(&tensor, to)| ((tensor, to[0]), forward, again)));
            let operands = operator.operands.iter().zip(&choice.inputs);
            let operands: Pairs = operands.map(|(&tensor, from)| (tensor, from[0])).collect();
            if again || !forward {
                behind.extend(&operands);
            }
            if forward {
                before.extend(operands);
            }
        }
        let mut ends = Vec::new();
        for output in &graph.outputs {
            let backward = matches!(output.kind, OutputKind::Gradient | OutputKind::InputGradient);
            let demanded = if backward && self.memory.is_some() {
                &mut behind
            } else {
                &mut before
            };
            match output.kind {
                OutputKind::Loss | OutputKind::InputGradient => demanded.push((output.tensor, Placement::Replicate)),
                OutputKind::Output if output.of.is_none() => {
                    let mut may = placements(&graph.tensors[output.tensor]);
                    may.retain(|it| *it != Placement::Partial);
                    if let Some(allowed) = self.constraints.outputs.get(&output.name) {
                        may.retain(|it| allowed.contains(it));
                    }
                    ends.push((output.tensor, may));
                }
                OutputKind::Output | OutputKind::Gradient | OutputKind::Buffer => {
                    let kept = produced.iter().find(|(pair, ..)| Some(pair.0) == output.of);
                    demanded.extend(kept.map(|(pair, ..)| (output.tensor, pair.1)));
                }
            }
        }
        for (made, forward, again) in produced {
            let group = self.group(made.0, views);
            let of_group = |pairs: &Pairs| {
                let mut pairs: Pairs = pairs.iter().copied().filter(|pair| group.contains(&pair.0)).collect();
                pairs.sort();
                pairs.dedup();
                pairs
            };
            let (mut now, mut later) = (of_group(&before), of_group(&behind));
            if !forward {
                now.append(&mut later);
            }
            let ends = ends.iter().filter(|end| group.contains(&end.0)).cloned().collect();
            let key = Key {
                made,
                again,
                now,
                later,
                ends,
            };
            let cost = match self.known.get(&key) {
                Some(&cost) => cost,
                None => self.class(&group, &key),
            };
            self.known.insert(key, cost);
            total += cost;
        }
        total
    }

    /// Cost of a class: of its conversions, and of what is kept over the boundary.
    fn class(&self, group: &[usize], key: &Key) -> f64 {
        let first = |kept: &[(usize, Placement)]| {
            let needed: Pairs = key.now.iter().chain(kept).copied().collect();
            self.search(group, &[key.made], &needed, &key.ends)
        };
        if key.later.is_empty() || key.again {
            return first(&[]) + self.search(group, &[key.made], &key.later, &[]);
        }
        let all: Pairs = placements(&self.graph.tensors[key.made.0])
            .into_iter()
            .map(|placement| (key.made.0, placement))
            .collect();
        let stored = self.graph.inputs.iter().any(|input| input.tensor == key.made.0);
        let mut best = f64::INFINITY;
        for set in 1u32..1 << all.len() {
            let kept: Vec<(usize, Placement)> = (0..all.len())
                .filter(|&it| set >> it & 1 == 1)
                .map(|it| all[it])
                .collect();
            if !stored || kept.contains(&key.made) {
                let price: f64 = kept.iter().map(|&kept| self.price(group, key.made, kept)).sum();
                best = best.min(first(&kept) + price + self.search(group, &kept, &key.later, &[]));
            }
        }
        best
    }

    /// The price of keeping a placement of a class.
    fn price(&self, group: &[usize], made: (usize, Placement), kept: (usize, Placement)) -> f64 {
        let graph = self.graph;
        let input = graph.inputs.iter().any(|input| input.tensor == made.0);
        let held = graph.outputs.iter().any(|output| {
            let backward = matches!(output.kind, OutputKind::Gradient | OutputKind::InputGradient);
            !backward && group.contains(&output.tensor)
        });
        let lent = graph
            .operators
            .iter()
            .any(|it| it.layout && it.results.contains(&made.0));
        match kept == made {
            true if input => 0.0,
            _ if held && !input => 0.0,
            true if lent => f64::INFINITY,
            _ => self.memory.map_or(0.0, |memory| memory.kept(kept.0, kept.1)),
        }
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

    /// Cost of creating what is needed from what is there: Dijkstra over the sets of pairs that are there.
    fn search(
        &self,
        group: &[usize],
        there: &[(usize, Placement)],
        needed: &[(usize, Placement)],
        ends: &[(usize, Vec<Placement>)],
    ) -> f64 {
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
        let needed = needed.iter().fold(0, |set, &pair| set | bit(pair));
        let ended = |end: &(usize, Vec<Placement>), set: usize| end.1.iter().any(|&it| set & bit((end.0, it)) != 0);
        let mut best = vec![f64::INFINITY; 1 << pairs.len()];
        let start = there.iter().fold(0, |set, &pair| set | bit(pair));
        best[start] = 0.0;
        // Costs are not negative, so that their bits order as they do.
        let mut open = BinaryHeap::from([(std::cmp::Reverse(0f64.to_bits()), start)]);
        while let Some((std::cmp::Reverse(bits), set)) = open.pop() {
            let cost = f64::from_bits(bits);
            if cost > best[set] {
                continue;
            }
            if needed & !set == 0 && ends.iter().all(|end| ended(end, set)) {
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
