//! Random clusters, shares and programs, repeatable by seed.

use super::cluster;
use crate::cluster::Cluster;
use crate::graph::{Axis, Choice, Collective, Graph, OutputKind};
use crate::placement::{Placement, Placements};
use crate::program::{Conversion, Instruction, Program};
use crate::shares::Shares;

/// Repeatable random numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `count - 1`.
    pub fn below(&mut self, count: usize) -> usize {
        (self.bits() % count as u64) as usize
    }

    /// A number from 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Integer shares of every axis, as fractions; some of them zero.
    pub fn shares(&mut self, graph: &Graph, devices: usize) -> Shares {
        let split = |size: u64, random: &mut Self| {
            let mut units = vec![0u64; devices];
            let candidates = 1 + random.below(devices);
            for _ in 0..size {
                units[random.below(candidates)] += 1;
            }
            units.iter().map(|units| *units as f64 / size as f64).collect()
        };
        graph.axes.iter().map(|axis| split(axis.size, self)).collect()
    }

    /// A cluster of 1 to 4 unequal devices.
    pub fn cluster(&mut self) -> Cluster {
        let flops: Vec<f64> = (0..1 + self.below(4)).map(|_| 1e9 * (0.2 + self.unit())).collect();
        let mut cluster = cluster(&flops, 1e8 * (0.1 + self.unit()), 1e-5 * self.unit());
        cluster.overlap = [0.0, 1.0, self.unit()][self.below(3)];
        cluster.interference = [0.0, 1.0, self.unit()][self.below(3)];
        cluster
    }
}

/// The graph with half of the choices that share work made composites, each with up to three collectives inside.
pub fn composed(mut graph: Graph, random: &mut Random) -> Graph {
    let axes = graph.axes.len();
    for operator in graph.operators.iter_mut().filter(|operator| !operator.layout) {
        let choices = operator.choices.iter_mut().enumerate();
        for (index, choice) in choices.filter(|(_, choice)| choice.axis.is_some()) {
            if random.below(2) == 0 {
                continue;
            }
            let mut collective = || {
                let kinds = [
                    (Conversion::AllReduce, None),
                    (Conversion::AllGather, None),
                    (Conversion::AllGather, Some(random.below(axes))),
                    (Conversion::ReduceScatter, Some(random.below(axes))),
                    (Conversion::AllToAll, Some(random.below(axes))),
                ];
                let (conversion, axis) = kinds[random.below(kinds.len())];
                let bytes = 256.0 * random.unit();
                Collective {
                    conversion,
                    bytes,
                    axis,
                }
            };
            choice.collectives = (0..3).map(|_| collective()).collect();
            choice.collectives.truncate(random.below(4));
            choice.composite = Some(format!("composite {index}"));
        }
    }
    graph.validate().expect("a valid graph");
    graph
}

/// The graph with another split class of an axis, which every tensor and every choice along the axis has too.
pub fn divided(graph: &Graph, axis: usize) -> Graph {
    let mut made = graph.clone();
    let class = made.axes.len();
    let Axis { name, size, .. } = &graph.axes[axis];
    made.axes.push(Axis {
        name: format!("{name}@2"),
        size: *size,
        parts: Vec::new(),
        of: Some(axis),
    });
    for tensor in &mut made.tensors {
        let count = tensor.occurrences.iter().filter(|&&other| other == axis).count();
        tensor.occurrences.extend(std::iter::repeat_n(class, count));
    }
    let other = |tensor: usize, placement: Placement| match placement {
        Placement::Shard(occurrence) => {
            let old = &graph.tensors[tensor].occurrences;
            let before = old[..occurrence as usize]
                .iter()
                .filter(|&&other| other == axis)
                .count();
            Placement::Shard((old.len() + before) as u32)
        }
        _ => placement,
    };
    for operator in &mut made.operators {
        let (operands, results) = (&operator.operands, &operator.results);
        let moved = |tensors: &[usize], placements: &[Placements]| {
            let both = tensors.iter().zip(placements);
            both.map(|(&tensor, levels)| levels.iter().map(|&it| other(tensor, it)).collect())
                .collect()
        };
        let again = operator.choices.iter().filter(|choice| choice.axis == Some(axis));
        let again = again.map(|choice| Choice {
            inputs: moved(operands, &choice.inputs),
            outputs: moved(results, &choice.outputs),
            axis: Some(class),
            ..choice.clone()
        });
        let again: Vec<Choice> = again.collect();
        operator.choices.extend(again);
    }
    made.validate().expect("a valid graph");
    made
}

