//! From a solution of the model back to a program.
//!
//! Operators are applied in the order of the graph. Partial tensors are reduced right after they are produced, all other
//! conversions and all views wait for their first reader, so that little lies in memory for long.

use super::classes::{placement_at, placement_number};
use super::convert::{Set, numbers};
use super::demands::Source;
use super::model::{Model, Variable};
use crate::graph::{Choice, Graph, Operator, OutputKind};
use crate::placement::Placement;
use crate::program::{Conversion, Instruction, Program};

/// The program that a solution stands for, and the sum of the costs of its conversions.
///
/// `assignment` has one label per variable of the model; its cost must be finite.
pub fn emit(graph: &Graph, model: &mut Model, assignment: &[usize]) -> (Program, f64) {
    let plans = (0..model.demands.len())
        .map(|class| plan(model, class, assignment))
        .collect::<Vec<_>>();
    let mut emitter = Emitter {
        graph,
        model,
        from: vec![Vec::new(); graph.tensors.len()],
        kind: vec![0; graph.tensors.len()],
        there: vec![0; graph.tensors.len()],
        read: read_tensors(graph, model),
        program: Program::default(),
        communication: 0.0,
    };
    for (class, plan) in plans.into_iter().enumerate() {
        let root = model.demands[class].root;
        emitter.from[root] = plan;
        emitter.kind[root] = model.kinds[class];
    }
    emitter.run(assignment);
    (emitter.program, emitter.communication)
}

/// By number of a placement of a class's root, the placement that it is converted from.
type Plan = Vec<Option<usize>>;

fn plan(model: &mut Model, class: usize, assignment: &[usize]) -> Plan {
    let demands = &model.demands[class];
    let label = |source| assignment[model.variable(source)];
    let producer = &demands.parties[0];
    let produced = producer
        .produced
        .as_ref()
        .map_or(0, |produced| produced[label(producer.source)]);
    let read = demands
        .parties
        .iter()
        .fold(demands.fixed, |set, party| set | party.demanded[label(party.source)]);
    let ends = &demands.ends;
    let conversions = &mut model.conversions[model.kinds[class]];
    let set = conversions.with_ends(produced, read, ends);
    let mut plan = vec![None; conversions.count()];
    for (from, to) in conversions.plan(produced, set) {
        plan[to] = Some(from);
    }
    plan
}

/// By tensor, whether an operator that is not merged, an output, or a view that is read reads it.
fn read_tensors(graph: &Graph, model: &Model) -> Vec<bool> {
    let mut read = vec![false; graph.tensors.len()];
    for output in &graph.outputs {
        read[output.tensor] = true;
    }
    for (index, operator) in graph.operators.iter().enumerate().rev() {
        if !model.classes.merged[index] || operator.results.iter().any(|&result| read[result]) {
            for &operand in &operator.operands {
                read[operand] = true;
            }
        }
    }
    read
}

struct Emitter<'a> {
    graph: &'a Graph,
    model: &'a Model,
    /// By root of a class, its plan.
    from: Vec<Plan>,
    /// By root of a class, the number of its conversions.
    kind: Vec<usize>,
    /// By tensor, the placements that are there by now.
    there: Vec<Set>,
    read: Vec<bool>,
    program: Program,
    communication: f64,
}

