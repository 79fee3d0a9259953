//! Seconds as a function of an amount of work, FLOP or bytes: continuous and piecewise linear.

use crate::cluster::Device;

/// Such a function.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    /// At least one, by rising amounts; the first begins at 0.
    pieces: Vec<Piece>,
}

/// `constant + slope * amount` from an amount on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    from: f64,
    pub(super) constant: f64,
    pub(super) slope: f64,
}

impl Curve {
    /// Of a family of operators in an element type, as measured, or by the device's figures.
    ///
    /// # Panics
    /// If the device has no default speed; a validated one has.
    pub(super) fn arithmetic(device: &Device, family: Option<&str>, dtype: &str) -> Self {
        let of = |family: &str| device.measured.get(&format!("{family}/{dtype}"));
        // Clusters measured before a backward had a family of its own have that of the forward for both.
        let measured = family.and_then(|family| of(family).or_else(|| of(family.strip_suffix("_backward")?)));
        measured.map_or_else(
            || {
                let flops = device.flops_of(dtype).expect("a validated cluster has a default");
                Self::line(device.launch_overhead, flops)
            },
            |points| Self::through(points),
        )
    }

    /// What operators of a family take beside their arithmetic, by the bytes of operands and results, where that has
    /// been measured: products copy their operands into the order that suits them. Else nothing.
    pub(super) fn beside(device: &Device, family: Option<&str>, dtype: &str) -> Self {
        let measured = family.and_then(|family| device.measured.get(&format!("{family}_operands/{dtype}")));
        measured.map_or_else(|| Self::line(0.0, f64::INFINITY), |points| Self::through(points))
    }

    /// Of work that is bound by memory.
    pub(super) fn traffic(device: &Device) -> Self {
        device.measured.get("memory").map_or_else(
            || Self::line(device.launch_overhead, device.memory_bandwidth),
            |points| Self::through(points),
        )
    }

    fn line(latency: f64, rate: f64) -> Self {
        Self {
            pieces: vec![Piece {
                from: 0.0,
                constant: latency,
                slope: 1.0 / rate,
            }],
        }
    }

    /// Through the points; before the first one as long as there, behind the last one at the rate of the last piece.
    fn through(points: &[(f64, f64)]) -> Self {
        let first = Piece {
            from: 0.0,
            constant: points[0].1,
            slope: 0.0,
        };
        let pieces = points.windows(2).map(|pair| {
            let slope = (pair[1].1 - pair[0].1) / (pair[1].0 - pair[0].0);
            Piece {
                from: pair[0].0,
                constant: pair[0].1 - slope * pair[0].0,
                slope,
            }
        });
        Self {
            pieces: std::iter::once(first).chain(pieces).collect(),
        }
    }

    /// The piece at an amount.
    pub(super) fn at(&self, amount: f64) -> Piece {
        let after = self.pieces.partition_point(|piece| piece.from <= amount);
        self.pieces[after.max(1) - 1]
    }

    /// Seconds of the smallest amounts.
    pub(super) fn latency(&self) -> f64 {
        self.pieces[0].constant
    }

    /// Seconds per amount of large ones.
    pub(super) fn limit(&self) -> f64 {
        self.pieces[self.pieces.len() - 1].slope
    }

    /// All that it is made of, to compare it by.
    pub(super) fn figures(&self) -> impl Iterator<Item = f64> {
        self.pieces
            .iter()
            .flat_map(|piece| [piece.from, piece.constant, piece.slope])
    }
}
