//! Who produces the tensors of a class, and which placements its readers demand, label by label.

use super::classes::{Classes, placement_at, placement_number};
use super::constraints::Domains;
use super::convert::{Set, numbers};
use super::crossing::{Crossing, Made, Memory, Needs};
use super::phases::Phases;
use super::request::SynthesisError;
use crate::graph::{Choice, Graph, Operator, Output, OutputKind, Tensor};
use crate::placement::Placements;

/// What a decision is about: an input's placement, or an operator's choice. Both by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// An input of the graph.
    Input(usize),
    /// An operator that is not merged into a class.
    Operator(usize),
}

/// What one decision means for a class. Placements are numbered as those of the class's root.
#[derive(Clone, Debug, PartialEq)]
pub struct Party {
    /// The decision.
    pub source: Source,
    /// Of the producer: by label, what is produced.
    pub produced: Option<Vec<Made>>,
    /// By label, the placements that are demanded.
    pub demanded: Vec<Needs>,
}

/// All that is demanded of a class.
#[derive(Clone, Debug, PartialEq)]
pub struct Demands {
    /// The class's root.
    pub root: usize,
    /// The producer first, then the distinct readers in program order.
    pub parties: Vec<Party>,
    /// Placements that are demanded whatever is decided.
    pub fixed: Needs,
    /// Sets of placements, one of each of which is demanded in the phase of the producer.
    pub ends: Vec<Set>,
    /// Whose memory the class is in.
    pub memory: Memory,
    /// Whether it is produced before the boundary between two phases.
    pub before: bool,
}

/// The demands of every class, in the order in which their roots are produced: inputs, then operators.
///
/// # Errors
/// [`SynthesisError::Graph`] where a choice or an output does not fit its tensors.
pub fn demands(
    graph: &Graph,
    classes: &Classes,
    domains: &Domains,
    phases: &Phases,
) -> Result<Vec<Demands>, SynthesisError> {
    let mut builder = Builder {
        graph,
        classes,
        domains,
        phases,
        demands: Vec::new(),
        position: vec![None; graph.tensors.len()],
    };
    for (index, input) in graph.inputs.iter().enumerate() {
        let stored = domains.placements[index].iter();
        let stored = stored
            .map(|&placement| Made {
                placement,
                again: false,
            })
            .collect();
        builder.produce(input.tensor, Source::Input(index), stored, Memory::Stored)?;
    }
    for (index, operator) in graph.operators.iter().enumerate() {
        if !classes.merged[index] {
            builder.run(index, operator)?;
        }
    }
    for (output, &ends) in graph.outputs.iter().zip(&domains.outputs) {
        let tensor = output.tensor;
        match output.kind {
            OutputKind::Loss | OutputKind::InputGradient => {
                let class = builder.class(tensor)?;
                let needs = class.needs(
                    1 << classes.in_root[tensor][0],
                    output.kind == OutputKind::InputGradient,
                    false,
                );
                class.fixed = class.fixed | needs;
            }
            OutputKind::Output if output.of.is_none() => builder.end(tensor, ends)?,
            OutputKind::Output | OutputKind::Gradient | OutputKind::Buffer => builder.follow(output)?,
        }
        if matches!(output.kind, OutputKind::Loss | OutputKind::Output | OutputKind::Buffer) {
            let class = builder.class(tensor)?;
            if class.memory != Memory::Stored {
                class.memory = Memory::Held;
            }
        }
    }
    Ok(builder.demands)
}

impl Demands {
    /// What the costs of the class depend on, by the prices of keeping its placements, with at most so many sets of these.
    pub fn crossing<'a>(&'a self, prices: &'a [f64], sets: usize) -> Crossing<'a> {
        Crossing {
            ends: &self.ends,
            memory: self.memory,
            prices,
            sets,
        }
    }

    /// What a reader needs that runs in the backward, or, if not, runs again there.
    fn needs(&self, set: Set, backward: bool, again: bool) -> Needs {
        let later = self.before && (backward || again);
        Needs {
            now: if later && !again { 0 } else { set },
            later: if later { set } else { 0 },
        }
    }
}

struct Builder<'a> {
    graph: &'a Graph,
    classes: &'a Classes,
    domains: &'a Domains,
    phases: &'a Phases,
    demands: Vec<Demands>,
    /// By root, its place in `demands`.
    position: Vec<Option<usize>>,
}

