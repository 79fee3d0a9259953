//! What instructions cost, for fixed shares. Search, linear program and simulator all ask here.
//!
//! * Computation is a roofline: `launch_overhead + max(flops * f / F, bytes / memory_bandwidth)`, with `f` the
//!   device's share of the axis that the work is shared along (1 where there is none) and `F` its speed for the
//!   operator's element type. Where a device has been measured, either side is a curve through the measured times of
//!   the operator's family. Of the bytes, those of sharded operands and results scale by `f`. A device without a
//!   share does nothing, and layout operators cost nothing.
//! * A collective is `latency + bytes / bandwidth` of the bytes that the slowest rank moves. Latency and bandwidth
//!   are those of the cluster's bottleneck link, or measured ([`crate::cluster::Cluster::collectives`]).
//! * A composite choice launches one kernel more for each collective inside, and pays for these as for conversions.
//! * A re-split moves what is not in a device's stretch of the units both before and behind it; nothing, and it makes
//!   nobody wait, where all shares are equal.
//! * Shares of a run of axes are taken as independent of its parts' shares. An exchange between a run and one of its
//!   parts is priced as one between unrelated axes: no less than what moves, as some pieces may stay where they are.
//!
//! Every cost is an [`Affine`] function of the shares around the given ones, and its value there is the cost
//! itself, so that the linear program cannot drift from the search.

mod affine;
mod alike;
mod curve;
mod exchange;
mod transfer;

use crate::buckets;
use crate::cluster::{Cluster, CollectiveCost, Device, Link, collective_name};
use crate::graph::{Choice, Graph};
use crate::placement::Placement;
use crate::program::{Conversion, Implementation};
use crate::shares::Shares;
use crate::wellformed::validate_placement;

pub use affine::Affine;
use alike::{alike_axes, alike_devices};
use curve::Curve;
use exchange::{exchange, resplit};
pub use transfer::Transfer;

/// A conversion with the cheapest way to carry it out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConversionCost {
    /// What it is.
    pub conversion: Conversion,
    /// How it is carried out; none where nothing moves.
    pub implementation: Option<Implementation>,
    /// Seconds on the communication stream.
    pub seconds: f64,
}

/// The costs of a graph's instructions on a cluster, for fixed shares.
#[derive(Debug)]
pub struct CostModel<'a> {
    graph: &'a Graph,
    shares: &'a Shares,
    /// By device: the first one that is like it.
    alike: Vec<usize>,
    /// The first devices of each kind.
    kinds: Vec<usize>,
    /// By axis: the first one that is like it.
    alike_axes: Vec<usize>,
    /// Seconds of arithmetic, by [`Self::kernels`] of the operator, then by device; and last, those of memory traffic.
    curves: Vec<Vec<Curve>>,
    /// By operator: the row of its family and element type in [`Self::curves`].
    kernels: Vec<usize>,
    /// By axis: devices with a share.
    participants: Vec<f64>,
    /// By tensor: whether its all-reduces may be part of a bucket.
    gradients: Vec<bool>,
    /// Bytes of a bucket, at most.
    bucket: f64,
    link: Link,
    /// By [`slot`].
    measured: [Option<&'a CollectiveCost>; SLOTS],
    overlap: f64,
}

