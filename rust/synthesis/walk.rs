//! An oracle that shares nothing with emission: a walk over a program.

use super::costs::Costs;
use crate::graph::{Choice, Graph, Output, OutputKind};
use crate::placement::{Placement, Placements};
use crate::program::{Instruction, Program};

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
                let gained = node.results.iter().copied().zip(outputs.iter().map(|it| it.1.clone()));
                let gained: Vec<(usize, Placements)> = gained.collect();
                let new = gained.iter().any(|pair| !there.contains(pair));
                assert!(new || node.results.is_empty(), "{operator} is computed twice");
                let choices = node.choices.iter().enumerate().filter(|(_, choice)| same(choice));
                total += choices
                    .map(|(choice, _)| costs.compute(index, choice))
                    .fold(f64::INFINITY, f64::min);
                computed[index] = true;
                there.extend(gained);
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
            Instruction::Free { tensor, placement } => {
                let freed = (find(tensor), placement.clone());
                assert!(there.contains(&freed), "{instruction}");
                there.retain(|pair| *pair != freed);
            }
            Instruction::Output {
                name,
                tensor,
                placement,
            } => {
                let named = |it: &&Output| (&it.name, it.tensor) == (name, find(tensor));
                let output = graph.outputs.iter().find(named).expect("an output");
                assert!(
                    there.contains(&(output.tensor, placement.clone())),
                    "{name} is not there"
                );
                let kept = there.iter().find(|pair| Some(pair.0) == output.of).map(|pair| &pair.1);
                match output.kind {
                    OutputKind::Loss | OutputKind::InputGradient => assert_eq!(*placement, [Placement::Replicate]),
                    OutputKind::Output if output.of.is_none() => assert_ne!(*placement, [Placement::Partial]),
                    OutputKind::Output | OutputKind::Gradient | OutputKind::Buffer => assert_eq!(Some(placement), kept),
                }
                outputs += 1;
            }
        }
    }
    assert_eq!(outputs, graph.outputs.len());
    assert!(computed.iter().all(|&computed| computed), "an operator is not computed");
    total
}
