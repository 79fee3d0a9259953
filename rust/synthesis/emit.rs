//! From a solution of the model back to a program.
//!
//! Operators are applied in the order of the graph. Partial tensors are reduced right after they are produced, all other
//! conversions and all views wait for their first reader, so that little lies in memory for long.
//!
//! Where memory is priced, the backward's operators wait until those of the forward are done. At the boundary what is to
//! be kept is completed, and freed is what is not kept but made again later: each again right before its first reader.

use super::classes::{placement_at, placement_number};
use super::convert::{Set, numbers};
use super::demands::Source;
use super::model::{Model, Variable};
use super::phases::Run;
use super::routes::{Plan, Route, route};
use crate::graph::{Choice, Graph, Operator, OutputKind};
use crate::placement::Placement;
use crate::program::{Conversion, Instruction, Program};

/// A program, and what it costs beside its operators.
#[derive(Debug)]
pub struct Emitted {
    /// The program.
    pub program: Program,
    /// The sum of the costs of its conversions.
    pub communication: f64,
    /// By input, the placement that it is stored in.
    pub stored: Vec<Placement>,
    /// The price of what is kept from the forward to the backward.
    pub keeping: f64,
    /// What is kept at a price: tensors by index, and their placements.
    pub kept: Vec<(usize, Placement)>,
}

/// The program that a solution stands for.
///
/// `assignment` has one label per variable of the model; its cost must be finite.
pub fn emit(graph: &Graph, model: &mut Model, assignment: &[usize]) -> Emitted {
    let routes: Vec<Route> = (0..model.demands.len())
        .map(|class| route(model, class, assignment))
        .collect();
    let mut emitter = Emitter::new(graph, model, assignment, &routes);
    emitter.run();
    let mut emitted = Emitted {
        program: emitter.program,
        communication: emitter.communication,
        stored: emitter.stored,
        keeping: routes.iter().map(|route| route.price).sum(),
        kept: Vec::new(),
    };
    for (demands, route) in model.demands.iter().zip(&routes) {
        let placement = |number| placement_at(&graph.tensors[demands.root], number);
        let kept = numbers(route.priced).map(|number| (demands.root, placement(number)));
        emitted.kept.extend(kept);
    }
    emitted
}

fn of_backward(kind: OutputKind) -> bool {
    matches!(kind, OutputKind::Gradient | OutputKind::InputGradient)
}

/// By tensor, whether an operator or an output reads it; views that nobody reads are made, and read, too.
fn read_tensors(graph: &Graph) -> Vec<bool> {
    let mut read = vec![false; graph.tensors.len()];
    let operands = graph.operators.iter().flat_map(|operator| &operator.operands);
    for &tensor in operands.chain(graph.outputs.iter().map(|output| &output.tensor)) {
        read[tensor] = true;
    }
    read
}

struct Emitter<'a> {
    graph: &'a Graph,
    model: &'a Model,
    assignment: &'a [usize],
    /// By input, the placement that it is stored in.
    stored: Vec<Placement>,
    /// By class, how its placements come to be there.
    routes: &'a [Route],
    /// By root of a class, its number.
    class: Vec<usize>,
    /// By tensor, the operator that makes it.
    maker: Vec<usize>,
    /// By tensor, the placements that are there by now.
    there: Vec<Set>,
    /// By tensor, the placements that were there before the boundary and no longer are.
    gone: Vec<Set>,
    /// Those of them that are freed at the boundary.
    freed: Vec<Set>,
    read: Vec<bool>,
    behind: bool,
    program: Program,
    communication: f64,
}

impl<'a> Emitter<'a> {
    fn new(graph: &'a Graph, model: &'a Model, assignment: &'a [usize], routes: &'a [Route]) -> Self {
        let tensors = graph.tensors.len();
        let mut emitter = Self {
            graph,
            model,
            assignment,
            stored: model.stored(graph, assignment),
            routes,
            class: vec![0; tensors],
            maker: vec![0; tensors],
            there: vec![0; tensors],
            gone: vec![0; tensors],
            freed: vec![0; tensors],
            read: read_tensors(graph),
            behind: false,
            program: Program::default(),
            communication: 0.0,
        };
        for (class, demands) in model.demands.iter().enumerate() {
            emitter.class[demands.root] = class;
        }
        for (index, operator) in graph.operators.iter().enumerate() {
            for &result in &operator.results {
                emitter.maker[result] = index;
            }
        }
        emitter
    }

    fn run(&mut self) {
        let graph = self.graph;
        for (index, input) in graph.inputs.iter().enumerate() {
            self.program.instructions.push(Instruction::Input {
                tensor: graph.tensors[input.tensor].name.clone(),
                placement: vec![self.stored[index]],
            });
            self.gain(input.tensor, self.number_stored(index));
        }
        self.operators();
        if self.model.phases.boundary {
            self.outputs(|kind| !of_backward(kind));
            self.cross();
            let boundary = self.program.instructions.len();
            self.operators();
            self.outputs(of_backward);
            let frees = self.frees();
            self.program.instructions.splice(boundary..boundary, frees);
        } else {
            self.outputs(|_| true);
        }
    }

    /// The operators of the phase.
    fn operators(&mut self) {
        let (graph, model) = (self.graph, self.model);
        for (index, operator) in graph.operators.iter().enumerate() {
            if model.classes.merged[index] {
                let root = model.classes.root[operator.results[0]];
                if model.phases.boundary && model.demands[self.class[root]].before == self.behind {
                    continue;
                }
                self.keep_unread_view(operator);
            } else if model.phases.backward[index] == self.behind {
                self.apply(operator, &operator.choices[self.decided(index).choice]);
            }
        }
    }

