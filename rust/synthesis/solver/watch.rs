//! Someone who looks on while a solve runs, and may stop it; and the clock that may end it.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::time::Instant;

use super::solution::SolveError;

/// How far a solve has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// No assignment costs less; never falls while a solve runs.
    pub bound: f64,
    /// Cost of the best assignment so far, infinite before the first; never rises.
    pub cost: f64,
    /// Table entries visited.
    pub work: u64,
    /// Variables that are not yet decided.
    pub variables: usize,
}

/// Whether the solve goes on.
pub type Observer<'a> = dyn Fn(&Progress) -> ControlFlow<()> + 'a;

/// Table entries between two looks: well under a millisecond of work.
const INTERVAL: u64 = 1 << 16;

/// Calls an observer again and again while a solve runs, wherever it is, and once at its end. What is observed never
/// changes what is found, unless the observer stops it.
pub struct Watch<'a> {
    observer: Option<&'a Observer<'a>>,
    progress: Cell<Progress>,
    /// Table entries since the last look.
    entries: Cell<u64>,
    stopped: Cell<bool>,
    deadline: Cell<Option<Instant>>,
    late: Cell<bool>,
}

impl Default for Watch<'_> {
    fn default() -> Self {
        Watch {
            observer: None,
            progress: Cell::new(Progress {
                bound: f64::NEG_INFINITY,
                cost: f64::INFINITY,
                work: 0,
                variables: 0,
            }),
            entries: Cell::new(0),
            stopped: Cell::new(false),
            deadline: Cell::new(None),
            late: Cell::new(false),
        }
    }
}

impl<'a> Watch<'a> {
    /// Calls `observer` about every 65,536 table entries; a solve that it breaks ends in
    /// [`SolveError::Stopped`].
    pub fn new(observer: &'a Observer<'a>) -> Self {
        Watch {
            observer: Some(observer),
            ..Watch::default()
        }
    }

    /// Whether the observer has stopped the solve: whatever runs should then return, its results are thrown away.
    pub fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    /// Whether to return, leaving what was reached whole: the observer has stopped the solve, or its time is over.
    pub(super) fn is_over(&self) -> bool {
        self.is_stopped() || self.late.get()
    }

    /// Looks at the clock as well from now on. A time that no clock reaches is none.
    pub(super) fn end_at(&self, deadline: Option<Instant>) {
        self.deadline.set(deadline);
    }

    /// # Errors
    /// [`SolveError::Stopped`] if the observer has stopped the solve.
    pub(super) fn check(&self) -> Result<(), SolveError> {
        if self.is_stopped() {
            Err(SolveError::Stopped)
        } else {
            Ok(())
        }
    }

    /// Notes that about so many table entries were visited. Returns [`Self::is_over`].
    pub(crate) fn visited(&self, entries: u64) -> bool {
        let entries = self.entries.get() + entries;
        self.entries.set(entries);
        if entries >= INTERVAL {
            self.look();
        }
        self.is_over()
    }

    /// Looks at the clock and calls the observer now.
    pub(crate) fn look(&self) {
        self.entries.set(0);
        if self.deadline.get().is_some_and(|deadline| Instant::now() >= deadline) {
            self.late.set(true);
        }
        if let Some(observer) = self.observer
            && !self.is_stopped()
        {
            self.stopped.set(observer(&self.progress.get()).is_break());
        }
    }

    /// Notes the work done so far.
    pub(super) fn note_work(&self, work: u64) {
        self.progress.update(|progress| Progress { work, ..progress });
    }

    /// Notes a lower bound of what is not yet ruled out: of all assignments, as far as it is below the cost.
    pub(super) fn note_bound(&self, bound: f64) {
        self.progress.update(|progress| Progress {
            bound: progress.bound.max(bound.min(progress.cost)),
            ..progress
        });
    }

    /// Notes the cost of the best assignment so far.
    pub(super) fn note_cost(&self, cost: f64) {
        self.progress.update(|progress| Progress { cost, ..progress });
    }

    /// Notes how many variables are open.
    pub(super) fn note_variables(&self, variables: usize) {
        self.progress.update(|progress| Progress { variables, ..progress });
    }
}
