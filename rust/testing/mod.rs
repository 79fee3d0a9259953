//! Small graphs, clusters and programs for tests.

mod lockstep;
mod random;
mod remade;
mod text;

use std::collections::BTreeMap;

use crate::cluster::{Cluster, Device, Group, Link, Member};
use crate::graph::{Axis, Choice, Collective, Graph, Input, InputKind, Operator, Output, OutputKind, Tensor};
use crate::placement::{Placement, Placements};

pub use lockstep::run;
pub use random::{Random, composed, divided, random_program};
pub use remade::remade;
pub use text::program;

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
                parts: Vec::new(),
                of: None,
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
            scattered: false,
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
            ..Choice::default()
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
            family: None,
            layout: false,
            reuses: None,
            fused: false,
            opaque: false,
            partial: false,
            choices,
        });
        result
    }

    /// Adds a composite choice with these collectives to an operator, by its result.
    pub fn composite(&mut self, result: usize, name: &str, text: &str, collectives: &[Collective]) {
        let operator = self
            .graph
            .operators
            .iter()
            .position(|it| it.results == [result])
            .expect("an operator");
        let operands = &self.graph.operators[operator].operands;
        let tensors: Vec<usize> = operands.iter().copied().chain([result]).collect();
        let choice = Choice {
            composite: Some(name.into()),
            collectives: collectives.to_vec(),
            ..self.choice(&tensors, operands.len(), text)
        };
        self.graph.operators[operator].choices.push(choice);
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
        Choice {
            inputs,
            outputs,
            axis,
            ..Choice::default()
        }
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

    /// [`Self::operator`] that [`run`] can execute.
    pub fn kernel(
        &mut self,
        target: &str,
        name: &str,
        operands: &[usize],
        axes: &[usize],
        flops: f64,
        choices: &[&str],
    ) -> usize {
        let result = self.operator(name, operands, axes, flops, choices);
        self.graph.operators.last_mut().expect("just made").target = target.into();
        result
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

/// A perceptron `x -> x w1 -> relu -> h w2 -> sum`, forward and backward, its layers `layers` pairs deep; axes
/// batch, hidden, inner.
pub fn perceptron(layers: usize, [batch, hidden, inner]: [u64; 3]) -> Graph {
    // Products `i k, k j -> i j`, `k i, k j -> i j` and `i k, j k -> i j`.
    const TRANSPOSED_FIRST: [&str; 5] = ["S0 S0 -> P", "S1 R -> S0", "R S1 -> S1", "R P -> P", "P R -> P"];
    const TRANSPOSED_SECOND: [&str; 5] = ["S0 R -> S0", "R S0 -> S1", "S1 S1 -> P", "P R -> P", "R P -> P"];
    let flops = 2.0 * (batch * hidden * inner) as f64;
    let pointwise = (batch * inner) as f64;
    let mut builder = GraphBuilder::new(&[("batch", batch), ("hidden", hidden), ("inner", inner)]);
    let mut x = builder.input(InputKind::Input, "x", &[0, 1]);
    let mut saved = Vec::new();
    for layer in 0..layers {
        let name = |what: &str| format!("{what}{layer}");
        let first = builder.input(InputKind::Parameter, &name("first"), &[1, 2]);
        let second = builder.input(InputKind::Parameter, &name("second"), &[2, 1]);
        let h = builder.kernel("mm", &name("h"), &[x, first], &[0, 2], flops, &MATMUL);
        let a = builder.kernel("relu", &name("a"), &[h], &[0, 2], pointwise, &POINTWISE[..2]);
        let y = builder.kernel("mm", &name("y"), &[a, second], &[0, 1], flops, &MATMUL);
        saved.push((x, first, second, h, a));
        x = y;
    }
    let elements = (batch * hidden) as f64;
    let loss = builder.kernel("sum", "loss", &[x], &[], elements, &["S0 -> P", "S1 -> P", "P -> P"]);
    builder.output(OutputKind::Loss, "loss", loss, None);
    let mut gradient = builder.kernel("fill", "gy", &[loss], &[0, 1], elements, &["R -> S0", "R -> S1"]);
    for (layer, (x, first, second, h, a)) in saved.into_iter().enumerate().rev() {
        let name = |what: &str| format!("{what}{layer}");
        let g_second = builder.kernel(
            "mm_tn",
            &name("g_second"),
            &[a, gradient],
            &[2, 1],
            flops,
            &TRANSPOSED_FIRST,
        );
        let ga = builder.kernel(
            "mm_nt",
            &name("ga"),
            &[gradient, second],
            &[0, 2],
            flops,
            &TRANSPOSED_SECOND,
        );
        let choices = ["S0 S0 -> S0", "S1 S1 -> S1", "P R -> P"];
        let gh = builder.kernel("relu_backward", &name("gh"), &[ga, h], &[0, 2], pointwise, &choices);
        let g_first = builder.kernel("mm_tn", &name("g_first"), &[x, gh], &[1, 2], flops, &TRANSPOSED_FIRST);
        builder.output(OutputKind::Gradient, &name("second"), g_second, Some(second));
        builder.output(OutputKind::Gradient, &name("first"), g_first, Some(first));
        if layer > 0 {
            gradient = builder.kernel("mm_nt", &name("gx"), &[gh, first], &[0, 1], flops, &TRANSPOSED_SECOND);
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
            ..Device::default()
        })
    };
    let cluster = Cluster {
        format: "hap-cluster-1".into(),
        root: Group {
            link: Link {
                bandwidth,
                latency,
                ..Link::default()
            },
            members: flops.iter().enumerate().map(device).collect(),
        },
        collectives: BTreeMap::new(),
        overlap: 0.0,
        interference: 0.0,
        contention: 0.0,
        fingerprint: None,
    };
    cluster.validate().expect("a valid cluster");
    cluster
}