    /// How an operator is run.
    fn decided(&self, operator: usize) -> Run {
        let variable = self.model.variable(Source::Operator(operator));
        let Variable::Operator { runs, .. } = &self.model.variables[variable] else {
            unreachable!("an operator's decision is how it is run");
        };
        runs[self.assignment[variable]]
    }

    /// The outputs of these kinds.
    fn outputs(&mut self, which: impl Fn(OutputKind) -> bool) {
        let (graph, model) = (self.graph, self.model);
        let mut instructions = Vec::new();
        for (output, &ends) in graph
            .outputs
            .iter()
            .zip(&model.outputs)
            .filter(|(output, _)| which(output.kind))
        {
            let tensor = output.tensor;
            let number = match output.kind {
                OutputKind::Loss | OutputKind::InputGradient => 0,
                OutputKind::Output if output.of.is_none() => self.end(tensor, ends),
                OutputKind::Output | OutputKind::Gradient | OutputKind::Buffer => {
                    let input = graph.inputs.iter().position(|input| Some(input.tensor) == output.of);
                    self.number_stored(
                        input.unwrap_or_else(|| unreachable!("demands are made of what follows an input")),
                    )
                }
            };
            self.need(tensor, number);
            let tensor = &graph.tensors[tensor];
            instructions.push(Instruction::Output {
                name: output.name.clone(),
                tensor: tensor.name.clone(),
                placement: vec![placement_at(tensor, number)],
            });
        }
        self.program.instructions.extend(instructions);
    }

    /// The number of the placement that an input (by index) is stored in.
    fn number_stored(&self, input: usize) -> usize {
        let tensor = &self.graph.tensors[self.graph.inputs[input].tensor];
        placement_number(tensor, &vec![self.stored[input]]).unwrap_or_else(|| unreachable!("a placement of the input"))
    }

    /// Completes what is kept and forgets everything else.
    fn cross(&mut self) {
        let model = self.model;
        let before = self.there.clone();
        for (demands, route) in model.demands.iter().zip(self.routes) {
            for number in numbers(route.kept) {
                self.need(demands.root, number);
            }
        }
        for (tensor, before) in before.into_iter().enumerate() {
            let there = self.there[tensor];
            let kept = self.routes[self.class[model.classes.root[tensor]]].stays;
            let stays = |&number: &usize| kept >> model.classes.in_root[tensor][number] & 1 == 1;
            self.there[tensor] = numbers(there).filter(stays).fold(0, |set, number| set | 1 << number);
            self.gone[tensor] = there & !self.there[tensor];
            // What is kept in another placement only now is freed as well: its memory must not be held in its stead.
            self.freed[tensor] = if before == there { 0 } else { self.gone[tensor] };
        }
        self.behind = true;
    }

    /// Frees what is gone and made again, or kept otherwise.
    fn frees(&self) -> Vec<Instruction> {
        let mut frees = Vec::new();
        for (tensor, &freed) in self.graph.tensors.iter().zip(&self.freed) {
            frees.extend(numbers(freed).map(|number| Instruction::Free {
                tensor: tensor.name.clone(),
                placement: vec![placement_at(tensor, number)],
            }));
        }
        frees
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
                self.from(root)[number].is_none() && self.there[root] >> number & 1 == 1,
                self.from(root)[number].is_some(),
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
            self.add(tensor, number);
        } else {
            match self.from(tensor)[number] {
                Some(from) => {
                    self.need(tensor, from);
                    // What is made again and partial has been reduced at once.
                    if self.there[tensor] >> number & 1 == 0 {
                        self.convert(tensor, from, number);
                    }
                }
                None => self.make_again(tensor),
            }
        }
    }

    /// By placement of a class's root, the one that it is converted from in this phase.
    fn from(&self, root: usize) -> &'a Plan {
        let route = &self.routes[self.class[root]];
        if self.behind {
            route.after.as_ref().unwrap_or(&route.before)
        } else {
            &route.before
        }
    }

    /// Runs the operator that makes a tensor once more.
    fn make_again(&mut self, tensor: usize) {
        let operator = self.maker[tensor];
        let run = self.decided(operator);
        assert!(self.behind && run.again, "the plan of a class reaches what is read");
        let operator = &self.graph.operators[operator];
        self.apply(operator, &operator.choices[run.choice]);
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
        self.add(tensor, number);
        if placement_at(&self.graph.tensors[tensor], number) == Placement::Partial {
            for (to, &from) in self.from(tensor).iter().enumerate() {
                if from == Some(number) {
                    self.convert(tensor, number, to);
                }
            }
        }
    }

    fn add(&mut self, tensor: usize, number: usize) {
        self.there[tensor] |= 1 << number;
        self.freed[tensor] |= self.gone[tensor] & 1 << number;
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
        let step = self.model.conversions[self.model.kinds[self.class[root]].conversions].step(from, to);
        let Some(step) = step else {
            unreachable!("plans are made of steps that there are")
        };
        let (old, new) = (placement_at(tensor, from), placement_at(tensor, to));
        let axis = Conversion::axis(tensor, &[old], &[new]).map(|axis| self.graph.axes[axis].name.clone());
        self.communication += step.cost;
        self.add(root, to);
        self.program.instructions.push(Instruction::Convert {
            conversion: step.conversion,
            tensor: tensor.name.clone(),
            from: vec![old],
            to: vec![new],
            axis,
            implementation: step.implementation,
            bucket: None,
        });
    }
}
