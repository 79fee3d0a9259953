//! Programs written by hand, one instruction a line.

use super::placements;
use crate::graph::Graph;
use crate::placement::Placements;
use crate::program::{Conversion, Implementation, Instruction, Program};

/// A program from lines such as
/// `input x S0`, `compute h S0 R -> S0`, `convert h S0 R padded`, `convert h R S1`, `free h S0`, `output loss loss R`
/// (a convert names its implementation where something moves; an output its name and its tensor).
///
/// Names must exist; whether the program is valid is left to the validator.
pub fn program(graph: &Graph, lines: &[&str]) -> Program {
    Program {
        instructions: lines.iter().map(|line| instruction(graph, line)).collect(),
    }
}

fn instruction(graph: &Graph, line: &str) -> Instruction {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["input", tensor, placement] => Instruction::Input {
            tensor: (*tensor).into(),
            placement: placements(placement),
        },
        ["compute", name, placed @ ..] => {
            let operator = graph
                .operators
                .iter()
                .find(|operator| operator.name == *name)
                .expect("an operator");
            let arrow = placed.iter().position(|word| *word == "->").expect("an arrow");
            let inputs = pairs(graph, &operator.operands, &placed[..arrow]);
            let outputs = pairs(graph, &operator.results, &placed[arrow + 1..]);
            let choice = operator.choices.iter().find(|choice| {
                let all =
                    |list: &[(String, Placements)]| list.iter().map(|(_, placed)| placed.clone()).collect::<Vec<_>>();
                choice.inputs == all(&inputs) && choice.outputs == all(&outputs)
            });
            let axis = choice
                .and_then(|choice| choice.axis)
                .map(|axis| graph.axes[axis].name.clone());
            Instruction::Compute {
                operator: (*name).into(),
                target: operator.target.clone(),
                inputs,
                outputs,
                axis,
                composite: choice.and_then(|choice| choice.composite.clone()),
            }
        }
        ["convert", name, from, to, how @ ..] => {
            let (from, to) = (placements(from), placements(to));
            let number = graph.tensors.iter().position(|tensor| tensor.name == *name);
            let number = number.expect("a tensor");
            let tensor = &graph.tensors[number];
            Instruction::Convert {
                conversion: Conversion::between(graph, number, &from, &to).expect("a conversion"),
                tensor: (*name).into(),
                axis: Conversion::axis(tensor, &from, &to).map(|axis| graph.axes[axis].name.clone()),
                from,
                to,
                implementation: how.first().map(|how| match *how {
                    "padded" => Implementation::Padded,
                    "grouped" => Implementation::Grouped,
                    "exchange" => Implementation::Exchange,
                    "builtin" => Implementation::Builtin,
                    other => panic!("no implementation: {other}"),
                }),
                bucket: how.get(1).map(|bucket| bucket.parse().expect("the number of a bucket")),
            }
        }
        ["free", tensor, placement] => Instruction::Free {
            tensor: (*tensor).into(),
            placement: placements(placement),
        },
        ["output", name, tensor, placement] => Instruction::Output {
            name: (*name).into(),
            tensor: (*tensor).into(),
            placement: placements(placement),
        },
        _ => panic!("no instruction: {line}"),
    }
}

fn pairs(graph: &Graph, tensors: &[usize], placed: &[&str]) -> Vec<(String, Placements)> {
    assert_eq!(tensors.len(), placed.len(), "one placement per tensor");
    tensors
        .iter()
        .zip(placed)
        .map(|(tensor, placed)| (graph.tensors[*tensor].name.clone(), placements(placed)))
        .collect()
}
