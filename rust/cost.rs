//! What instructions cost, for fixed shares. Search, linear program and simulator all ask here.
//!
//! * Computation is a roofline: `launch_overhead + max(flops * f / F, bytes / memory_bandwidth)`, with `f` the
//!   device's share of the axis that the work is shared along (1 where there is none) and `F` its speed for the
//!   operator's element type. Where a device has been measured, either side is a curve through the measured times of
//!   the operator's family, and to `flops * f / F` is added what has been measured of its operands' bytes. Of the
//!   bytes, those of sharded operands and results scale by `f`. A device without a share does nothing, and layout
//!   operators cost nothing.
//! * A collective is `latency + bytes / bandwidth` of the bytes that the slowest rank moves. Latency and bandwidth
//!   are those of the cluster's bottleneck link, or measured ([`crate::cluster::Cluster::collectives`]). Where all devices
//!   send to all others, those of a host share the host's link ([`crate::cluster::Cluster::exchange_bandwidth`]).
//!   Along another than the leading axis, more is copied on either side, at the rate of the device's memory.
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
mod collective;
mod curve;
mod exchange;
mod packing;
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
use collective::{SLOTS, slot};
use curve::Curve;
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
    /// Seconds beside arithmetic by bytes, by [`Self::kernels`] of the operator, then by device.
    beside: Vec<Vec<Curve>>,
    /// By operator: the row of its family and element type in [`Self::curves`].
    kernels: Vec<usize>,
    /// By axis: devices with a share.
    participants: Vec<f64>,
    /// By tensor: whether its all-reduces may be part of a bucket.
    gradients: Vec<bool>,
    /// Bytes of a bucket, at most.
    bucket: f64,
    /// Seconds of an all-reduce of nothing.
    all_reduce_latency: f64,
    link: Link,
    /// Bytes per second of a device where all send to all others.
    exchange_bandwidth: f64,
    /// By [`slot`].
    measured: [Option<&'a CollectiveCost>; SLOTS],
    overlap: f64,
    contention: f64,
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
        let beside: Vec<Vec<Curve>> = names
            .iter()
            .map(|(family, dtype)| {
                devices
                    .iter()
                    .map(|device| Curve::beside(device, *family, dtype))
                    .collect()
            })
            .collect();
        let traffic = devices.iter().map(|device| Curve::traffic(device)).collect();
        let curves: Vec<Vec<Curve>> = arithmetic.chain(std::iter::once(traffic)).collect();
        let alike = alike_devices(curves.iter().chain(&beside), shares, devices.len());
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
        let mut model = Self {
            graph,
            shares,
            alike,
            kinds,
            alike_axes: alike_axes(&graph.axes, shares),
            curves,
            beside,
            kernels,
            participants,
            bucket: buckets::largest(graph, &gradients),
            gradients,
            all_reduce_latency: 0.0,
            link,
            exchange_bandwidth: cluster.exchange_bandwidth(),
            measured,
            overlap,
            contention: cluster.contention,
        };
        model.all_reduce_latency = model.transfer(&Transfer::all_reduce(0.0));
        model
    }

    /// The graph.
    pub fn graph(&self) -> &'a Graph {
        self.graph
    }

    /// Fractions by axis and device.
    pub fn shares(&self) -> &'a Shares {
        self.shares
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
        let beside = &self.beside[self.kernels[operator]][device];
        let traffic = &self.curves[self.curves.len() - 1][device];
        let share = choice.axis.map_or(1.0, |axis| self.shares[axis][device]);
        let bytes = whole + sharded * share;
        let (one, more, other) = (arithmetic.at(node.flops * share), beside.at(bytes), traffic.at(bytes));
        // Each further part starts another kernel; that each works on less makes none cheaper.
        let further = choice.parts() - 1.0;
        // Seconds and slope of either side. A device with all of an axis takes exactly as long as one that shares nothing.
        let computing = (
            one.constant
                + one.slope * (node.flops * share)
                + more.constant
                + more.slope * bytes
                + further * (arithmetic.latency() + beside.latency()),
            one.slope * node.flops + more.slope * sharded,
        );
        let moving = (
            other.constant + other.slope * bytes + further * traffic.latency(),
            other.slope * sharded,
        );
        let (seconds, slope) = if computing.0 >= moving.0 { computing } else { moving };
        let Some(axis) = choice.axis else {
            return Affine::constant(seconds);
        };
        if share == 0.0 {
            let computing = arithmetic.limit() * node.flops + beside.limit() * sharded;
            return Affine::line(0.0, axis, computing.max(traffic.limit() * sharded), 0.0);
        }
        Affine {
            value: seconds,
            slopes: [Some((axis, slope)), None],
        }
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
}

#[cfg(test)]
mod tests;
