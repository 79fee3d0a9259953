//! What collectives cost.

use super::exchange::{exchange, resplit};
use super::{Affine, CostModel, Transfer};
use crate::buckets;
use crate::cluster::CollectiveCost;
use crate::graph::Choice;
use crate::placement::Placement;
use crate::program::{Conversion, Implementation};

impl CostModel<'_> {
    /// Seconds of a collective that converts a tensor, carried out in a given way.
    pub fn collective(&self, tensor: usize, from: &[Placement], to: &[Placement], how: Implementation) -> f64 {
        self.transfer(&Transfer::conversion(self.graph, tensor, from, to, how))
    }

    /// Whether all-reduces of a tensor may be part of a bucket.
    pub fn in_buckets(&self, tensor: usize) -> bool {
        self.gradients[tensor]
    }

    /// Seconds and, per byte, further seconds of an all-reduce beside computation.
    pub fn all_reduce(&self) -> (f64, f64) {
        let (latency, bytes) = (self.all_reduce_latency, buckets::LARGEST);
        let per_byte = (self.transfer(&Transfer::all_reduce(bytes)) - latency) / bytes;
        (latency + self.contention, per_byte)
    }

    /// Seconds by which a collective takes longer where computation goes on meanwhile.
    pub fn contention(&self) -> f64 {
        self.contention
    }

    /// The part of a latency that an all-reduce in a bucket pays for, at least.
    pub fn part_of_latency(&self, tensor: usize) -> f64 {
        let bytes = self.graph.tensors[tensor].bytes;
        if bytes < self.bucket { bytes / self.bucket } else { 1.0 }
    }

    /// What others in the largest bucket pay of a collective's latency.
    pub(super) fn shared_latency(&self, tensor: usize, conversion: Conversion) -> f64 {
        if conversion != Conversion::AllReduce || !self.gradients[tensor] {
            return 0.0;
        }
        self.all_reduce_latency * (1.0 - self.part_of_latency(tensor))
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
        let measured = self.measured[slot(conversion, how)];
        let (latency, bandwidth) = match measured {
            Some(CollectiveCost { latency, bandwidth, .. }) if how == Implementation::Grouped => {
                // Measured with a share on every device; a device without one is left out.
                (latency * participants / self.devices() as f64, *bandwidth)
            }
            Some(CollectiveCost { latency, bandwidth, .. }) => (*latency, *bandwidth),
            None => (
                self.link.latency * self.messages(conversion, how, participants),
                if transfer.spreads() {
                    self.exchange_bandwidth
                } else {
                    self.link.bandwidth
                },
            ),
        };
        self.bytes_moved(transfer, device)
            .scaled(1.0 / bandwidth, latency)
            .plus(self.packing(transfer, device, measured.is_some()))
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
pub(super) const SLOTS: usize = 16;

pub(super) fn slot(conversion: Conversion, how: Implementation) -> usize {
    // What is measured of exchanges between axes holds for those between classes of one axis.
    let conversion = match conversion {
        Conversion::Resplit => Conversion::AllToAll,
        other => other,
    };
    let (conversion, how) = (conversion as usize, how as usize);
    debug_assert!(conversion < 4 && how < 4, "only collectives are measured");
    conversion * 4 + how
}
