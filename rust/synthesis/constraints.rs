//! Which choices and placements the constraints of a request leave.

use super::classes::{Classes, placement_at, placement_count, placement_number};
use super::convert::Set;
use super::request::{Constraints, SynthesisError};
use crate::graph::{Choice, Graph, Input, Output, OutputKind};
use crate::placement::Placement;

/// What is left to choose from.
#[derive(Clone, Debug, PartialEq)]
pub struct Domains {
    /// By axis, whether nothing may be sharded along it.
    pub forbidden: Vec<bool>,
    /// By input, the numbers of the placements that it may be kept in.
    pub placements: Vec<Vec<usize>>,
    /// By operator, the indices of its choices; empty for operators that only make views within a class.
    pub choices: Vec<Vec<usize>>,
    /// By output, the placements that it may end in, where it does not follow an input.
    pub outputs: Vec<Set>,
}

/// Whether an input, or an operator, by index, may have it.
type Allows<'a, T> = Box<dyn Fn(usize, T) -> bool + 'a>;

/// One constraint: its text for errors, and what it allows.
struct Rule<'a> {
    text: String,
    input: Allows<'a, Placement>,
    choice: Allows<'a, &'a Choice>,
}

impl Domains {
    /// The domains of a graph under constraints.
    ///
    /// # Errors
    /// A name that the graph does not have; a constraint that leaves an input no placement or an operator no choice.
    pub fn new(graph: &Graph, classes: &Classes, constraints: &Constraints) -> Result<Self, SynthesisError> {
        let forbidden = forbidden_axes(graph, constraints)?;
        let mut domains = Self {
            placements: graph.inputs.iter().map(|input| stored(graph, input)).collect(),
            choices: graph
                .operators
                .iter()
                .zip(&classes.merged)
                .map(|(operator, &merged)| (0..if merged { 0 } else { operator.choices.len() }).collect())
                .collect(),
            outputs: graph
                .outputs
                .iter()
                .map(|output| ends(graph, output, constraints))
                .collect::<Result<_, _>>()?,
            forbidden: forbidden.clone(),
        };
        if let Some(output) = constraints.outputs.keys().find(|name| !has_output(graph, name)) {
            return Err(SynthesisError::UnknownOutput { output: output.clone() });
        }
        domains.restrict(graph, &axes_rule(graph, constraints, &forbidden))?;
        if let Some(rule) = required_axis_rule(graph, constraints)? {
            domains.restrict(graph, &rule)?;
        }
        for (name, allowed) in &constraints.placements {
            domains.restrict(graph, &placements_rule(graph, classes, name, allowed)?)?;
        }
        Ok(domains)
    }

    fn restrict<'a>(&mut self, graph: &'a Graph, rule: &Rule<'a>) -> Result<(), SynthesisError> {
        for (index, placements) in self.placements.iter_mut().enumerate() {
            let tensor = &graph.tensors[graph.inputs[index].tensor];
            let before = placements.clone();
            placements.retain(|&number| (rule.input)(index, placement_at(tensor, number)));
            if placements.is_empty() {
                return Err(SynthesisError::NoPlacement {
                    constraint: rule.text.clone(),
                    tensor: tensor.name.clone(),
                    placements: join(before.iter().map(|&number| placement_at(tensor, number).to_string())),
                });
            }
        }
        for (index, choices) in self.choices.iter_mut().enumerate() {
            let operator = &graph.operators[index];
            let before = choices.clone();
            choices.retain(|&choice| (rule.choice)(index, &operator.choices[choice]));
            if choices.is_empty() && !before.is_empty() {
                return Err(SynthesisError::NoChoice {
                    constraint: rule.text.clone(),
                    operator: operator.name.clone(),
                    target: operator.target.clone(),
                    choices: join(before.iter().map(|&choice| describe(&operator.choices[choice]))),
                });
            }
        }
        Ok(())
    }
}

/// The placements that an input may be kept in: replicated, or, where it may be sharded, along any axis.
fn stored(graph: &Graph, input: &Input) -> Vec<usize> {
    if !graph.sharded(input) {
        return vec![0];
    }
    let tensor = &graph.tensors[input.tensor];
    let partial = |number: &usize| placement_at(tensor, *number) == Placement::Partial;
    (0..placement_count(tensor)).filter(|number| !partial(number)).collect()
}

fn has_output(graph: &Graph, name: &str) -> bool {
    let mut outputs = graph.outputs.iter();
    outputs.any(|output| output.kind == OutputKind::Output && output.of.is_none() && output.name == name)
}

/// The placements that an output may end in: the loss and gradients of inputs replicated, other outputs in any that is
/// not partial and that the constraints allow. Of those that follow an input, the constraints are on that.
fn ends(graph: &Graph, output: &Output, constraints: &Constraints) -> Result<Set, SynthesisError> {
    let tensor = &graph.tensors[output.tensor];
    let allowed = match output.kind {
        OutputKind::Output => constraints.outputs.get(&output.name),
        _ => return Ok(1),
    };
    let may = |placement: Placement| {
        placement != Placement::Partial && allowed.is_none_or(|allowed| allowed.contains(&placement))
    };
    let ends = (0..placement_count(tensor))
        .filter(|&number| may(placement_at(tensor, number)))
        .fold(0, |set, number| set | 1 << number);
    if ends == 0 {
        return Err(SynthesisError::NoPlacement {
            constraint: format!(
                "constraints.outputs of \"{}\" [{}]",
                output.name,
                join(allowed.into_iter().flatten().map(ToString::to_string))
            ),
            tensor: tensor.name.clone(),
            placements: join((0..placement_count(tensor)).map(|number| placement_at(tensor, number).to_string())),
        });
    }
    Ok(ends)
}

