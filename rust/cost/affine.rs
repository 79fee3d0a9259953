//! Costs as functions of shares.

/// A function of one device's shares: its value at the given shares, and its slopes by axis there (at most two
/// matter).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Affine {
    /// Value at the shares that the cost model was made for.
    pub value: f64,
    /// Axis, and change of the value per unit share of that axis on this device.
    pub slopes: [Option<(usize, f64)>; 2],
}

impl Affine {
    /// The same for all shares.
    pub fn constant(value: f64) -> Self {
        Self {
            value,
            slopes: [None, None],
        }
    }

    /// `constant + slope * share`.
    pub(super) fn line(constant: f64, axis: usize, slope: f64, share: f64) -> Self {
        Self {
            value: constant + slope * share,
            slopes: [Some((axis, slope)), None],
        }
    }

    /// Scaled by `factor`, then moved by `offset`.
    pub(crate) fn scaled(self, factor: f64, offset: f64) -> Self {
        let slopes = self
            .slopes
            .map(|slope| slope.map(|(axis, slope)| (axis, slope * factor)));
        Self {
            value: self.value * factor + offset,
            slopes,
        }
    }
}