impl Builder<'_> {
    fn class(&mut self, tensor: usize) -> Result<&mut Demands, SynthesisError> {
        match self.position[self.classes.root[tensor]] {
            Some(position) => Ok(&mut self.demands[position]),
            None => Err(SynthesisError::Graph(format!(
                "the tensor \"{}\" is read before anything produces it",
                self.graph.tensors[tensor].name
            ))),
        }
    }

    fn produce(
        &mut self,
        tensor: usize,
        source: Source,
        produced: Vec<Made>,
        memory: Memory,
    ) -> Result<(), SynthesisError> {
        let name = &self.graph.tensors[tensor].name;
        if self.position[tensor].is_some() || self.classes.root[tensor] != tensor {
            return Err(SynthesisError::Graph(format!(
                "the tensor \"{name}\" is produced twice"
            )));
        }
        self.position[tensor] = Some(self.demands.len());
        let demanded = vec![Needs::default(); produced.len()];
        let backward = match source {
            Source::Input(_) => false,
            Source::Operator(operator) => self.phases.backward[operator],
        };
        let parties = vec![Party {
            source,
            produced: Some(produced),
            demanded,
        }];
        self.demands.push(Demands {
            root: tensor,
            parties,
            fixed: Needs::default(),
            ends: Vec::new(),
            memory,
            before: self.phases.boundary && !backward,
        });
        Ok(())
    }

    /// Adds what an operator reads and produces.
    fn run(&mut self, index: usize, operator: &Operator) -> Result<(), SynthesisError> {
        let runs = self.phases.runs(index, &self.domains.choices[index]);
        let graph = self.graph;
        // By label, the number of the placement that a choice names for a tensor.
        let numbers = |tensor, named: &dyn Fn(&Choice) -> Option<&Placements>| {
            let numbers = runs.iter().map(|run| {
                let placements = named(&operator.choices[run.choice]);
                number(graph, operator, run.choice, tensor, placements)
            });
            numbers.collect::<Result<Vec<_>, _>>()
        };
        let backward = self.phases.backward[index];
        for (place, &tensor) in operator.operands.iter().enumerate() {
            let numbers = numbers(tensor, &|choice| choice.inputs.get(place))?;
            let labels = numbers.into_iter().zip(runs.iter().map(|run| (backward, run.again)));
            self.demand(Source::Operator(index), tensor, labels)?;
        }
        let memory = if operator.layout { Memory::Lent } else { Memory::Own };
        for (place, &tensor) in operator.results.iter().enumerate() {
            let numbers = numbers(tensor, &|choice| choice.outputs.get(place))?;
            let made = numbers.into_iter().zip(&runs);
            let made = made
                .map(|(placement, run)| Made {
                    placement,
                    again: run.again,
                })
                .collect();
            self.produce(tensor, Source::Operator(index), made, memory)?;
        }
        Ok(())
    }

    /// By label, a decision demands the tensor in the placement with this number: whether in the backward, and whether
    /// in both phases.
    fn demand(
        &mut self,
        source: Source,
        tensor: usize,
        labels: impl ExactSizeIterator<Item = (usize, (bool, bool))>,
    ) -> Result<(), SynthesisError> {
        let in_root = &self.classes.in_root[tensor];
        let class = self.class(tensor)?;
        // Readers come in program order, so a reader that is there already is the last one, or the producer.
        let place = class
            .parties
            .iter()
            .rposition(|party| party.source == source)
            .unwrap_or_else(|| {
                class.parties.push(Party {
                    source,
                    produced: None,
                    demanded: vec![Needs::default(); labels.len()],
                });
                class.parties.len() - 1
            });
        for (label, (number, (backward, again))) in labels.enumerate() {
            let needs = class.needs(1 << in_root[number], backward, again);
            let demanded = &mut class.parties[place].demanded[label];
            *demanded = *demanded | needs;
        }
        Ok(())
    }

    /// An output ends in one of a set of its tensor's placements.
    fn end(&mut self, tensor: usize, ends: Set) -> Result<(), SynthesisError> {
        let in_root = &self.classes.in_root[tensor];
        let ends = numbers(ends).fold(0, |set, number| set | 1 << in_root[number]);
        let class = self.class(tensor)?;
        if !class.ends.contains(&ends) {
            class.ends.push(ends);
        }
        Ok(())
    }

    /// A gradient or a new buffer ends in the placement that its parameter or buffer is kept in, an output in that of its
    /// tangent.
    fn follow(&mut self, output: &Output) -> Result<(), SynthesisError> {
        let Output { kind, name, tensor, of } = output;
        let tensor = *tensor;
        let kept = of.and_then(|of| self.graph.inputs.iter().position(|input| input.tensor == of));
        let Some(input) = kept else {
            return Err(SynthesisError::Graph(format!(
                "the output \"{name}\" does not name its parameter, buffer or tangent"
            )));
        };
        let (new, old) = (
            &self.graph.tensors[tensor],
            &self.graph.tensors[self.graph.inputs[input].tensor],
        );
        if new.occurrences != old.occurrences {
            return Err(SynthesisError::Graph(format!(
                "the output \"{name}\" ({}) does not have the axes of \"{}\": {} instead of {}",
                new.name,
                old.name,
                axes(self.graph, new),
                axes(self.graph, old)
            )));
        }
        // Replicated or sharded, so that the numbers of both tensors agree.
        let placements = self.domains.placements[input].iter();
        let labels = placements.map(|&number| (number, (*kind == OutputKind::Gradient, false)));
        self.demand(Source::Input(input), tensor, labels)
    }
}

/// The number of the placement that a choice names for a tensor.
fn number(
    graph: &Graph,
    operator: &Operator,
    choice: usize,
    tensor: usize,
    placements: Option<&Placements>,
) -> Result<usize, SynthesisError> {
    let tensor = &graph.tensors[tensor];
    placements
        .and_then(|placements| placement_number(tensor, placements))
        .ok_or_else(|| {
            let named = placements.map_or("no placement".to_owned(), |levels| {
                levels.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
            });
            let last = super::classes::placement_count(tensor) - 1;
            SynthesisError::Graph(format!(
                "choice {choice} of the operator \"{}\" ({}) gives \"{}\" {named}, but it can be R to {}",
                operator.name,
                operator.target,
                tensor.name,
                placement_at(tensor, last)
            ))
        })
}

fn axes(graph: &Graph, tensor: &Tensor) -> String {
    let names: Vec<&str> = tensor
        .occurrences
        .iter()
        .map(|&axis| graph.axes[axis].name.as_str())
        .collect();
    format!("[{}]", names.join(", "))
}
