//! Small graphs, clusters and programs for tests.

use std::collections::BTreeMap;

use crate::cluster::{Cluster, Device, Group, Link, Member};
use crate::graph::{Axis, Choice, Graph, Input, InputKind, Operator, Output, OutputKind, Tensor};
use crate::placement::{Placement, Placements};
use crate::program::{Conversion, Instruction, Program};
use crate::shares::Shares;

/// Builds a graph piece by piece. `finish` validates it.
pub struct GraphBuilder {
    graph: Graph,
}

impl GraphBuilder {
    /// A graph with these axes, `(name, size)`; they are named by index from then on.
    pub fn new(axes: &[(&str, u64)]) -> Self {
        let axes = axes
            .iter()
            .map(|(name, size)| Axis {
                name: (*name).into(),
                size: *size,
            })
            .collect();
        let format = "hap-graph-1".into();
        Self {
            graph: Graph {
                format,
                axes,
                tensors: vec![],
                inputs: vec![],
                operators: vec![],
                outputs: vec![],
            },
        }
    }

    fn tensor(&mut self, name: &str, axes: &[usize]) -> usize {
        let elements: u64 = axes.iter().map(|axis| self.graph.axes[*axis].size).product();
        self.graph.tensors.push(Tensor {
            name: name.into(),
            dtype: "float32".into(),
            bytes: 4.0 * elements as f64,
            occurrences: axes.to_vec(),
            summable: true,
        });
        self.graph.tensors.len() - 1
    }

    /// An input with these axes; returns its tensor, of the same name.
    pub fn input(&mut self, kind: InputKind, name: &str, axes: &[usize]) -> usize {
        let tensor = self.tensor(name, axes);
        self.graph.inputs.push(Input {
            kind,
            name: name.into(),
            tensor,
        });
        tensor
    }

    /// An operator with one result of the same name, with the replicated choice and these further ones, written
    /// `"S0 R -> S0"`: placements of the operands, then of the result. The axis is that of the first shard.
    pub fn operator(&mut self, name: &str, operands: &[usize], axes: &[usize], flops: f64, choices: &[&str]) -> usize {
        let result = self.tensor(name, axes);
        let replicated = Choice {
            inputs: vec![vec![Placement::Replicate]; operands.len()],
            outputs: vec![vec![Placement::Replicate]],
            axis: None,
        };
        let tensors: Vec<usize> = operands.iter().copied().chain([result]).collect();
        let further = choices.iter().map(|text| self.choice(&tensors, operands.len(), text));
        let choices = [replicated].into_iter().chain(further).collect();
        self.graph.operators.push(Operator {
            name: name.into(),
            target: format!("test.{name}"),
            operands: operands.to_vec(),
            results: vec![result],
            flops,
            operand_bytes: operands
                .iter()
                .map(|operand| self.graph.tensors[*operand].bytes)
                .collect(),
            result_bytes: vec![self.graph.tensors[result].bytes],
            dtype: "float32".into(),
            layout: false,
            choices,
        });
        result
    }

    /// [`Self::operator`] that only renames indices.
    pub fn layout(&mut self, name: &str, operand: usize, axes: &[usize], choices: &[&str]) -> usize {
        let result = self.operator(name, &[operand], axes, 0.0, choices);
        self.graph.operators.last_mut().expect("just made").layout = true;
        result
    }

    fn choice(&self, tensors: &[usize], operands: usize, text: &str) -> Choice {
        let (inputs, outputs) = text.split_once("->").expect("an arrow");
        let parse = |side: &str| side.split_whitespace().map(placements).collect::<Vec<_>>();
        let (inputs, outputs) = (parse(inputs), parse(outputs));
        assert_eq!(
            (inputs.len(), outputs.len()),
            (operands, tensors.len() - operands),
            "one placement per tensor: {text}"
        );
        let axis = tensors
            .iter()
            .zip(inputs.iter().chain(&outputs))
            .find_map(|(tensor, placement)| match placement[0] {
                Placement::Shard(occurrence) => Some(self.graph.tensors[*tensor].occurrences[occurrence as usize]),
                _ => None,
            });
        Choice { inputs, outputs, axis }
    }

    /// An output; for gradients and buffers `of` is the tensor of the parameter or buffer.
    pub fn output(&mut self, kind: OutputKind, name: &str, tensor: usize, of: Option<usize>) {
        self.graph.outputs.push(Output {
            kind,
            name: name.into(),
            tensor,
            of,
        });
    }

    /// Access to what the builder has no word for.
    pub fn edit(&mut self) -> &mut Graph {
        &mut self.graph
    }

    /// The validated graph.
    pub fn finish(self) -> Graph {
        self.graph.validate().expect("a valid graph");
        self.graph
    }
}

/// `"R"`, `"P"` or `"S3"` on the one level that there is.
pub fn placements(text: &str) -> Placements {
    vec![Placement::try_from(text.to_owned()).expect("a placement")]
}

