//! What holds of every graph: names and order do not matter, bounds are bounds of all programs, and every instruction of
//! an emitted program is needed.

use super::*;
use crate::testing::random_program;

/// A random order of so many things: position by index.
fn shuffled(count: usize, random: &mut Random) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, random.below(last + 1));
    }
    order
}

/// The items, each at its position.
fn moved<T: Clone>(items: &[T], positions: &[usize]) -> Vec<T> {
    let mut indices: Vec<usize> = (0..items.len()).collect();
    indices.sort_by_key(|&index| positions[index]);
    indices.into_iter().map(|index| items[index].clone()).collect()
}

/// The same graph with other names, its axes, tensors and inputs in another order, and its operators in another order in
/// which each still follows those that it reads.
fn relabelled(graph: &Graph, random: &mut Random) -> Graph {
    let mut other = graph.clone();
    let tensors = shuffled(graph.tensors.len(), random);
    let axes = shuffled(graph.axes.len(), random);
    for tensor in &mut other.tensors {
        tensor.name = format!("other {}", tensor.name);
        tensor.occurrences.iter_mut().for_each(|axis| *axis = axes[*axis]);
    }
    other.tensors = moved(&other.tensors, &tensors);
    other.axes = moved(&graph.axes, &axes);
    for input in &mut other.inputs {
        input.tensor = tensors[input.tensor];
    }
    other.inputs = moved(&other.inputs, &shuffled(graph.inputs.len(), random));
    for output in &mut other.outputs {
        output.tensor = tensors[output.tensor];
        output.of = output.of.map(|tensor| tensors[tensor]);
    }
    for operator in &mut other.operators {
        operator.name = format!("other {}", operator.name);
        let used = operator.operands.iter_mut().chain(&mut operator.results);
        used.for_each(|tensor| *tensor = tensors[*tensor]);
        for choice in &mut operator.choices {
            choice.axis = choice.axis.map(|axis| axes[axis]);
        }
    }
    let mut waiting = std::mem::take(&mut other.operators);
    let mut there: Vec<usize> = other.inputs.iter().map(|input| input.tensor).collect();
    while !waiting.is_empty() {
        let ready = |index: &usize| waiting[*index].operands.iter().all(|operand| there.contains(operand));
        let ready: Vec<usize> = (0..waiting.len()).filter(ready).collect();
        let next = waiting.remove(ready[random.below(ready.len())]);
        there.extend(&next.results);
        other.operators.push(next);
    }
    other.validate().expect("a valid graph");
    other
}

/// Numbers that sum to one.
fn weights(count: usize, random: &mut Random) -> Vec<f64> {
    let parts: Vec<f64> = (0..count).map(|_| random.unit()).collect();
    parts.iter().map(|part| part / parts.iter().sum::<f64>()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn relabelling_leaves_the_cost_unchanged(recipe in recipe(12, 25, false), seed: u64) {
        let graph = random_graph(recipe);
        let other = relabelled(&graph, &mut Random(seed));
        let cluster = cluster(&[1.0, 3.0, 2.0]);
        let cost = synthesise(&graph, &cluster, &request(&graph, &[1, 3, 0])).expect("a program").cost;
        let relabelled = synthesise(&other, &cluster, &request(&other, &[1, 3, 0])).expect("a program").cost;
        prop_assert!(close(cost, relabelled), "{cost} and {relabelled}");
    }

    #[test]
    fn bounds_under_any_prices_are_below_the_time_of_any_program(
        recipe in recipe(12, 25, false), seed: u64, theta in 0.0..=1.0f64, overlap in 0.0..=1.0f64,
    ) {
        let mut random = Random(seed);
        let graph = composed(random_graph(recipe), &mut random);
        let cluster = Cluster { overlap, ..cluster(&[1.0, 3.0, 2.0]) };
        let prices = Prices { weights: Some(weights(3, &mut random)), theta: Some(theta), memory: None };
        let request = Request { prices, ..request(&graph, &[1, 3, 0]) };
        let bound = synthesise(&graph, &cluster, &request).expect("a program").bound;
        let shares = from_splits(&graph, 3, &request.splits).expect("shares");
        for _ in 0..4 {
            let program = validate(&graph, &random_program(&graph, &mut random)).expect("a valid program");
            let seconds = simulate(&graph, &cluster, &shares, &program, &Options::default()).seconds;
            prop_assert!(bound <= seconds * (1.0 + 1e-9), "{bound} > {seconds}");
        }
    }

    #[test]
    fn every_instruction_of_a_program_is_needed(recipe in recipe(8, 25, false), random: Option<u64>) {
        let graph = random_graph(recipe);
        let request = Request { random, ..request(&graph, &[1, 3, 0]) };
        let program = synthesise(&graph, &cluster(&[1.0, 3.0, 2.0]), &request).expect("a program").program;
        validate(&graph, &program).expect("a valid program");
        let used: Vec<&String> = graph.outputs.iter().map(|output| &graph.tensors[output.tensor].name)
            .chain(graph.operators.iter().flat_map(|it| &it.operands).map(|&tensor| &graph.tensors[tensor].name))
            .collect();
        for (index, instruction) in program.instructions.iter().enumerate() {
            // What nobody reads is there nevertheless.
            let useless = match instruction {
                Instruction::Input { tensor, .. } => !used.contains(&tensor),
                Instruction::Compute { outputs, .. } => !outputs.iter().any(|(tensor, _)| used.contains(&tensor)),
                Instruction::Free { .. } => true,
                Instruction::Convert { .. } | Instruction::Output { .. } => false,
            };
            let mut fewer = program.clone();
            fewer.instructions.remove(index);
            prop_assert!(useless || validate(&graph, &fewer).is_err(), "without {index}, {instruction:?}");
        }
    }

    #[test]
    fn what_many_read_is_made_and_paid_once(recipe in recipe(12, 25, false), random: Option<u64>) {
        let graph = random_graph(recipe);
        let request = Request { random, ..request(&graph, &[1, 3, 0]) };
        let program = synthesise(&graph, &cluster(&[1.0, 3.0, 2.0]), &request).expect("a program").program;
        let mut there = Vec::new();
        for instruction in &program.instructions {
            let made = match instruction {
                Instruction::Input { tensor, placement } => vec![(tensor, placement)],
                Instruction::Convert { tensor, to, .. } => vec![(tensor, to)],
                Instruction::Compute { outputs, .. } => outputs.iter().map(|(tensor, placement)| (tensor, placement)).collect(),
                Instruction::Free { .. } | Instruction::Output { .. } => Vec::new(),
            };
            for value in made {
                prop_assert!(!there.contains(&value), "{value:?} is made twice");
                there.push(value);
            }
        }
    }
}
