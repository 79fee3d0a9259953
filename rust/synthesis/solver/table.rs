//! Dense cost tables over sorted scopes, and the few operations on them that the algorithms share.

use super::problem::Factor;
use super::rows::minimum;

/// Costs over the live labels of the variables in `scope`, row-major (last variable fastest).
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// Variables in ascending order.
    pub scope: Vec<usize>,
    /// Number of labels of each variable of the scope.
    pub shape: Vec<usize>,
    pub costs: Vec<f64>,
}

impl Table {
    /// A factor with its scope sorted, and without variables that have only one label.
    pub fn from_factor(factor: &Factor, domains: &[usize]) -> Table {
        let mut order: Vec<usize> = (0..factor.scope.len())
            .filter(|&i| domains[factor.scope[i]] > 1)
            .collect();
        order.sort_unstable_by_key(|&i| factor.scope[i]);
        let scope: Vec<usize> = order.iter().map(|&i| factor.scope[i]).collect();
        let shape: Vec<usize> = scope.iter().map(|&v| domains[v]).collect();
        if order.is_sorted() {
            return Table {
                scope,
                shape,
                costs: factor.costs.clone(),
            };
        }
        let all: Vec<usize> = factor.scope.iter().map(|&v| domains[v]).collect();
        let strides = row_major(&all);
        let strides: Vec<usize> = order.iter().map(|&i| strides[i]).collect();
        let costs = permuted(&factor.costs, &shape, &strides);
        Table { scope, shape, costs }
    }

    /// The costs in another order of the variables: `shape` and the table's strides in that order.
    pub fn permuted(&self, shape: &[usize], strides: &[usize]) -> Vec<f64> {
        permuted(&self.costs, shape, strides)
    }

    /// Position of a variable of the scope.
    pub fn axis(&self, variable: usize) -> usize {
        self.scope
            .iter()
            .position(|&v| v == variable)
            .expect("the variable is in the scope")
    }

    pub fn minimum(&self) -> f64 {
        minimum(&self.costs)
    }

    /// Adds a table whose scope is part of this one's.
    pub fn add(&mut self, other: &Table) {
        if self.scope == other.scope {
            for (cost, &addend) in self.costs.iter_mut().zip(&other.costs) {
                *cost += addend;
            }
            return;
        }
        let mut walk = Walk::new(&self.shape, vec![other.strides_in(&self.scope)]);
        for cost in &mut self.costs {
            *cost += other.costs[walk.offsets[0]];
            walk.advance();
        }
    }

    /// For each variable of `scope`, how far its next label lies in this table; 0 where the table lacks it.
    pub fn strides_in(&self, scope: &[usize]) -> Vec<usize> {
        let strides = row_major(&self.shape);
        let stride = |v: &usize| self.scope.binary_search(v).map_or(0, |axis| strides[axis]);
        scope.iter().map(stride).collect()
    }

    /// The part of the table where each variable has one of its kept labels (`keep` by variable; `None` keeps all).
    /// Variables left with one label leave the scope.
    pub fn select(&self, keep: &[Option<Vec<usize>>]) -> Table {
        let kept: Vec<Option<&[usize]>> = self.scope.iter().map(|&v| keep[v].as_deref()).collect();
        let sizes: Vec<usize> = kept
            .iter()
            .zip(&self.shape)
            .map(|(k, &size)| k.map_or(size, <[usize]>::len))
            .collect();
        let mut costs = Vec::with_capacity(sizes.iter().product());
        self.copy_selected(&kept, 0, 0, &row_major(&self.shape), &mut costs);
        let axes: Vec<usize> = (0..sizes.len()).filter(|&axis| sizes[axis] > 1).collect();
        Table {
            scope: axes.iter().map(|&axis| self.scope[axis]).collect(),
            shape: axes.iter().map(|&axis| sizes[axis]).collect(),
            costs,
        }
    }

    fn copy_selected(
        &self,
        kept: &[Option<&[usize]>],
        axis: usize,
        offset: usize,
        strides: &[usize],
        costs: &mut Vec<f64>,
    ) {
        if kept[axis..].iter().all(Option::is_none) {
            let size: usize = self.shape[axis..].iter().product();
            costs.extend_from_slice(&self.costs[offset..offset + size]);
        } else if let Some(labels) = kept[axis] {
            for &label in labels {
                self.copy_selected(kept, axis + 1, offset + label * strides[axis], strides, costs);
            }
        } else {
            for label in 0..self.shape[axis] {
                self.copy_selected(kept, axis + 1, offset + label * strides[axis], strides, costs);
            }
        }
    }
}

/// Strides of a row-major table.
pub(super) fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// Costs in row-major order of a shape, whose strides in `costs` are given.
fn permuted(costs: &[f64], shape: &[usize], strides: &[usize]) -> Vec<f64> {
    // One walk over all but the last two axes.
    let before = shape.len().saturating_sub(2);
    let ((outer, inner), (outer_strides, inner_strides)) = (shape.split_at(before), strides.split_at(before));
    let ([rows, width], [step, stride]) = match (inner, inner_strides) {
        (&[rows, width], &[step, stride]) => ([rows, width], [step, stride]),
        (&[width], &[stride]) => ([1, width], [0, stride]),
        _ => return costs.to_vec(),
    };
    let mut walk = Walk::new(outer, vec![outer_strides.to_vec()]);
    let mut result = vec![0.0; costs.len()];
    for block in result.chunks_exact_mut(rows * width) {
        let from = &costs[walk.offsets[0]..];
        for (row, block) in block.chunks_exact_mut(width).enumerate() {
            for (label, cost) in block.iter_mut().enumerate() {
                *cost = from[row * step + label * stride];
            }
        }
        walk.advance();
    }
    result
}

/// Visits all combinations of labels in row-major order, keeping the offset into each of several tables.
pub(super) struct Walk {
    shape: Vec<usize>,
    labels: Vec<usize>,
    strides: Vec<Vec<usize>>,
    pub offsets: Vec<usize>,
}

impl Walk {
    /// `strides[table][axis]` says how far a label of the axis moves in the table.
    pub fn new(shape: &[usize], strides: Vec<Vec<usize>>) -> Walk {
        Walk {
            shape: shape.to_vec(),
            labels: vec![0; shape.len()],
            offsets: vec![0; strides.len()],
            strides,
        }
    }

    /// Goes to the next combination; after the last one, back to the first.
    pub fn advance(&mut self) {
        for axis in (0..self.shape.len()).rev() {
            self.labels[axis] += 1;
            if self.labels[axis] < self.shape[axis] {
                for (offset, strides) in self.offsets.iter_mut().zip(&self.strides) {
                    *offset += strides[axis];
                }
                return;
            }
            self.labels[axis] = 0;
            for (offset, strides) in self.offsets.iter_mut().zip(&self.strides) {
                *offset -= strides[axis] * (self.shape[axis] - 1);
            }
        }
    }
}
