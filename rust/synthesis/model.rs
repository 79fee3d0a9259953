//! From a graph to a weighted constraint problem: one variable per decision, one cost table per class.

use rustc_hash::FxHashMap;

use super::classes::{Classes, placement_at, placement_count};
use super::constraints::Domains;
use super::convert::{Conversions, Set};
use super::costs::Costs;
use super::crossing::{Made, Needs, Way};
use super::demands::{Demands, Party, Source, demands};
use super::held::{self, HeldPrices};
use super::phases::{Phases, Run};
use super::request::{Constraints, SynthesisError};
use super::solver::{Factor, Problem};
use super::tables::{Own, Shape, Tables};
use crate::graph::Graph;
use crate::placement::Placement;

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
        /// By label, the choice, and whether it runs twice.
        runs: Vec<Run>,
    },
    /// What of a class is made available to its readers, or kept.
    Class {
        /// The class's root, by index of the tensor.
        root: usize,
        /// What the labels stand for.
        own: Own,
    },
}

/// Which conversions a class has, and which prices of keeping its placements, by number among those of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// The conversions' number.
    pub conversions: usize,
    /// The prices' number.
    pub prices: usize,
}

/// How the model is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Encoding {
    /// Whether tensors that are one another's views share a class.
    pub merge_views: bool,
    /// Largest number of entries of a class's joint table.
    pub joint_entries: usize,
    /// No more sets of placements of a class are told apart, those of at most two excepted. All larger ones together are
    /// one more, as cheap as the cheapest: where a solution takes that, its program may cost more than the solution.
    pub sets: usize,
}

