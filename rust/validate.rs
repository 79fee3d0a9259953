//! The validator of programs: proves that a program computes what its graph asks for, instruction by instruction.
//!
//! A *property* (tensor, placement) says that the devices together hold the tensor in that placement. The validator
//! keeps the set of properties that are there, checks that each instruction finds what it needs and is one that the
//! graph offers, and that the goal is reached in the end: every output in a placement that is allowed for it. A
//! property that is freed and made again is another value each time.

mod error;
mod steps;
mod values;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::graph::{Graph, InputKind, OutputKind};
use crate::placement::{Placement, Placements};
use crate::program::{Conversion, Implementation, Instruction, Program};
use crate::wellformed::{Names, validate_placement};

pub use error::ProgramError;
pub use steps::{Step, ValidProgram, Value};

/// Checks a program against its (validated) graph.
///
/// # Errors
/// Names the first wrong instruction, or what is missing at the end.
pub fn validate(graph: &Graph, program: &Program) -> Result<ValidProgram, ProgramError> {
    validate_with(graph, &graph.names(), program)
}

/// [`validate`], for callers that keep the names.
///
/// # Errors
/// As [`validate`].
pub fn validate_with(graph: &Graph, names: &Names, program: &Program) -> Result<ValidProgram, ProgramError> {
    let mut validator = Validator {
        graph,
        names,
        there: vec![Vec::new(); graph.tensors.len()],
        stored: vec![None; graph.tensors.len()],
        reached: vec![false; graph.outputs.len()],
        inputs: graph
            .inputs
            .iter()
            .enumerate()
            .map(|(index, input)| (input.tensor, index))
            .collect(),
        buckets: FxHashSet::default(),
        valid: ValidProgram::default(),
    };
    for (index, instruction) in program.instructions.iter().enumerate() {
        let step = validator
            .step(instruction)
            .map_err(|message| ProgramError::Instruction {
                index,
                instruction: instruction.to_string(),
                message,
            })?;
        validator.valid.steps.push(step);
    }
    let length = program.instructions.len();
    validator
        .finish()
        .map_err(|message| ProgramError::Missing { length, message })?;
    Ok(validator.valid)
}

struct Validator<'a> {
    graph: &'a Graph,
    names: &'a Names,
    /// By tensor: the values that are there.
    there: Vec<Vec<usize>>,
    /// By tensor: the value that its input instruction made.
    stored: Vec<Option<usize>>,
    /// By output: whether an instruction reads it.
    reached: Vec<bool>,
    /// By tensor: the input that it is.
    inputs: FxHashMap<usize, usize>,
    /// The buckets so far.
    buckets: FxHashSet<u32>,
    valid: ValidProgram,
}