/// Choices of a matrix product `i k, k j -> i j` (axes by position), two-dimensional throughout.
pub const MATMUL: [&str; 5] = ["S0 R -> S0", "R S1 -> S1", "S1 S0 -> P", "P R -> P", "R P -> P"];

/// Choices of a linear pointwise operator on a matrix.
pub const POINTWISE: [&str; 3] = ["S0 -> S0", "S1 -> S1", "P -> P"];

/// A perceptron `x -> x w1 -> relu -> h w2 -> sum`, forward and backward, its layers `layers` pairs deep; axes batch, hidden, inner.
pub fn perceptron(layers: usize, [batch, hidden, inner]: [u64; 3]) -> Graph {
    let flops = 2.0 * (batch * hidden * inner) as f64;
    let mut builder = GraphBuilder::new(&[("batch", batch), ("hidden", hidden), ("inner", inner)]);
    let mut x = builder.input(InputKind::Input, "x", &[0, 1]);
    let mut saved = Vec::new();
    for layer in 0..layers {
        let first = builder.input(InputKind::Parameter, &format!("w{layer}.first"), &[1, 2]);
        let second = builder.input(InputKind::Parameter, &format!("w{layer}.second"), &[2, 1]);
        let h = builder.operator(&format!("h{layer}"), &[x, first], &[0, 2], flops, &MATMUL);
        let a = builder.operator(
            &format!("a{layer}"),
            &[h],
            &[0, 2],
            (batch * inner) as f64,
            &POINTWISE[..2],
        );
        let y = builder.operator(&format!("y{layer}"), &[a, second], &[0, 1], flops, &MATMUL);
        saved.push((x, first, second, h, a));
        x = y;
    }
    let sum = ["S0 -> P", "S1 -> P", "P -> P"];
    let loss = builder.operator("loss", &[x], &[], (batch * hidden) as f64, &sum);
    builder.output(OutputKind::Loss, "loss", loss, None);
    let mut gradient = builder.operator("gy", &[loss], &[0, 1], 0.0, &["R -> S0", "R -> S1"]);
    for (layer, (x, first, second, h, a)) in saved.into_iter().enumerate().rev() {
        // Transposed products, in place: `k i, k j -> i j` and `i k, j k -> i j`.
        let inner_first = ["S0 S0 -> P", "S1 R -> S0", "R S1 -> S1", "R P -> P"];
        let inner_last = ["S0 R -> S0", "R S0 -> S1", "S1 S1 -> P", "P R -> P"];
        let name = |what: &str| format!("{what}{layer}");
        let g_second = builder.operator(&name("gw.second"), &[a, gradient], &[2, 1], flops, &inner_first);
        let ga = builder.operator(&name("ga"), &[gradient, second], &[0, 2], flops, &inner_last);
        let relu_backward = ["S0 S0 -> S0", "S1 S1 -> S1", "P R -> P"];
        let gh = builder.operator(&name("gh"), &[ga, h], &[0, 2], (batch * inner) as f64, &relu_backward);
        let g_first = builder.operator(&name("gw.first"), &[x, gh], &[1, 2], flops, &inner_first);
        builder.output(
            OutputKind::Gradient,
            &format!("w{layer}.second"),
            g_second,
            Some(second),
        );
        builder.output(OutputKind::Gradient, &format!("w{layer}.first"), g_first, Some(first));
        if layer > 0 {
            gradient = builder.operator(&name("gx"), &[gh, first], &[0, 1], flops, &inner_last);
        }
    }
    builder.finish()
}

/// A cluster of devices with these FLOP/s, with one link between them.
pub fn cluster(flops: &[f64], bandwidth: f64, latency: f64) -> Cluster {
    let device = |(rank, flops): (usize, &f64)| {
        Member::Device(Device {
            name: format!("device {rank}"),
            flops: BTreeMap::from([("default".into(), *flops)]),
            memory_bandwidth: 10.0 * flops,
            memory: 1e12,
            launch_overhead: 1e-6,
        })
    };
    let cluster = Cluster {
        format: "hap-cluster-1".into(),
        root: Group {
            link: Link { bandwidth, latency },
            members: flops.iter().enumerate().map(device).collect(),
        },
        collectives: BTreeMap::new(),
        overlap: 0.0,
    };
    cluster.validate().expect("a valid cluster");
    cluster
}

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
        cluster
    }
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
        let sliceable = matches!(input.kind, InputKind::Parameter | InputKind::Buffer | InputKind::Input);
        let occurrences = if sliceable { tensor.occurrences.len() } else { 0 };
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
        });
        for (tensor, placements) in operator.results.iter().zip(&choice.outputs) {
            writer.there[*tensor].push(placements.clone());
        }
    }
    for output in &graph.outputs {
        let placements = match output.kind {
            OutputKind::Gradient | OutputKind::Buffer => writer.there[output.of.expect("checked")][0].clone(),
            _ => vec![Placement::Replicate],
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
        let conversion = Conversion::between(&from, to).expect("placements differ");
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
        });
        self.there[tensor].push(to.clone());
    }
}
