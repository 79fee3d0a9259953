//! Programs that free values and make them again, from programs that do not.

use std::collections::BTreeMap;

use super::Random;
use crate::placement::Placements;
use crate::program::{Instruction, Program};

/// A tensor in a placement.
type Value = (String, Placements);

/// The valid program with any values but inputs freed after any instruction, with a probability of `often` again and
/// again. What is gone where it is read is made again right before, as at first, after what that needs.
pub fn remade(program: &Program, random: &mut Random, often: f64) -> Program {
    let mut writer = Writer::default();
    for instruction in &program.instructions {
        writer.write(instruction);
        while random.unit() < often {
            let made: Vec<Value> = writer.made().cloned().collect();
            if made.is_empty() {
                break;
            }
            writer.free(&made[random.below(made.len())]);
        }
    }
    Program {
        instructions: writer.instructions,
    }
}

#[derive(Default)]
struct Writer {
    instructions: Vec<Instruction>,
    /// What made each value first, and whether it is there.
    values: BTreeMap<Value, (Instruction, bool)>,
}

impl Writer {
    fn write(&mut self, instruction: &Instruction) {
        for value in reads(instruction) {
            let (maker, there) = self.values[&value].clone();
            if !there {
                self.write(&maker);
            }
        }
        for value in makes(instruction) {
            self.values.entry(value).or_insert((instruction.clone(), true)).1 = true;
        }
        self.instructions.push(instruction.clone());
    }

    fn made(&self) -> impl Iterator<Item = &Value> {
        let freeable = |maker: &Instruction| !matches!(maker, Instruction::Input { .. });
        self.values
            .iter()
            .filter(move |(_, (maker, there))| *there && freeable(maker))
            .map(|(value, _)| value)
    }

    fn free(&mut self, value: &Value) {
        let (tensor, placement) = value.clone();
        self.instructions.push(Instruction::Free { tensor, placement });
        self.values.get_mut(value).expect("made before").1 = false;
    }
}

/// What an instruction needs.
fn reads(instruction: &Instruction) -> Vec<Value> {
    match instruction {
        Instruction::Input { .. } => Vec::new(),
        Instruction::Compute { inputs, .. } => inputs.clone(),
        Instruction::Convert { tensor, from, .. } => vec![(tensor.clone(), from.clone())],
        Instruction::Free { tensor, placement } | Instruction::Output { tensor, placement, .. } => {
            vec![(tensor.clone(), placement.clone())]
        }
    }
}

/// What it yields.
fn makes(instruction: &Instruction) -> Vec<Value> {
    match instruction {
        Instruction::Input { tensor, placement } => vec![(tensor.clone(), placement.clone())],
        Instruction::Compute { outputs, .. } => outputs.clone(),
        Instruction::Convert { tensor, to, .. } => vec![(tensor.clone(), to.clone())],
        Instruction::Free { .. } | Instruction::Output { .. } => Vec::new(),
    }
}
