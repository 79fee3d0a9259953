//! When collectives start whose operands are there long before their results are read: of gathered parameters, of what
//! the forward saved.
//!
//! They are moved ahead in the program, so far that the computation up to the first reader hides them, each in front of
//! the one whose reader comes next; no further, since results take memory from the start on. A step between forward and
//! backward does not exist for autograd: nothing is moved across the first reader of a tangent, nor anything that stands
//! before it to be read behind it, since that runs in the backward whatever its place.
//!
//! Everything else stays in its order. Reductions are started where their operands are made already.

use crate::buckets::Proven;
use crate::cluster::Cluster;
use crate::cost::{CostModel, Transfer};
use crate::graph::InputKind;
use crate::program::Program;
use crate::simulate::{Options, simulate_with};
use crate::validate::{Step, ValidProgram};

/// How far ahead collectives are started, in parts of the computation that hides them, in the order of trial.
const DISTANCES: [f64; 3] = [1.0, 0.5, 0.25];

/// The program with collectives moved ahead as far as the devices' memory allows, where that makes the step shorter.
pub fn prefetched(cluster: &Cluster, costs: &CostModel, options: &Options, proven: Proven) -> Proven {
    if costs.devices() == 1 || costs.overlap() == 0.0 {
        return proven;
    }
    let early = Early::new(costs, &proven.valid);
    let capacities = cluster.capacities();
    let mut tried = None;
    for distance in DISTANCES {
        let order = early.order(distance);
        if order.is_sorted() {
            break;
        }
        if tried.as_ref() == Some(&order) {
            continue;
        }
        let moved = reordered(costs, options, &proven, &order);
        if moved.simulation.seconds < proven.simulation.seconds && moved.fits(&proven, &capacities) {
            return moved;
        }
        tried = Some(order);
    }
    proven
}

/// The instructions of a program in another order in which it is valid, too.
fn reordered(costs: &CostModel, options: &Options, proven: &Proven, order: &[usize]) -> Proven {
    let steps = order.iter().map(|&position| proven.valid.steps[position].clone());
    let valid = ValidProgram {
        values: proven.valid.values.clone(),
        steps: steps.collect(),
    };
    let instructions = order
        .iter()
        .map(|&position| proven.program.instructions[position].clone());
    Proven {
        program: Program {
            instructions: instructions.collect(),
        },
        simulation: simulate_with(costs, &valid, options),
        valid,
    }
}

/// A collective that may start earlier.
struct Candidate {
    /// Where it stands.
    position: usize,
    /// The first position that it may be moved to.
    earliest: usize,
    /// The first instruction that reads its result.
    reader: usize,
    /// Seconds of computation that hide it.
    hides: f64,
}

/// What may start earlier in a program.
struct Early {
    /// By position: seconds of computation before it, where devices never wait; of the slowest for each operator.
    work: Vec<f64>,
    /// In the order of their readers.
    candidates: Vec<Candidate>,
}

impl Early {
    fn new(costs: &CostModel, program: &ValidProgram) -> Self {
        let mut early = Self {
            work: vec![0.0; program.steps.len()],
            candidates: Vec::new(),
        };
        let graph = costs.graph();
        let read_first = program.read_first();
        let tangent = |step: &Step| match step {
            Step::Input { input, write } if graph.inputs[*input].kind == InputKind::Tangent => Some(read_first[*write]),
            _ => None,
        };
        let turn = program
            .steps
            .iter()
            .filter_map(tangent)
            .min()
            .unwrap_or(program.steps.len());
        // By value, and by tensor: the first position behind what makes it, and behind its last free.
        let mut made = vec![0; program.values.len()];
        let mut freed = vec![0; graph.tensors.len()];
        let mut work = 0.0;
        for (position, step) in program.steps.iter().enumerate() {
            early.work[position] = work;
            match step {
                Step::Input { write, .. } => made[*write] = position + 1,
                Step::Compute {
                    operator,
                    choice,
                    writes,
                    ..
                } => {
                    writes.iter().for_each(|&write| made[write] = position + 1);
                    let choice = &graph.operators[*operator].choices[*choice];
                    let seconds = costs
                        .kinds()
                        .iter()
                        .map(|&device| costs.compute(*operator, choice, device));
                    work += seconds.fold(0.0, f64::max);
                }
                Step::Convert {
                    read, write, bucket, ..
                } => {
                    made[*write] = position + 1;
                    let boundary = if position < turn { 0 } else { turn };
                    let earliest = made[*read].max(freed[program.values[*read].tensor]).max(boundary);
                    let reader = read_first[*write];
                    let unread = matches!(program.steps.get(reader), None | Some(Step::Output { .. }));
                    // The runtime makes in the backward what only the backward reads.
                    let postponed = position < turn && reader >= turn;
                    let transfer = Transfer::at(graph, program, position).filter(|it| !costs.is_idle(it));
                    let fixed = unread || postponed || earliest == position;
                    if let (None, false, Some(transfer)) = (bucket, fixed, transfer) {
                        early.candidates.push(Candidate {
                            position,
                            earliest,
                            reader,
                            hides: costs.overlap() * costs.transfer(&transfer),
                        });
                    }
                }
                Step::Free { read } => freed[program.values[*read].tensor] = position + 1,
                Step::Output { .. } => {}
            }
        }
        early.candidates.sort_by_key(|candidate| candidate.reader);
        early
    }

    /// The positions of all instructions in an order in which collectives start at a distance.
    fn order(&self, distance: f64) -> Vec<usize> {
        // By old position, where it is now: in front of that old position.
        let mut place: Vec<usize> = (0..self.work.len()).collect();
        let mut next = f64::INFINITY;
        for candidate in self.candidates.iter().rev() {
            let late = self.work[candidate.reader].min(next) - distance * candidate.hides;
            let position = self.work.partition_point(|work| *work <= late).saturating_sub(1);
            let position = position.clamp(candidate.earliest, candidate.position);
            next = late.max(self.work[candidate.earliest]);
            place[candidate.position] = position;
        }
        let moved = self.candidates.iter().map(|candidate| candidate.position);
        let mut order: Vec<usize> = moved.filter(|&position| place[position] < position).collect();
        order.extend((0..self.work.len()).filter(|&position| place[position] == position));
        // What is moved stands in front of what stays there, in the order of the readers.
        order.sort_by_key(|&position| place[position]);
        order
    }
}

#[cfg(test)]
mod tests;
