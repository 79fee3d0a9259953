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
    /// Seconds of these copies on a device, at the rate of its memory for large amounts. `measured` tells whether the
    /// collective has been measured.
    pub(super) fn packing(&self, transfer: &Transfer, device: usize, measured: bool) -> Affine {
        let (Some(axis), false) = (transfer.axis, transfer.leads) else {
            return Affine::default();
        };
        let traffic = &self.curves[self.curves.len() - 1][device];
        let seconds = TRAFFIC * traffic.limit() * transfer.bytes;
        let share = self.shares[axis][device];
        match (transfer.conversion, transfer.implementation, transfer.target) {
            // Along the leading axis, shares are copied once for each device: as much, and so in what was measured.
            (Conversion::AllGather, Implementation::Exchange, _) if measured => Affine::default(),
            // Along the leading axis, the own share is copied to its place.
            (Conversion::AllGather, Implementation::Grouped, _) => Affine::line(seconds, axis, -seconds, share),
            // Along any axis, sums are made in a copy.
            (Conversion::ReduceScatter, Implementation::Grouped, _) => Affine::default(),
            (Conversion::AllGather | Conversion::ReduceScatter, _, _) => Affine::constant(seconds),
            // Where either axis is the leading one, only what is sent or what was received is copied.
            (Conversion::AllToAll, _, Some(target)) => Affine::line(0.0, target, seconds, self.shares[target][device]),
            _ => Affine::default(),
        }
    }
}