impl<'a> CostModel<'a> {
    /// Costs of a validated graph on a validated cluster; `shares` has one list per axis, each with one fraction
    /// per device.
    pub fn new(graph: &'a Graph, cluster: &'a Cluster, shares: &'a Shares) -> Self {
        let devices = cluster.devices();
        assert_eq!(shares.len(), graph.axes.len(), "one list of shares per axis");
        assert!(
            shares.iter().all(|list| list.len() == devices.len()),
            "one share per device"
        );
        let mut names: Vec<(Option<&str>, &str)> = Vec::new();
        let mut kernels = Vec::with_capacity(graph.operators.len());
        for operator in &graph.operators {
            let name = (operator.family.as_deref(), operator.dtype.as_str());
            let known = names.iter().position(|known| *known == name);
            kernels.push(known.unwrap_or(names.len()));
            if known.is_none() {
                names.push(name);
            }
        }
        let arithmetic = names.iter().map(|(family, dtype)| {
            let curve = |device: &&Device| Curve::arithmetic(device, *family, dtype);
            devices.iter().map(curve).collect()
        });
        let traffic = devices.iter().map(|device| Curve::traffic(device)).collect();
        let curves: Vec<Vec<Curve>> = arithmetic.chain(std::iter::once(traffic)).collect();
        let alike = alike_devices(&curves, shares, devices.len());
        let kinds = (0..devices.len()).filter(|&device| alike[device] == device).collect();
        let mut measured = [None; SLOTS];
        for conversion in [
            Conversion::AllGather,
            Conversion::AllReduce,
            Conversion::ReduceScatter,
            Conversion::AllToAll,
        ] {
            for how in conversion.implementations() {
                measured[slot(conversion, *how)] = cluster.collectives.get(&collective_name(conversion, *how));
            }
        }
        let participants = shares
            .iter()
            .map(|list| list.iter().filter(|share| **share > 0.0).count() as f64)
            .collect();
        let (link, overlap) = (cluster.bottleneck(), cluster.hidden());
        let gradients = buckets::gradients(graph);
        Self {
            graph,
            shares,
            alike,
            kinds,
            alike_axes: alike_axes(&graph.axes, shares),
            curves,
            kernels,
            participants,
            bucket: buckets::largest(graph, &gradients),
            gradients,
            link,
            measured,
            overlap,
        }
    }

    /// Number of devices.
    pub fn devices(&self) -> usize {
        self.alike.len()
    }

    /// By device: the first one that is as fast and has the same shares, so that everything costs the same there.
    pub fn alike(&self) -> &[usize] {
        &self.alike
    }

    /// The first device of each kind of devices that are alike.
    pub fn kinds(&self) -> &[usize] {
        &self.kinds
    }

    /// By device: the number of its kind in [`Self::kinds`].
    pub fn kind_of(&self) -> Vec<usize> {
        let number = |first: &usize| self.kinds.binary_search(first).expect("the first of its kind");
        self.alike.iter().map(number).collect()
    }

    /// By axis: the first one of the same size and shares, so that everything costs the same along it.
    pub fn alike_axes(&self) -> &[usize] {
        &self.alike_axes
    }

    /// Share of communication that hides behind computation, 0 to 1.
    pub fn overlap(&self) -> f64 {
        self.overlap
    }

    /// Seconds that an operator takes on a device under a choice.
    pub fn compute(&self, operator: usize, choice: &Choice, device: usize) -> f64 {
        self.compute_affine(operator, choice, device).value
    }

    /// Seconds that an operator takes on a device under a choice, by the active side of the roofline.
    ///
    /// On a device without a share the value is 0, and the slope is that of the steeper side.
    pub fn compute_affine(&self, operator: usize, choice: &Choice, device: usize) -> Affine {
        let node = &self.graph.operators[operator];
        if node.layout {
            return Affine::default();
        }
        let (whole, sharded) = self.bytes_touched(operator, choice);
        let arithmetic = &self.curves[self.kernels[operator]][device];
        let traffic = &self.curves[self.curves.len() - 1][device];
        let share = choice.axis.map_or(1.0, |axis| self.shares[axis][device]);
        let bytes = whole + sharded * share;
        let (one, other) = (arithmetic.at(node.flops * share), traffic.at(bytes));
        // Each further part starts another kernel; that each works on less makes none cheaper.
        let further = choice.parts() - 1.0;
        let computing = (one.constant + further * arithmetic.latency(), one.slope * node.flops);
        let moving = (
            other.constant + further * traffic.latency() + other.slope * whole,
            other.slope * sharded,
        );
        let Some(axis) = choice.axis else {
            return Affine::constant((computing.0 + computing.1).max(moving.0 + moving.1));
        };
        if share == 0.0 {
            let steeper = (arithmetic.limit() * node.flops).max(traffic.limit() * sharded);
            return Affine::line(0.0, axis, steeper, 0.0);
        }
        let (constant, slope) = if computing.0 + computing.1 * share >= moving.0 + moving.1 * share {
            computing
        } else {
            moving
        };
        Affine::line(constant, axis, slope, share)
    }

