//! Who produces the tensors of a class, and which placements its readers demand, label by label.

use super::classes::{Classes, placement_at, placement_number};
use super::constraints::Domains;
use super::convert::{Set, numbers};
use super::request::SynthesisError;
use crate::graph::{Choice, Graph, Operator, OutputKind, Tensor};
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
    /// Of the producer: by label, the placement that is produced.
    pub produced: Option<Vec<usize>>,
    /// By label, the placements that are demanded.
    pub demanded: Vec<Set>,
}

/// All that is demanded of a class.
#[derive(Clone, Debug, PartialEq)]
pub struct Demands {
    /// The class's root.
    pub root: usize,
    /// The producer first, then the distinct readers in program order.
    pub parties: Vec<Party>,
    /// Placements that are demanded whatever is decided.
    pub fixed: Set,
    /// Sets of placements, one of each of which is demanded.
    pub ends: Vec<Set>,
}

impl Demands {
    /// Whether nobody demands anything, so that any placement will do.
    pub fn is_empty(&self) -> bool {
        self.fixed == 0
            && self.ends.is_empty()
            && self
                .parties
                .iter()
                .all(|party| party.demanded.iter().all(|&set| set == 0))
    }
}

/// The demands of every class, in the order in which their roots are produced: inputs, then operators.
///
/// # Errors
/// [`SynthesisError::Graph`] where a choice or an output does not fit its tensors.
pub fn demands(graph: &Graph, classes: &Classes, domains: &Domains) -> Result<Vec<Demands>, SynthesisError> {
    let mut builder = Builder {
        graph,
        classes,
        domains,
        demands: Vec::new(),
        position: vec![None; graph.tensors.len()],
    };
    for (index, input) in graph.inputs.iter().enumerate() {
        builder.produce(input.tensor, Source::Input(index), domains.placements[index].clone())?;
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
                builder.class(tensor)?.fixed |= 1 << classes.in_root[tensor][0];
            }
            OutputKind::Output => builder.end(tensor, ends)?,
            OutputKind::Gradient | OutputKind::Buffer => builder.follow(&output.name, tensor, output.of)?,
        }
    }
    Ok(builder.demands)
}

struct Builder<'a> {
    graph: &'a Graph,
    classes: &'a Classes,
    domains: &'a Domains,
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

    fn produce(&mut self, tensor: usize, source: Source, produced: Vec<usize>) -> Result<(), SynthesisError> {
        let name = &self.graph.tensors[tensor].name;
        if self.position[tensor].is_some() || self.classes.root[tensor] != tensor {
            return Err(SynthesisError::Graph(format!(
                "the tensor \"{name}\" is produced twice"
            )));
        }
        self.position[tensor] = Some(self.demands.len());
        let demanded = vec![0; produced.len()];
        let parties = vec![Party {
            source,
            produced: Some(produced),
            demanded,
        }];
        self.demands.push(Demands {
            root: tensor,
            parties,
            fixed: 0,
            ends: Vec::new(),
        });
        Ok(())
    }

    /// Adds what an operator reads and produces.
    fn run(&mut self, index: usize, operator: &Operator) -> Result<(), SynthesisError> {
        let choices = &self.domains.choices[index];
        let graph = self.graph;
        // By label, the number of the placement that a choice names for a tensor.
        let numbers = |tensor, named: &dyn Fn(&Choice) -> Option<&Placements>| {
            let numbers = choices
                .iter()
                .map(|&choice| number(graph, operator, choice, tensor, named(&operator.choices[choice])));
            numbers.collect::<Result<Vec<_>, _>>()
        };
        for (place, &tensor) in operator.operands.iter().enumerate() {
            let numbers = numbers(tensor, &|choice| choice.inputs.get(place))?;
            self.demand(Source::Operator(index), tensor, &numbers)?;
        }
        for (place, &tensor) in operator.results.iter().enumerate() {
            let numbers = numbers(tensor, &|choice| choice.outputs.get(place))?;
            self.produce(tensor, Source::Operator(index), numbers)?;
        }
        Ok(())
    }

    /// By label, a decision demands the tensor in the placement with this number.
    fn demand(&mut self, source: Source, tensor: usize, numbers: &[usize]) -> Result<(), SynthesisError> {
        let classes = self.classes;
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
                    demanded: vec![0; numbers.len()],
                });
                class.parties.len() - 1
            });
        for (set, &number) in class.parties[place].demanded.iter_mut().zip(numbers) {
            *set |= 1 << classes.in_root[tensor][number];
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

    /// A gradient or a new buffer ends in the placement that its parameter or buffer is kept in.
    fn follow(&mut self, name: &str, tensor: usize, of: Option<usize>) -> Result<(), SynthesisError> {
        let kept = of.and_then(|of| self.graph.inputs.iter().position(|input| input.tensor == of));
        let Some(input) = kept else {
            return Err(SynthesisError::Graph(format!(
                "the output \"{name}\" does not name its parameter or buffer"
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
        let placements = self.domains.placements[input].clone();
        self.demand(Source::Input(input), tensor, &placements)
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