impl Emitter<'_> {
    fn run(&mut self, assignment: &[usize]) {
        let (graph, model) = (self.graph, self.model);
        let mut kept = vec![0; graph.inputs.len()];
        for (index, input) in graph.inputs.iter().enumerate() {
            let variable = model.variable(Source::Input(index));
            let Variable::Input { placements, .. } = &model.variables[variable] else {
                continue;
            };
            kept[index] = placements[assignment[variable]];
            let tensor = &graph.tensors[input.tensor];
            let placement = vec![placement_at(tensor, kept[index])];
            self.program.instructions.push(Instruction::Input {
                tensor: tensor.name.clone(),
                placement,
            });
            self.gain(input.tensor, kept[index]);
        }
        for (index, operator) in graph.operators.iter().enumerate() {
            if model.classes.merged[index] {
                self.keep_unread_view(operator);
                continue;
            }
            let variable = model.variable(Source::Operator(index));
            let Variable::Operator { choices, .. } = &model.variables[variable] else {
                continue;
            };
            self.apply(operator, &operator.choices[choices[assignment[variable]]]);
        }
        let outputs: Vec<Instruction> = graph
            .outputs
            .iter()
            .zip(&model.outputs)
            .map(|(output, &ends)| {
                let tensor = output.tensor;
                let number = match output.kind {
                    OutputKind::Loss | OutputKind::InputGradient => 0,
                    OutputKind::Gradient | OutputKind::Buffer => {
                        let input = graph.inputs.iter().position(|input| Some(input.tensor) == output.of);
                        input.map_or(0, |input| kept[input])
                    }
                    OutputKind::Output => self.end(tensor, ends),
                };
                self.need(tensor, number);
                let tensor = &graph.tensors[tensor];
                let placement = vec![placement_at(tensor, number)];
                Instruction::Output {
                    name: output.name.clone(),
                    tensor: tensor.name.clone(),
                    placement,
                }
            })
            .collect();
        self.program.instructions.extend(outputs);
    }

    /// A view that nobody reads is made once, so that the program computes every operator.
    fn keep_unread_view(&mut self, operator: &Operator) {
        let result = operator.results[0];
        if self.read[result] {
            return;
        }
        let root = self.model.classes.root[result];
        let in_root = &self.model.classes.in_root[result];
        if let Some(number) = (0..in_root.len()).find(|&number| self.there[root] >> in_root[number] & 1 == 1) {
            self.need(result, number);
        }
    }

    /// Of the placements that the plan reaches, the one that an output is read in: the produced one if it may end so.
    fn end(&self, tensor: usize, ends: Set) -> usize {
        let root = self.model.classes.root[tensor];
        let reached = |number: usize| {
            let number = self.model.classes.in_root[tensor][number];
            (
                self.from[root][number].is_none() && self.there[root] >> number & 1 == 1,
                self.from[root][number].is_some(),
            )
        };
        let found = numbers(ends)
            .find(|&number| reached(number).0)
            .or_else(|| numbers(ends).find(|&number| reached(number).1));
        found.unwrap_or_else(|| unreachable!("the plan of an output reaches a placement that it may end in"))
    }

    /// Makes sure that a tensor is there in a placement.
    fn need(&mut self, tensor: usize, number: usize) {
        if self.there[tensor] >> number & 1 == 1 {
            return;
        }
        let (graph, model) = (self.graph, self.model);
        if let Some(view) = &model.classes.view[tensor] {
            self.need(view.source, view.from[number]);
            let operator = &graph.operators[view.operator];
            self.compute(operator, &operator.choices[view.choices[number]]);
            self.there[tensor] |= 1 << number;
        } else {
            let from = self.from[tensor][number];
            let Some(from) = from else {
                unreachable!("the plan of a class reaches what is read")
            };
            self.need(tensor, from);
            self.convert(tensor, from, number);
        }
    }

    /// Applies an operator by a choice, after what it needs.
    fn apply(&mut self, operator: &Operator, choice: &Choice) {
        let graph = self.graph;
        let number = |tensor: usize, placements| placement_number(&graph.tensors[tensor], placements);
        for (&tensor, placements) in operator.operands.iter().zip(&choice.inputs) {
            if let Some(number) = number(tensor, placements) {
                self.need(tensor, number);
            }
        }
        self.compute(operator, choice);
        for (&tensor, placements) in operator.results.iter().zip(&choice.outputs) {
            if let Some(number) = number(tensor, placements) {
                self.gain(tensor, number);
            }
        }
    }

    /// The root of a class is produced; if partial, it is reduced at once.
    fn gain(&mut self, tensor: usize, number: usize) {
        self.there[tensor] |= 1 << number;
        if placement_at(&self.graph.tensors[tensor], number) == Placement::Partial {
            for to in 0..self.from[tensor].len() {
                if self.from[tensor][to] == Some(number) {
                    self.convert(tensor, number, to);
                }
            }
        }
    }

    fn compute(&mut self, operator: &Operator, choice: &Choice) {
        let name = |&tensor: &usize| self.graph.tensors[tensor].name.clone();
        self.program.instructions.push(Instruction::Compute {
            operator: operator.name.clone(),
            target: operator.target.clone(),
            inputs: operator
                .operands
                .iter()
                .map(name)
                .zip(choice.inputs.iter().cloned())
                .collect(),
            outputs: operator
                .results
                .iter()
                .map(name)
                .zip(choice.outputs.iter().cloned())
                .collect(),
            axis: choice.axis.map(|axis| self.graph.axes[axis].name.clone()),
            composite: choice.composite.clone(),
        });
    }

    fn convert(&mut self, root: usize, from: usize, to: usize) {
        let tensor = &self.graph.tensors[root];
        let step = self.model.conversions[self.kind[root]].step(from, to);
        let Some(step) = step else {
            unreachable!("plans are made of steps that there are")
        };
        let (old, new) = (placement_at(tensor, from), placement_at(tensor, to));
        let axis = Conversion::axis(tensor, &[old], &[new]).map(|axis| self.graph.axes[axis].name.clone());
        self.communication += step.cost;
        self.there[root] |= 1 << to;
        self.program.instructions.push(Instruction::Convert {
            conversion: step.conversion,
            tensor: tensor.name.clone(),
            from: vec![old],
            to: vec![new],
            axis,
            implementation: step.implementation,
        });
    }
}