/// A valid program that takes a random choice for every operator, and converts where it must, in a random way.
pub fn random_program(graph: &Graph, random: &mut Random) -> Program {
    let mut writer = Writer {
        graph,
        there: vec![Vec::new(); graph.tensors.len()],
        instructions: Vec::new(),
    };
    for input in &graph.inputs {
        let tensor = &graph.tensors[input.tensor];
        let occurrences = if graph.sharded(input) {
            tensor.occurrences.len()
        } else {
            0
        };
        let placement = match random.below(occurrences + 1) {
            0 => Placement::Replicate,
            other => Placement::Shard(other as u32 - 1),
        };
        writer.there[input.tensor].push(vec![placement]);
        writer.instructions.push(Instruction::Input {
            tensor: tensor.name.clone(),
            placement: vec![placement],
        });
    }
    for operator in &graph.operators {
        let choice = &operator.choices[random.below(operator.choices.len())];
        for (tensor, placements) in operator.operands.iter().zip(&choice.inputs) {
            writer.need(*tensor, placements, random);
        }
        let named = |tensors: &[usize], placements: &[Placements]| {
            let names = tensors.iter().map(|tensor| graph.tensors[*tensor].name.clone());
            names.zip(placements.iter().cloned()).collect::<Vec<_>>()
        };
        writer.instructions.push(Instruction::Compute {
            operator: operator.name.clone(),
            target: operator.target.clone(),
            inputs: named(&operator.operands, &choice.inputs),
            outputs: named(&operator.results, &choice.outputs),
            axis: choice.axis.map(|axis| graph.axes[axis].name.clone()),
            composite: choice.composite.clone(),
        });
        for (tensor, placements) in operator.results.iter().zip(&choice.outputs) {
            writer.there[*tensor].push(placements.clone());
        }
    }
    for output in &graph.outputs {
        let placements = match output.kind {
            OutputKind::Loss | OutputKind::InputGradient => vec![Placement::Replicate],
            _ => output
                .of
                .map_or(vec![Placement::Replicate], |of| writer.there[of][0].clone()),
        };
        writer.need(output.tensor, &placements, random);
        let tensor = graph.tensors[output.tensor].name.clone();
        writer.instructions.push(Instruction::Output {
            name: output.name.clone(),
            tensor,
            placement: placements,
        });
    }
    Program {
        instructions: writer.instructions,
    }
}

struct Writer<'a> {
    graph: &'a Graph,
    there: Vec<Vec<Placements>>,
    instructions: Vec<Instruction>,
}

impl Writer<'_> {
    fn need(&mut self, tensor: usize, to: &Placements, random: &mut Random) {
        if self.there[tensor].contains(to) {
            return;
        }
        let from = self.there[tensor][random.below(self.there[tensor].len())].clone();
        let conversion = Conversion::between(self.graph, tensor, &from, to).expect("placements differ");
        let node = &self.graph.tensors[tensor];
        let known = conversion.implementations();
        self.instructions.push(Instruction::Convert {
            conversion,
            tensor: node.name.clone(),
            axis: Conversion::axis(node, &from, to).map(|axis| self.graph.axes[axis].name.clone()),
            from,
            to: to.clone(),
            implementation: if known.is_empty() {
                None
            } else {
                Some(known[random.below(known.len())])
            },
            bucket: None,
        });
        self.there[tensor].push(to.clone());
    }
}