    /// Bytes that the whole operator touches of operands and results that are not sharded, and of those that are.
    fn bytes_touched(&self, operator: usize, choice: &Choice) -> (f64, f64) {
        let node = &self.graph.operators[operator];
        let placements = choice.inputs.iter().chain(&choice.outputs);
        let bytes = node.operand_bytes.iter().chain(&node.result_bytes);
        let (mut whole, mut sharded) = (0.0, 0.0);
        for (placement, bytes) in placements.zip(bytes) {
            match placement.as_slice() {
                [Placement::Shard(_)] => sharded += bytes,
                _ => whole += bytes,
            }
        }
        (whole, sharded)
    }

    /// The cheapest single step from one placement of a tensor to another; ties go to the earlier of padded,
    /// grouped, exchange. An all-reduce that may be part of a bucket pays for its part of the largest bucket's latency,
    /// which is no more than what it costs in any.
    ///
    /// `None` where no step leads there, or the tensor cannot lie so.
    pub fn conversion(&self, tensor: usize, from: &[Placement], to: &[Placement]) -> Option<ConversionCost> {
        let node = &self.graph.tensors[tensor];
        let conversion = Conversion::between(self.graph, tensor, from, to)?;
        if validate_placement(node, from).is_err() || validate_placement(node, to).is_err() {
            return None;
        }
        let free = ConversionCost {
            conversion,
            implementation: None,
            seconds: 0.0,
        };
        let costs = conversion.implementations().iter().map(|how| ConversionCost {
            conversion,
            implementation: Some(*how),
            seconds: self.collective(tensor, from, to, *how) - self.shared_latency(tensor, conversion),
        });
        // The first of equal minima is taken.
        Some(
            costs
                .min_by(|one, other| one.seconds.total_cmp(&other.seconds))
                .unwrap_or(free),
        )
    }

    /// Seconds of a collective that converts a tensor, carried out in a given way.
    pub fn collective(&self, tensor: usize, from: &[Placement], to: &[Placement], how: Implementation) -> f64 {
        self.transfer(&Transfer::conversion(self.graph, tensor, from, to, how))
    }

    /// Whether all-reduces of a tensor may be part of a bucket.
    pub fn in_buckets(&self, tensor: usize) -> bool {
        self.gradients[tensor]
    }

    /// Seconds and, per byte, further seconds of an all-reduce.
    pub fn all_reduce(&self) -> (f64, f64) {
        let seconds = |bytes: f64| {
            self.transfer(&Transfer {
                conversion: Conversion::AllReduce,
                implementation: Implementation::Builtin,
                bytes,
                axis: None,
                target: None,
                leads: false,
            })
        };
        let latency = seconds(0.0);
        (latency, (seconds(buckets::LARGEST) - latency) / buckets::LARGEST)
    }

    /// The part of a latency that an all-reduce in a bucket pays for, at least.
    pub fn part_of_latency(&self, tensor: usize) -> f64 {
        let bytes = self.graph.tensors[tensor].bytes;
        if bytes < self.bucket { bytes / self.bucket } else { 1.0 }
    }

    /// What others in the largest bucket pay of a collective's latency.
    fn shared_latency(&self, tensor: usize, conversion: Conversion) -> f64 {
        if conversion != Conversion::AllReduce || !self.gradients[tensor] {
            return 0.0;
        }
        self.all_reduce().0 * (1.0 - self.part_of_latency(tensor))
    }

    /// Seconds of the collectives inside a choice.
    pub fn inside(&self, choice: &Choice) -> f64 {
        let transfers = choice.collectives.iter().map(Transfer::inside);
        transfers.map(|transfer| self.transfer(&transfer)).sum()
    }

    /// Whether a collective moves nothing: a re-split between classes of equal shares.
    pub fn is_idle(&self, transfer: &Transfer) -> bool {
        let shares = [transfer.axis, transfer.target].map(|axis| axis.map(|axis| &self.shares[axis]));
        transfer.conversion == Conversion::Resplit && shares[0] == shares[1]
    }

