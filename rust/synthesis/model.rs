//! From a graph to a weighted constraint problem: one variable per decision, one cost table per class.

use rustc_hash::FxHashMap;

use super::classes::{Classes, placement_at, placement_count};
use super::constraints::Domains;
use super::convert::{Conversions, Set};
use super::costs::Costs;
use super::demands::{Demands, Party, Source, demands};
use super::request::{Constraints, SynthesisError};
use super::solver::{Factor, Problem};
use super::tables::{Shape, Tables};
use crate::graph::Graph;

/// What a variable of the problem decides.
#[derive(Clone, Debug, PartialEq)]
pub enum Variable {
    /// The placement that an input is kept in.
    Input {
        /// The input, by index.
        input: usize,
        /// By label, the number of the placement.
        placements: Vec<usize>,
    },
    /// The choice that an operator is run by.
    Operator {
        /// The operator, by index.
        operator: usize,
        /// By label, the index of the choice.
        choices: Vec<usize>,
    },
    /// The placements of a class that are made available to its readers.
    Available {
        /// The class's root, by index of the tensor.
        root: usize,
        /// By label, the set.
        sets: Vec<Set>,
    },
}

/// How the model is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Encoding {
    /// Whether tensors that are one another's views share a class.
    pub merge_views: bool,
    /// Largest number of entries of a class's joint table.
    pub joint_entries: usize,
}

impl Default for Encoding {
    fn default() -> Self {
        Self {
            merge_views: true,
            joint_entries: 3_000,
        }
    }
}

/// A graph as a weighted constraint problem.
#[derive(Debug)]
pub struct Model {
    /// The problem. Variables stand in program order.
    pub problem: Problem,
    /// What the problem's variables decide.
    pub variables: Vec<Variable>,
    /// The classes of tensors.
    pub classes: Classes,
    pub(super) demands: Vec<Demands>,
    /// By class, its number among `conversions`.
    pub(super) kinds: Vec<usize>,
    pub(super) conversions: Vec<Conversions>,
    /// By class, its availability variable.
    pub(super) available: Vec<Option<usize>>,
    /// By output, the placements that it may end in.
    pub(super) outputs: Vec<Set>,
    sources: FxHashMap<Source, usize>,
}

impl Model {
    /// The model of a graph.
    ///
    /// # Errors
    /// Constraints that leave nothing to choose, and graphs that the synthesis cannot take.
    pub fn new(
        graph: &Graph,
        constraints: &Constraints,
        costs: &impl Costs,
        encoding: Encoding,
    ) -> Result<Self, SynthesisError> {
        if let Some(tensor) = graph
            .tensors
            .iter()
            .find(|tensor| placement_count(tensor) > Set::BITS as usize)
        {
            let axes = tensor.occurrences.len();
            return Err(SynthesisError::Graph(format!(
                "the tensor \"{}\" has {axes} axes; up to 62 work",
                tensor.name
            )));
        }
        let classes = Classes::new(graph, encoding.merge_views);
        let domains = Domains::new(graph, &classes, constraints)?;
        let demands = demands(graph, &classes, &domains)?;
        let (kinds, conversions) = conversions(graph, &demands, &domains, costs);
        let mut model = Self {
            problem: Problem {
                domains: Vec::new(),
                factors: Vec::new(),
            },
            variables: Vec::new(),
            available: vec![None; demands.len()],
            classes,
            demands,
            kinds,
            conversions,
            outputs: domains.outputs.clone(),
            sources: FxHashMap::default(),
        };
        model.build(graph, &domains, costs, encoding);
        Ok(model)
    }

    /// The variable of a decision.
    pub(super) fn variable(&self, source: Source) -> usize {
        self.sources[&source]
    }

    /// The part of an assignment's cost that its choices cause, conversions apart.
    pub(super) fn computation(&self, graph: &Graph, costs: &impl Costs, assignment: &[usize]) -> f64 {
        let decided = self
            .variables
            .iter()
            .zip(assignment)
            .map(|(variable, &label)| match variable {
                Variable::Input { input, placements } => {
                    let tensor = &graph.tensors[graph.inputs[*input].tensor];
                    costs.keep(*input, placement_at(tensor, placements[label]))
                }
                Variable::Operator { operator, choices } => costs.compute(*operator, choices[label]),
                Variable::Available { .. } => 0.0,
            });
        decided.sum()
    }

    /// A variable in words, for errors.
    pub fn describe(&self, graph: &Graph, variable: usize) -> String {
        match &self.variables[variable] {
            Variable::Input { input, .. } => format!("the input \"{}\"", graph.inputs[*input].name),
            Variable::Operator { operator, .. } => {
                let operator = &graph.operators[*operator];
                format!("the operator \"{}\" ({})", operator.name, operator.target)
            }
            Variable::Available { root, .. } => format!("the readers of the tensor \"{}\"", graph.tensors[*root].name),
        }
    }

