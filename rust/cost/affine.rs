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

    /// The sum of both.
    ///
    /// # Panics
    /// If it depends on more than two axes.
    pub(super) fn plus(mut self, other: Self) -> Self {
        self.value += other.value;
        for (axis, slope) in other.slopes.into_iter().flatten() {
            let place = self.slopes.iter().position(|own| own.is_some_and(|own| own.0 == axis));
            let place = place.or_else(|| self.slopes.iter().position(Option::is_none));
            let own = &mut self.slopes[place.expect("two axes at most")];
            *own = Some((axis, own.map_or(0.0, |own| own.1) + slope));
        }
        self
    }
}