impl Validator<'_> {
    fn step(&mut self, instruction: &Instruction) -> Result<Step, String> {
        match instruction {
            Instruction::Input { tensor, placement } => self.input(tensor, placement),
            Instruction::Compute {
                operator,
                target,
                inputs,
                outputs,
                axis,
                composite,
            } => self.compute(
                operator,
                target,
                inputs,
                outputs,
                (axis.as_deref(), composite.as_deref()),
            ),
            Instruction::Convert {
                conversion,
                tensor,
                from,
                to,
                axis,
                implementation,
                bucket,
            } => {
                let step = self.convert(*conversion, tensor, from, to, axis.as_deref(), *implementation)?;
                self.bucket(*bucket, step)
            }
            Instruction::Free { tensor, placement } => self.free(tensor, placement),
            Instruction::Output {
                name,
                tensor,
                placement,
            } => self.output(name, tensor, placement),
        }
    }

    fn input(&mut self, name: &str, placements: &Placements) -> Result<Step, String> {
        let tensor = self.tensor(name)?;
        let input = *self
            .inputs
            .get(&tensor)
            .ok_or_else(|| format!("\"{name}\" is not an input of the graph"))?;
        if self.stored[tensor].is_some() {
            return Err(format!(
                "\"{name}\" is already there: an input is stored in one placement"
            ));
        }
        validate_placement(&self.graph.tensors[tensor], placements)?;
        let kind = self.graph.inputs[input].kind;
        let sliceable = self.graph.sharded(&self.graph.inputs[input]);
        match placements.as_slice() {
            [Placement::Replicate] => {}
            [Placement::Shard(_)] if sliceable => {}
            [Placement::Shard(_)] => return Err(format!("an input of kind {kind:?} is whole on every device")),
            _ => return Err("an input cannot be partial".into()),
        }
        let write = self.gain(tensor, placements);
        self.valid.values[write].stored = true;
        self.stored[tensor] = Some(write);
        Ok(Step::Input { input, write })
    }

    fn compute(
        &mut self,
        name: &str,
        target: &str,
        inputs: &[(String, Placements)],
        outputs: &[(String, Placements)],
        (axis, composite): (Option<&str>, Option<&str>),
    ) -> Result<Step, String> {
        let graph = self.graph;
        let operator = *self
            .names
            .operators
            .get(name)
            .ok_or_else(|| format!("there is no operator \"{name}\""))?;
        let node = &graph.operators[operator];
        if node.target != target {
            return Err(format!("operator \"{name}\" is {}, not {target}", node.target));
        }
        self.same_tensors("operands", &node.operands, inputs)?;
        self.same_tensors("results", &node.results, outputs)?;
        let axis = axis.map(|axis| self.axis(axis)).transpose()?;
        let equal = |expected: &[Placements], found: &[(String, Placements)]| {
            expected.iter().eq(found.iter().map(|(_, placements)| placements))
        };
        let choice = node.choices.iter().position(|choice| {
            choice.axis == axis
                && choice.composite.as_deref() == composite
                && equal(&choice.inputs, inputs)
                && equal(&choice.outputs, outputs)
        });
        let choice = choice.ok_or_else(|| format!("operator \"{name}\" offers no such choice"))?;
        let reads = node.operands.iter().zip(inputs);
        let reads = reads
            .map(|(tensor, (_, placements))| self.needed(*tensor, placements))
            .collect::<Result<Vec<_>, _>>()?;
        let gains =
            |(tensor, (_, placements)): (&usize, &(String, Placements))| self.find(*tensor, placements).is_none();
        if !node.results.iter().zip(outputs).any(gains) {
            return Err(format!(
                "operator \"{name}\" gains nothing: its results are already there"
            ));
        }
        let writes = node.results.iter().zip(outputs);
        let writes = writes
            .map(|(tensor, (_, placements))| self.gain(*tensor, placements))
            .collect();
        Ok(Step::Compute {
            operator,
            choice,
            reads,
            writes,
        })
    }

    fn convert(
        &mut self,
        conversion: Conversion,
        name: &str,
        from: &Placements,
        to: &Placements,
        axis: Option<&str>,
        implementation: Option<Implementation>,
    ) -> Result<Step, String> {
        let tensor = self.tensor(name)?;
        let node = &self.graph.tensors[tensor];
        validate_placement(node, from)?;
        validate_placement(node, to)?;
        if Conversion::between(self.graph, tensor, from, to) != Some(conversion) {
            return Err(format!(
                "{conversion} does not lead from the one placement to the other"
            ));
        }
        let expected = Conversion::axis(node, from, to);
        if axis.map(|axis| self.axis(axis)).transpose()? != expected {
            let expected = expected.map_or("none", |axis| &self.graph.axes[axis].name);
            return Err(format!("the axis is wrong, expected {expected}"));
        }
        let known = conversion.implementations();
        match implementation {
            None if known.is_empty() => {}
            Some(implementation) if known.contains(&implementation) => {}
            Some(implementation) => return Err(format!("{conversion} cannot be carried out as {implementation}")),
            None => return Err(format!("{conversion} needs an implementation")),
        }
        let read = self.needed(tensor, from)?;
        if self.find(tensor, to).is_some() {
            return Err(format!(
                "the conversion gains nothing: {} is already there",
                self.show(tensor, to)
            ));
        }
        Ok(Step::Convert {
            conversion,
            implementation,
            bucket: None,
            read,
            write: self.gain(tensor, to),
        })
    }

    /// Puts a conversion into a bucket, which is new or that of the instruction before.
    fn bucket(&mut self, number: Option<u32>, mut step: Step) -> Result<Step, String> {
        let (
            Some(number),
            Step::Convert {
                conversion,
                bucket,
                read,
                ..
            },
        ) = (number, &mut step)
        else {
            return Ok(step);
        };
        if *conversion != Conversion::AllReduce {
            return Err(format!("{conversion} cannot be part of a bucket, only all-reduces can"));
        }
        let dtype = |value: usize| &self.graph.tensors[self.valid.values[value].tensor].dtype;
        match self.valid.steps.last() {
            Some(Step::Convert {
                bucket: Some(before),
                read: other,
                ..
            }) if *before == number => {
                if dtype(*other) != dtype(*read) {
                    return Err(format!(
                        "bucket {number} is of {}, this tensor of {}",
                        dtype(*other),
                        dtype(*read)
                    ));
                }
            }
            _ if self.buckets.insert(number) => {}
            _ => {
                return Err(format!(
                    "bucket {number} has ended before: its all-reduces follow each other"
                ));
            }
        }
        *bucket = Some(number);
        Ok(step)
    }

    fn output(&mut self, name: &str, tensor_name: &str, placements: &Placements) -> Result<Step, String> {
        let tensor = self.tensor(tensor_name)?;
        let read = self.needed(tensor, placements)?;
        let outputs = self.graph.outputs.iter().enumerate();
        // Names are unique among outputs of one kind only: a module's output may be named like a parameter.
        let mut problem =
            format!("the graph has no output \"{name}\" that is tensor \"{tensor_name}\" and not yet read");
        for (index, output) in outputs {
            if self.reached[index] || output.name != name || output.tensor != tensor {
                continue;
            }
            match self.allowed(index, placements) {
                Ok(()) => {
                    self.reached[index] = true;
                    return Ok(Step::Output { output: index, read });
                }
                Err(message) => problem = message,
            }
        }
        Err(problem)
    }

    /// Whether an output may end in a placement.
    fn allowed(&self, output: usize, placements: &Placements) -> Result<(), String> {
        let output = &self.graph.outputs[output];
        let replicated = placements.iter().all(|placement| *placement == Placement::Replicate);
        match output.kind {
            OutputKind::Loss | OutputKind::InputGradient if replicated => Ok(()),
            OutputKind::Loss | OutputKind::InputGradient => Err(format!("a {:?} must end replicated", output.kind)),
            OutputKind::Output if placements.contains(&Placement::Partial) => {
                Err("an output cannot end partial".into())
            }
            OutputKind::Output if output.of.is_none() => Ok(()),
            OutputKind::Output | OutputKind::Gradient | OutputKind::Buffer => {
                let of = output.of.expect("a validated graph");
                match self.stored[of].map(|value| &self.valid.values[value].placements) {
                    Some(stored) if stored == placements => Ok(()),
                    Some(stored) => Err(format!(
                        "a {:?} must end as it is stored, as {}",
                        output.kind,
                        self.show(of, stored)
                    )),
                    None => Err(format!(
                        "there is no input instruction for \"{}\"",
                        self.graph.tensors[of].name
                    )),
                }
            }
        }
    }

    /// What must hold at the end.
    fn finish(&self) -> Result<(), String> {
        for input in &self.graph.inputs {
            let stored = matches!(input.kind, InputKind::Parameter | InputKind::Buffer);
            if stored && self.stored[input.tensor].is_none() {
                let (kind, name) = (input.kind, &self.graph.tensors[input.tensor].name);
                return Err(format!("{kind:?} \"{name}\" has no input instruction"));
            }
        }
        match self.reached.iter().position(|reached| !reached) {
            Some(output) => {
                let output = &self.graph.outputs[output];
                Err(format!("output \"{}\" ({:?}) is missing", output.name, output.kind))
            }
            None => Ok(()),
        }
    }

    fn same_tensors(&self, what: &str, expected: &[usize], found: &[(String, Placements)]) -> Result<(), String> {
        let expected = expected.iter().map(|tensor| &self.graph.tensors[*tensor].name);
        if expected.clone().eq(found.iter().map(|(name, _)| name)) {
            return Ok(());
        }
        Err(format!(
            "the {what} differ from the operator's, {:?}",
            expected.collect::<Vec<_>>()
        ))
    }

    fn tensor(&self, name: &str) -> Result<usize, String> {
        self.names
            .tensors
            .get(name)
            .copied()
            .ok_or_else(|| format!("there is no tensor \"{name}\""))
    }

    fn axis(&self, name: &str) -> Result<usize, String> {
        self.names
            .axes
            .get(name)
            .copied()
            .ok_or_else(|| format!("there is no axis \"{name}\""))
    }
}

#[cfg(test)]
mod tests;
