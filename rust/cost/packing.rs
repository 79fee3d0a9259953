//! What collectives copy along another than the leading axis, beside what they copy along that.
//!
//! There the shares do not lie one after another in memory: what is scattered is laid out first, and what was gathered
//! is put together (`tests/runtime/test_packing.py` counts the copies). What they copy along the leading axis is in what
//! links and collectives are measured by.

use super::{Affine, CostModel, Transfer};
use crate::program::{Conversion, Implementation};

/// Bytes of memory that are read and written for each byte that is copied.
const TRAFFIC: f64 = 2.0;

impl CostModel<'_> {
    /// Seconds of these copies on a device, as its memory takes for so many bytes. `measured` tells whether the collective
    /// has been measured.
    pub(super) fn packing(&self, transfer: &Transfer, device: usize, measured: bool) -> Affine {
        let (Some(axis), false) = (transfer.axis, transfer.leads) else {
            return Affine::default();
        };
        let traffic = &self.curves[self.curves.len() - 1][device];
        // The part `offset + factor * share` of the tensor. What starting it costs is in what links and collectives are
        // measured by.
        let copy = |axis: usize, offset: f64, factor: f64| {
            let (share, whole) = (self.shares[axis][device], TRAFFIC * transfer.bytes);
            let piece = traffic.at(whole * (offset + factor * share));
            let seconds = piece.slope * whole;
            let constant = piece.constant - traffic.latency() + offset * seconds;
            match factor == 0.0 {
                true => Affine::constant(constant),
                false => Affine::line(constant, axis, factor * seconds, share),
            }
        };
        match (transfer.conversion, transfer.implementation, transfer.target) {
            // Along the leading axis, shares are copied once for each device: as much, and so in what was measured.
            (Conversion::AllGather, Implementation::Exchange, _) if measured => Affine::default(),
            // Along the leading axis, the own share is copied to its place.
            (Conversion::AllGather, Implementation::Grouped, _) => copy(axis, 1.0, -1.0),
            // Along any axis, sums are made in a copy.
            (Conversion::ReduceScatter, Implementation::Grouped, _) => Affine::default(),
            (Conversion::AllGather | Conversion::ReduceScatter, _, _) => copy(axis, 1.0, 0.0),
            // Where either axis is the leading one, only what is sent or what was received is copied.
            (Conversion::AllToAll, _, Some(target)) => copy(target, 0.0, 1.0),
            _ => Affine::default(),
        }
    }
}
