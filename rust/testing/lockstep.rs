//! Runs a program of [`super::perceptron`] numerically, all devices in turn: an oracle for the validator that knows
//! nothing of choices.
//!
//! A local piece is an array of the whole tensor's shape: a shard is zero outside of the device's share.

use std::collections::BTreeMap;

use super::Random;
use crate::graph::Graph;
use crate::placement::{Placement, Placements};
use crate::program::{Conversion, Instruction, Program};
use crate::shares::Shares;

/// A matrix or scalar, row-major.
#[derive(Clone, Debug)]
struct Array {
    shape: [usize; 2],
    data: Vec<f64>,
}

/// Values by name and placement; one array per device.
type Memory = BTreeMap<(String, Placements), Vec<Array>>;

/// What each output is on the whole, by name, when the program runs on inputs that follow from the seed.
///
/// # Errors
/// An instruction reads what is not there, or an operator has no kernel for its target.
pub fn run(graph: &Graph, shares: &Shares, program: &Program, seed: u64) -> Result<BTreeMap<String, Vec<f64>>, String> {
    let devices = shares[0].len();
    let number = |name: &String| graph.tensors.iter().position(|tensor| tensor.name == *name);
    let tensor = |name: &String| number(name).ok_or("no tensor");
    let mut memory = Memory::new();
    let mut outputs = BTreeMap::new();
    for instruction in &program.instructions {
        match instruction {
            Instruction::Input {
                tensor: name,
                placement,
            } => {
                let node = tensor(name)?;
                let mut random = Random(seed ^ ((node as u64) << 32));
                let [rows, columns] = shape(graph, node);
                let data = (0..rows * columns).map(|_| random.unit() - 0.5).collect();
                let whole = vec![
                    Array {
                        shape: [rows, columns],
                        data
                    };
                    devices
                ];
                memory.insert(
                    (name.clone(), placement.clone()),
                    mask(graph, shares, node, placement, whole),
                );
            }
            Instruction::Compute {
                operator,
                target,
                inputs,
                outputs: results,
                ..
            } => {
                let [(result, placement)] = results.as_slice() else {
                    return Err("one result".into());
                };
                let node = tensor(result)?;
                let operands: Vec<&Vec<Array>> = inputs
                    .iter()
                    .map(|key| memory.get(key).ok_or("nothing there"))
                    .collect::<Result<_, _>>()?;
                let local = (0..devices).map(|device| {
                    let local: Vec<&Array> = operands.iter().map(|operand| &operand[device]).collect();
                    kernel(target, &local, shape(graph, node)).ok_or(format!("{operator} cannot run"))
                });
                let mut local = local.collect::<Result<Vec<_>, _>>()?;
                if target == "fill" {
                    local = mask(graph, shares, node, placement, local);
                }
                memory.insert((result.clone(), placement.clone()), local);
            }
            Instruction::Convert {
                conversion,
                tensor: name,
                from,
                to,
                ..
            } => {
                let pieces = memory
                    .get(&(name.clone(), from.clone()))
                    .ok_or("nothing there")?
                    .clone();
                let converted = match conversion {
                    Conversion::AllGather | Conversion::AllReduce => vec![sum(&pieces); devices],
                    Conversion::ReduceScatter | Conversion::AllToAll | Conversion::Resplit => {
                        mask(graph, shares, tensor(name)?, to, vec![sum(&pieces); devices])
                    }
                    Conversion::Slice => mask(graph, shares, tensor(name)?, to, pieces),
                    Conversion::Pad => pieces,
                    Conversion::KeepOne => {
                        let zeros = pieces.iter().skip(1).map(|piece| zeros(piece.shape));
                        pieces.iter().take(1).cloned().chain(zeros).collect()
                    }
                };
                memory.insert((name.clone(), to.clone()), converted);
            }
            Instruction::Free { tensor, placement } => {
                memory
                    .remove(&(tensor.clone(), placement.clone()))
                    .ok_or("nothing there")?;
            }
            Instruction::Output {
                name,
                tensor,
                placement,
            } => {
                let pieces = memory
                    .get(&(tensor.clone(), placement.clone()))
                    .ok_or("nothing there")?;
                let whole = match placement[0] {
                    Placement::Replicate => pieces.last().expect("a device").clone(),
                    _ => sum(pieces),
                };
                outputs.insert(name.clone(), whole.data);
            }
        }
    }
    Ok(outputs)
}

/// Other split classes stand behind the dimensions' own axes.
fn shape(graph: &Graph, tensor: usize) -> [usize; 2] {
    let mut own = graph.tensors[tensor].occurrences.clone();
    own.retain(|axis| graph.axes[*axis].of.is_none());
    let size = |dim: usize| own.get(dim).map_or(1, |axis| graph.axes[*axis].size as usize);
    [size(0), size(1)]
}

/// Each device's share of what it holds whole; all of it unless the placement is a shard.
fn mask(graph: &Graph, shares: &Shares, tensor: usize, placement: &Placements, mut local: Vec<Array>) -> Vec<Array> {
    let [Placement::Shard(occurrence)] = placement.as_slice() else {
        return local;
    };
    let dim = graph.index(tensor, *occurrence as usize);
    let axis = graph.tensors[tensor].occurrences[*occurrence as usize];
    let size = graph.axes[axis].size as f64;
    let mut start = 0;
    for (array, share) in local.iter_mut().zip(&shares[axis]) {
        let end = start + (share * size).round() as usize;
        let [_, columns] = array.shape;
        for (index, entry) in array.data.iter_mut().enumerate() {
            let position = if dim == 0 { index / columns } else { index % columns };
            if !(start..end).contains(&position) {
                *entry = 0.0;
            }
        }
        start = end;
    }
    local
}

fn zeros(shape: [usize; 2]) -> Array {
    Array {
        shape,
        data: vec![0.0; shape[0] * shape[1]],
    }
}

fn sum(pieces: &[Array]) -> Array {
    let mut total = zeros(pieces[0].shape);
    for piece in pieces {
        total
            .data
            .iter_mut()
            .zip(&piece.data)
            .for_each(|(total, entry)| *total += entry);
    }
    total
}

fn kernel(target: &str, operands: &[&Array], shape: [usize; 2]) -> Option<Array> {
    let mut result = zeros(shape);
    match (target, operands) {
        ("mm" | "mm_tn" | "mm_nt", [first, second]) => {
            let inner = first.shape[if target == "mm_tn" { 0 } else { 1 }];
            for row in 0..shape[0] {
                for column in 0..shape[1] {
                    for k in 0..inner {
                        let (i, j) = if target == "mm_tn" { (k, row) } else { (row, k) };
                        let (m, n) = if target == "mm_nt" { (column, k) } else { (k, column) };
                        result.data[row * shape[1] + column] +=
                            first.data[i * first.shape[1] + j] * second.data[m * second.shape[1] + n];
                    }
                }
            }
        }
        ("relu", [x]) => result.data = x.data.iter().map(|x| x.max(0.0)).collect(),
        ("relu_backward", [gradient, x]) => {
            let pairs = gradient.data.iter().zip(&x.data);
            result.data = pairs
                .map(|(gradient, x)| if *x > 0.0 { *gradient } else { 0.0 })
                .collect();
        }
        ("sum", [x]) => result.data[0] = x.data.iter().sum(),
        // Depends on the loss, so that a wrong loss shows in the gradients as well.
        ("fill", [x]) => result.data.fill(1.0 + x.data[0]),
        _ => return None,
    }
    Some(result)
}