impl Default for Encoding {
    fn default() -> Self {
        Self {
            merge_views: true,
            joint_entries: 3_000,
            sets: 256,
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
    /// By class, its numbers among `conversions` and `prices`.
    pub(super) kinds: Vec<Kind>,
    pub(super) conversions: Vec<Conversions>,
    /// The prices of keeping each placement over the boundary, where there is one.
    pub(super) prices: Vec<Vec<f64>>,
    pub(super) phases: Phases,
    /// By output, the placements that it may end in.
    pub(super) outputs: Vec<Set>,
    /// How many sets of a class's placements are told apart.
    pub(super) sets: usize,
    sources: FxHashMap<Source, usize>,
}

impl Model {
    /// The model of a graph; where memory has prices, one of two phases.
    ///
    /// # Errors
    /// Constraints that leave nothing to choose, and graphs that the synthesis cannot take.
    pub fn new(
        graph: &Graph,
        constraints: &Constraints,
        costs: &impl Costs,
        memory: Option<&HeldPrices>,
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
        let phases = match memory {
            Some(memory) => Phases::two(graph, &classes, memory.segments()),
            None => Phases::one(graph),
        };
        let demands = demands(graph, &classes, &domains, &phases)?;
        let (kinds, conversions, prices) = conversions(graph, &demands, &domains, costs, memory);
        let mut model = Self {
            problem: Problem {
                domains: Vec::new(),
                factors: Vec::new(),
            },
            variables: Vec::new(),
            classes,
            demands,
            kinds,
            conversions,
            prices,
            phases,
            outputs: domains.outputs.clone(),
            sets: encoding.sets,
            sources: FxHashMap::default(),
        };
        model.build(graph, &domains, costs, memory, encoding);
        Ok(model)
    }

    /// The variable of a decision.
    pub(super) fn variable(&self, source: Source) -> usize {
        self.sources[&source]
    }

    /// The part of an assignment's cost that its choices cause, conversions and memory apart.
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
                Variable::Operator { operator, runs } => compute(costs, *operator, runs[label]),
                Variable::Class { .. } => 0.0,
            });
        decided.sum()
    }

    /// The placement that an assignment stores each input in.
    pub(super) fn stored(&self, graph: &Graph, assignment: &[usize]) -> Vec<Placement> {
        let inputs = graph.inputs.iter().enumerate().map(|(index, input)| {
            let variable = self.variable(Source::Input(index));
            let Variable::Input { placements, .. } = &self.variables[variable] else {
                unreachable!("an input's decision is its placement");
            };
            placement_at(&graph.tensors[input.tensor], placements[assignment[variable]])
        });
        inputs.collect()
    }

    /// How an assignment produces a class, what its readers demand of it, and how it gets over the boundary.
    pub(super) fn way(&mut self, class: usize, assignment: &[usize]) -> (Made, Needs, Way) {
        let demands = &self.demands[class];
        let label = |source| assignment[self.variable(source)];
        let producer = &demands.parties[0];
        let made = producer.produced.as_ref().map(|made| made[label(producer.source)]);
        let Some(made) = made else {
            unreachable!("the first party is the producer");
        };
        let parties = demands.parties.iter();
        let needs = parties.fold(demands.fixed, |needs, party| {
            needs | party.demanded[label(party.source)]
        });
        let kind = self.kinds[class];
        let crossing = demands.crossing(&self.prices[kind.prices], self.sets);
        let (way, ..) = crossing.cheapest(&mut self.conversions[kind.conversions], made, needs);
        (made, needs, way)
    }

    /// A variable in words, for errors.
    pub fn describe(&self, graph: &Graph, variable: usize) -> String {
        match &self.variables[variable] {
            Variable::Input { input, .. } => format!("the input \"{}\"", graph.inputs[*input].name),
            Variable::Operator { operator, .. } => {
                let operator = &graph.operators[*operator];
                format!("the operator \"{}\" ({})", operator.name, operator.target)
            }
            Variable::Class { root, .. } => format!("the readers of the tensor \"{}\"", graph.tensors[*root].name),
        }
    }

    fn build(
        &mut self,
        graph: &Graph,
        domains: &Domains,
        costs: &impl Costs,
        memory: Option<&HeldPrices>,
        encoding: Encoding,
    ) {
        let keep = |input: usize, placement| {
            costs.keep(input, placement) + memory.map_or(0.0, |memory| memory.stored(input, placement))
        };
        let inputs = domains.placements.iter().enumerate().map(|(input, placements)| {
            let tensor = &graph.tensors[graph.inputs[input].tensor];
            let prices = placements
                .iter()
                .map(|&number| keep(input, placement_at(tensor, number)))
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
            let runs = self.phases.runs(operator, choices);
            let prices = runs.iter().map(|&run| compute(costs, operator, run)).collect();
            (
                Source::Operator(operator),
                Variable::Operator { operator, runs },
                prices,
            )
        });
        let decisions: Vec<(Source, Variable, Vec<f64>)> = inputs.chain(operators).collect();
        let mut tables: FxHashMap<Shape, Tables> = FxHashMap::default();
        let mut class = 0;
        // By class, its shape and its own variables.
        let mut shapes: Vec<(Shape, Vec<usize>)> = Vec::new();
        for (source, variable, prices) in decisions {
            let index = self.add(variable, prices.len());
            self.sources.insert(source, index);
            self.factor(vec![index], &prices);
            // Classes stand in the order of their producers; a class's own variables follow its producer's.
            while self
                .demands
                .get(class)
                .is_some_and(|demands| demands.parties[0].source == source)
            {
                let shape = self.shape(class);
                let (conversions, prices) = (
                    &mut self.conversions[shape.kind.conversions],
                    &self.prices[shape.kind.prices],
                );
                let known = tables
                    .entry(shape.clone())
                    .or_insert_with_key(|shape| Tables::new(shape, conversions, prices, encoding));
                let root = self.demands[class].root;
                let own = known
                    .own
                    .iter()
                    .map(|own| self.add(Variable::Class { root, own: own.clone() }, own.labels()));
                shapes.push((shape, own.collect()));
                class += 1;
            }
        }
        for (class, (shape, own)) in shapes.iter().enumerate() {
            let (parties, _) = self.parties(class);
            let parties = parties.into_iter().map(|party| self.variable(party.source));
            let variables: Vec<usize> = parties.chain(own.iter().copied()).collect();
            for (scope, costs) in &tables[shape].factors {
                self.factor(scope.iter().map(|&place| variables[place]).collect(), costs);
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
    fn parties(&self, class: usize) -> (Vec<&Party>, Needs) {
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
            kind: self.kinds[class],
            parties: parties
                .into_iter()
                .map(|party| (party.produced.clone(), party.demanded.clone()))
                .collect(),
            fixed,
            ends: self.demands[class].ends.clone(),
            memory: self.demands[class].memory,
        }
    }
}

/// What the conversions of a class depend on: bytes, the axes' costs and whether they are forbidden, and summability.
type Key = (u64, Vec<(usize, bool, usize)>, bool, usize);

/// The cost of running an operator, once or twice.
fn compute(costs: &impl Costs, operator: usize, run: Run) -> f64 {
    let once = costs.compute(operator, run.choice);
    if run.again { 2.0 * once } else { once }
}

/// The conversions of every class and the prices of keeping it, shared between classes whose tensors are alike. Prices
/// differ by the stretch of the graph, too.
fn conversions(
    graph: &Graph,
    demands: &[Demands],
    domains: &Domains,
    costs: &impl Costs,
    memory: Option<&HeldPrices>,
) -> (Vec<Kind>, Vec<Conversions>, Vec<Vec<f64>>) {
    let mut known: FxHashMap<Key, usize> = FxHashMap::default();
    let mut known_prices: FxHashMap<(usize, usize), usize> = FxHashMap::default();
    let mut made = Vec::new();
    let mut prices = Vec::new();
    let kinds = demands.iter().map(|class| {
        let tensor = &graph.tensors[class.root];
        let axes = tensor.occurrences.iter().enumerate();
        let axes = axes
            .map(|(occurrence, &axis)| {
                let index = graph.index(class.root, occurrence);
                (costs.alike_axis(axis), domains.forbidden[axis], index)
            })
            .collect();
        let key = (tensor.bytes.to_bits(), axes, tensor.summable, costs.kind(class.root));
        let conversions = *known.entry(key).or_insert_with(|| {
            made.push(Conversions::new(class.root, tensor, &domains.forbidden, costs));
            made.len() - 1
        });
        let stretch = memory.map_or(0, |memory| memory.stretch(class.root));
        let prices = *known_prices.entry((conversions, stretch)).or_insert_with(|| {
            let count = placement_count(tensor);
            prices.push(memory.map_or(Vec::new(), |memory| held::prices(memory, class.root, count)));
            prices.len() - 1
        });
        Kind { conversions, prices }
    });
    let kinds = kinds.collect();
    (kinds, made, prices)
}