fn axis_index(graph: &Graph, field: &'static str, name: &str) -> Result<usize, SynthesisError> {
    graph
        .axes
        .iter()
        .position(|axis| axis.name == name)
        .ok_or_else(|| SynthesisError::UnknownAxis {
            field,
            axis: name.to_owned(),
            known: join(graph.axes.iter().map(|axis| axis.name.clone())),
        })
}

/// By axis, whether it is forbidden. A run of axes is allowed with all of its parts, and forbidden with any of them; a
/// split class with its axis.
fn forbidden_axes(graph: &Graph, constraints: &Constraints) -> Result<Vec<bool>, SynthesisError> {
    let mut forbidden = vec![constraints.allowed_axes.is_some(); graph.axes.len()];
    for name in constraints.allowed_axes.iter().flatten() {
        forbidden[axis_index(graph, "constraints.allowed_axes", name)?] = false;
    }
    for (index, axis) in graph.axes.iter().enumerate() {
        if !axis.parts.is_empty() && axis.parts.iter().all(|&part| !forbidden[part]) {
            forbidden[index] = false;
        }
    }
    let mut named = vec![false; graph.axes.len()];
    for name in &constraints.forbidden_axes {
        named[axis_index(graph, "constraints.forbidden_axes", name)?] = true;
    }
    for (index, axis) in graph.axes.iter().enumerate() {
        forbidden[index] |= named[index] || axis.parts.iter().any(|&part| named[part]);
    }
    for (index, axis) in graph.axes.iter().enumerate() {
        if let Some(of) = axis.of {
            forbidden[index] = forbidden[of] || named[index];
        }
    }
    Ok(forbidden)
}

/// Nothing is sharded along a forbidden axis.
fn axes_rule<'a>(graph: &'a Graph, constraints: &Constraints, forbidden: &'a [bool]) -> Rule<'a> {
    let allowed = |tensor: usize, placement: Placement| match placement {
        Placement::Shard(occurrence) => graph.tensors[tensor]
            .occurrences
            .get(occurrence as usize)
            .is_none_or(|&axis| !forbidden[axis]),
        Placement::Replicate | Placement::Partial => true,
    };
    let text = match &constraints.allowed_axes {
        Some(names) => format!("constraints.allowed_axes [{}]", join(names.iter().cloned())),
        None => format!(
            "constraints.forbidden_axes [{}]",
            join(constraints.forbidden_axes.iter().cloned())
        ),
    };
    Rule {
        text,
        input: Box::new(move |input, placement| allowed(graph.inputs[input].tensor, placement)),
        choice: Box::new(move |index, choice| {
            let operator = &graph.operators[index];
            let read = operator.operands.iter().zip(&choice.inputs);
            let written = operator.results.iter().zip(&choice.outputs);
            choice.axis.is_none_or(|axis| !forbidden[axis])
                && read
                    .chain(written)
                    .all(|(&tensor, placements)| placements.iter().all(|&it| allowed(tensor, it)))
        }),
    }
}

/// Operators that can share their work along the required axis do so. Layout operators, which do no work, are free.
fn required_axis_rule<'a>(graph: &'a Graph, constraints: &Constraints) -> Result<Option<Rule<'a>>, SynthesisError> {
    let Some(name) = &constraints.require_axis else {
        return Ok(None);
    };
    let axis = axis_index(graph, "constraints.require_axis", name)?;
    let along = move |choice: &Choice| choice.axis.is_some_and(|own| graph.base(own) == axis);
    let can_share = move |index: usize| {
        let operator = &graph.operators[index];
        !operator.layout && operator.choices.iter().any(along)
    };
    Ok(Some(Rule {
        text: format!("constraints.require_axis \"{name}\""),
        input: Box::new(|_, _| true),
        choice: Box::new(move |index, choice| along(choice) || !can_share(index)),
    }))
}

/// A tensor (or the tensor that it is a view of) is produced in one of the given placements.
fn placements_rule<'a>(
    graph: &'a Graph,
    classes: &'a Classes,
    name: &str,
    allowed: &[Placement],
) -> Result<Rule<'a>, SynthesisError> {
    let Some(tensor) = graph.tensors.iter().position(|tensor| tensor.name == name) else {
        return Err(SynthesisError::UnknownTensor {
            tensor: name.to_owned(),
        });
    };
    let root = classes.root[tensor];
    let in_root = |placement: Placement| {
        let number = placement_number(&graph.tensors[tensor], &vec![placement])?;
        Some(placement_at(&graph.tensors[root], classes.in_root[tensor][number]))
    };
    let roots: Vec<Placement> = allowed.iter().filter_map(|&placement| in_root(placement)).collect();
    let list = join(allowed.iter().map(ToString::to_string));
    let choice_roots = roots.clone();
    Ok(Rule {
        text: format!("constraints.placements of \"{name}\" [{list}]"),
        input: Box::new(move |input, placement| graph.inputs[input].tensor != root || roots.contains(&placement)),
        choice: Box::new(move |index, choice| {
            let mut results = graph.operators[index].results.iter().zip(&choice.outputs);
            results.all(|(&result, placements)| result != root || placements.iter().all(|it| choice_roots.contains(it)))
        }),
    })
}

fn describe(choice: &Choice) -> String {
    let side = |placements: &[Vec<Placement>]| {
        join(
            placements
                .iter()
                .map(|levels| levels.iter().map(ToString::to_string).collect::<String>()),
        )
    };
    format!("{} -> {}", side(&choice.inputs), side(&choice.outputs))
}

fn join(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}
