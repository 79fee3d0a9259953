//! Warm starts: what the solve of one problem tells about another one of the same shape, whose costs are not far off.

use rustc_hash::FxHashMap;

use super::certificate::{Certificate, Step};
use super::marginals::Lane;
use super::remainder::Remainder;

/// What earlier solves leave for later ones. The default knows nothing.
#[derive(Clone, Debug, Default)]
pub struct WarmStart {
    last: Option<Certificate>,
}

impl WarmStart {
    /// Takes up what a solve has found.
    pub fn learn(&mut self, certificate: Certificate) {
        self.last = Some(certificate);
    }

    /// Why no assignment of the problem of the last solve costs less than a bound; none before any solve.
    pub fn certificate(&self) -> Option<&Certificate> {
        self.last.as_ref()
    }

    /// The best assignment of the last problem, if it gives each variable of this one a label of its domain.
    pub(super) fn assignment(&self, domains: &[usize]) -> Option<&[usize]> {
        let assignment = &self.last.as_ref()?.assignment[..];
        let fits = |(label, size): (&usize, &usize)| label < size;
        (assignment.len() == domains.len() && assignment.iter().zip(domains).all(fits)).then_some(assignment)
    }

    /// Moves costs from tables to variables as the last solve did: the bound begins about where that one ended. Any
    /// moves would be allowed, so nothing is lost where the problems differ.
    pub(super) fn apply(&self, remainder: &mut Remainder, domains: &[usize]) {
        let moved = self.moved(domains);
        for index in 0..remainder.tables.len() {
            let table = &remainder.tables[index];
            let Some(moved) = moved.get(&table.scope) else { continue };
            let mut lane = Lane::new(table);
            for (axis, &variable) in table.scope.iter().enumerate() {
                let costs = remainder.labels[variable].iter().map(|&label| moved[axis][label]);
                for (unary, cost) in remainder.unary[variable].iter_mut().zip(costs.clone()) {
                    *unary += cost;
                }
                lane.move_out(&table.shape, axis, costs);
            }
            remainder.settle(index, lane);
        }
    }

    /// By the scope of a table, what the last solve moved out of it: by variable, one cost for each label.
    fn moved(&self, domains: &[usize]) -> FxHashMap<Vec<usize>, Vec<Vec<f64>>> {
        let mut moved: FxHashMap<Vec<usize>, Vec<Vec<f64>>> = FxHashMap::default();
        let mut labels: Vec<Vec<usize>> = domains.iter().map(|&size| (0..size).collect()).collect();
        let Some(last) = self.last.as_ref().filter(|last| last.assignment.len() == domains.len()) else {
            return moved;
        };
        for step in &last.steps {
            match step {
                Step::Drop {
                    variable,
                    labels: dropped,
                } => labels[*variable].retain(|label| !dropped.contains(label)),
                Step::Shift { scope, costs } => {
                    // Domains of other sizes than the last problem's: other numbers mean other things.
                    if scope.iter().map(|&variable| labels[variable].len()).sum::<usize>() != costs.len() {
                        continue;
                    }
                    let zeros = || scope.iter().map(|&variable| vec![0.0; domains[variable]]).collect();
                    let sums = moved.entry(scope.clone()).or_insert_with(zeros);
                    let mut costs = costs.iter();
                    for (sums, &variable) in sums.iter_mut().zip(scope) {
                        for (&label, cost) in labels[variable].iter().zip(&mut costs) {
                            sums[label] += cost;
                        }
                    }
                }
                Step::Fix { .. } | Step::Join { .. } | Step::Eliminate { .. } => {}
            }
        }
        moved
    }
}