    fn build(&mut self, graph: &Graph, domains: &Domains, costs: &impl Costs, encoding: Encoding) {
        let inputs = domains.placements.iter().enumerate().map(|(input, placements)| {
            let tensor = &graph.tensors[graph.inputs[input].tensor];
            let prices = placements
                .iter()
                .map(|&number| costs.keep(input, placement_at(tensor, number)))
                .collect();
            (
                Source::Input(input),
                Variable::Input {
                    input,
                    placements: placements.clone(),
                },
                prices,
            )
        });
        let operators = domains
            .choices
            .iter()
            .enumerate()
            .filter(|(operator, _)| !self.classes.merged[*operator]);
        let operators = operators.map(|(operator, choices)| {
            let prices = choices.iter().map(|&choice| costs.compute(operator, choice)).collect();
            (
                Source::Operator(operator),
                Variable::Operator {
                    operator,
                    choices: choices.clone(),
                },
                prices,
            )
        });
        let decisions: Vec<(Source, Variable, Vec<f64>)> = inputs.chain(operators).collect();
        let mut tables: FxHashMap<Shape, Tables> = FxHashMap::default();
        let mut class = 0;
        let mut shapes = Vec::new();
        for (source, variable, prices) in decisions {
            let index = self.add(variable, prices.len());
            self.sources.insert(source, index);
            self.factor(vec![index], &prices);
            // Classes stand in the order of their producers; an availability variable follows its producer's.
            while self
                .demands
                .get(class)
                .is_some_and(|demands| demands.parties[0].source == source)
            {
                let shape = self.shape(class);
                let conversions = &mut self.conversions[self.kinds[class]];
                let known = tables
                    .entry(shape.clone())
                    .or_insert_with_key(|shape| Tables::new(shape, conversions, encoding.joint_entries));
                if let Tables::Available { sets, .. } = known {
                    let root = self.demands[class].root;
                    let sets = sets.clone();
                    let labels = sets.len();
                    self.available[class] = Some(self.add(Variable::Available { root, sets }, labels));
                }
                shapes.push(shape);
                class += 1;
            }
        }
        for (class, shape) in shapes.iter().enumerate() {
            let (parties, _) = self.parties(class);
            let scope: Vec<usize> = parties.into_iter().map(|party| self.variable(party.source)).collect();
            match (&tables[shape], self.available[class]) {
                (Tables::Available { pairs, .. }, Some(available)) => {
                    for (&variable, costs) in scope.iter().zip(pairs) {
                        self.factor(vec![variable, available], costs);
                    }
                }
                (Tables::Available { .. }, None) => unreachable!("the variable was added with the tables"),
                (Tables::Joint(costs), _) => self.factor(scope, costs),
            }
        }
    }

    fn add(&mut self, variable: Variable, labels: usize) -> usize {
        self.variables.push(variable);
        self.problem.domains.push(labels);
        self.variables.len() - 1
    }

    fn factor(&mut self, scope: Vec<usize>, costs: &[f64]) {
        if costs.iter().any(|&cost| cost != 0.0) {
            self.problem.factors.push(Factor {
                scope,
                costs: costs.to_vec(),
            });
        }
    }

    /// The parties whose decisions matter to a class, in the order of their variables (which is not program order: a
    /// parameter reads the class of its gradient), and what the others demand whatever they decide.
    fn parties(&self, class: usize) -> (Vec<&Party>, Set) {
        let parties = self.demands[class].parties.iter();
        let (mut matter, others): (Vec<&Party>, Vec<&Party>) = parties
            .partition(|party| party.produced.is_some() || party.demanded.iter().any(|&set| set != party.demanded[0]));
        matter.sort_by_key(|party| party.source);
        (
            matter,
            others
                .iter()
                .fold(self.demands[class].fixed, |fixed, party| fixed | party.demanded[0]),
        )
    }

    fn shape(&self, class: usize) -> Shape {
        let (parties, fixed) = self.parties(class);
        Shape {
            conversions: self.kinds[class],
            parties: parties
                .into_iter()
                .map(|party| (party.produced.clone(), party.demanded.clone()))
                .collect(),
            fixed,
            ends: self.demands[class].ends.clone(),
        }
    }
}

/// What the conversions of a class depend on: bytes, the axes' costs and whether they are forbidden, and summability.
type Key = (u64, Vec<(usize, bool)>, bool);

/// The conversions of every class, shared between classes whose tensors are alike.
fn conversions(
    graph: &Graph,
    demands: &[Demands],
    domains: &Domains,
    costs: &impl Costs,
) -> (Vec<usize>, Vec<Conversions>) {
    let mut known: FxHashMap<Key, usize> = FxHashMap::default();
    let mut conversions = Vec::new();
    let kinds = demands.iter().map(|class| {
        let tensor = &graph.tensors[class.root];
        let axes = tensor.occurrences.iter();
        let axes = axes
            .map(|&axis| (costs.alike_axis(axis), domains.forbidden[axis]))
            .collect();
        let key = (tensor.bytes.to_bits(), axes, tensor.summable);
        let mut make = || {
            conversions.push(Conversions::new(class.root, tensor, &domains.forbidden, costs));
            conversions.len() - 1
        };
        if costs.differs_by_tensor() {
            make()
        } else {
            *known.entry(key).or_insert_with(make)
        }
    });
    let kinds = kinds.collect();
    (kinds, conversions)
}