    /// Seconds of a collective.
    pub fn transfer(&self, transfer: &Transfer) -> f64 {
        let kinds = self.kinds.iter();
        kinds
            .map(|&device| self.transfer_affine(transfer, device).value)
            .fold(0.0, f64::max)
    }

    /// Seconds that a collective needs on account of one device; the collective takes as long as the greatest of
    /// them.
    pub fn transfer_affine(&self, transfer: &Transfer, device: usize) -> Affine {
        if self.devices() == 1 || self.is_idle(transfer) {
            return Affine::default();
        }
        let Transfer {
            conversion,
            implementation: how,
            ..
        } = *transfer;
        let participants = transfer
            .axis
            .map_or(self.devices() as f64, |axis| self.participants[axis]);
        let (latency, bandwidth) = match self.measured[slot(conversion, how)] {
            Some(CollectiveCost { latency, bandwidth }) if how == Implementation::Grouped => {
                // Measured with a share on every device; a device without one is left out.
                (latency * participants / self.devices() as f64, *bandwidth)
            }
            Some(CollectiveCost { latency, bandwidth }) => (*latency, *bandwidth),
            None => (
                self.link.latency * self.messages(conversion, how, participants),
                self.link.bandwidth,
            ),
        };
        self.bytes_moved(transfer, device).scaled(1.0 / bandwidth, latency)
    }

    /// How many latencies a collective waits for.
    fn messages(&self, conversion: Conversion, how: Implementation, participants: f64) -> f64 {
        let others = (self.devices() - 1) as f64;
        match (conversion, how) {
            (Conversion::AllReduce, _) => 2.0 * others,
            (_, Implementation::Grouped) => {
                // One broadcast or reduction per participant, each along a binary tree.
                participants * f64::from(usize::BITS - (self.devices() - 1).leading_zeros())
            }
            _ => others,
        }
    }

    /// Bytes that a device makes the collective move.
    ///
    /// Exchanges: what it sends or what it receives, whichever is more. A gather sends its share to all others and
    /// receives the rest; a scatter of summands sends the shares of all others and receives its own from each. Shares
    /// that are passed on round all devices: each device's makes as many steps as there are others.
    fn bytes_moved(&self, transfer: &Transfer, device: usize) -> Affine {
        let (bytes, others) = (transfer.bytes, (self.devices() - 1) as f64);
        if transfer.conversion == Conversion::AllReduce {
            return Affine::constant(2.0 * others / self.devices() as f64 * bytes);
        }
        let Some(axis) = transfer.axis else {
            return Affine::constant(others * bytes);
        };
        let share = self.shares[axis][device];
        if let (Conversion::Resplit, Some(target)) = (transfer.conversion, transfer.target) {
            return resplit(bytes, [axis, target], self.shares, &self.alike, device);
        }
        if let Some(target) = transfer.target {
            return exchange(bytes, (axis, share), (target, self.shares[target][device]));
        }
        match transfer.implementation {
            Implementation::Padded => Affine::line(0.0, axis, others * bytes, share),
            Implementation::Grouped => Affine::constant(bytes),
            _ if transfer.conversion == Conversion::AllToAll => Affine::line(0.0, axis, others * bytes, share),
            _ if others * share >= 1.0 - share => Affine::line(0.0, axis, others * bytes, share),
            _ => Affine::line(bytes, axis, -bytes, share),
        }
    }
}

/// Number of pairs of conversion and implementation that may be measured.
const SLOTS: usize = 16;

fn slot(conversion: Conversion, how: Implementation) -> usize {
    // What is measured of exchanges between axes holds for those between classes of one axis.
    let conversion = match conversion {
        Conversion::Resplit => Conversion::AllToAll,
        other => other,
    };
    let (conversion, how) = (conversion as usize, how as usize);
    debug_assert!(conversion < 4 && how < 4, "only collectives are measured");
    conversion * 4 + how
}

#[cfg(test)]
mod tests;
