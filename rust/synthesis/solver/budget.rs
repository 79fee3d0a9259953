//! How much a solve may cost, and how much it has cost so far.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::SolveError;
use super::watch::Watch;

/// Limits of a solve. Under `table_entries` and `work` alone, equal problems give equal solutions; `seconds` makes the
/// result depend on the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Entries of all tables together in one exact elimination (8 bytes each, divided by the labels of a variable); also
    /// the memory of a search, in units of 8 bytes.
    pub table_entries: u64,
    /// Table entries visited, added up over the whole solve.
    pub work: u64,
    /// Wall-clock time; not negative.
    pub seconds: Option<f64>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            table_entries: 100_000_000,
            work: 100_000_000_000,
            seconds: None,
        }
    }
}

impl Limits {
    /// Checks that the limits are ones that can be reached.
    ///
    /// # Errors
    /// [`SolveError::Invalid`] names the limit that is not.
    pub fn validate(&self) -> Result<(), SolveError> {
        match self.seconds {
            Some(seconds) if seconds.is_nan() || seconds < 0.0 => Err(SolveError::Invalid {
                field: "limits.seconds".to_owned(),
                reason: format!("{seconds}, expected a number that is not negative"),
            }),
            _ => Ok(()),
        }
    }
}

/// What has been spent.
pub(super) struct Budget<'a> {
    /// Who looks on.
    pub watch: &'a Watch<'a>,
    limits: Limits,
    started: Instant,
    work: u64,
    /// Table entries computed by eliminations.
    pub table_entries: u64,
}

impl<'a> Budget<'a> {
    pub fn new(limits: &Limits, watch: &'a Watch<'a>) -> Self {
        Budget {
            watch,
            limits: limits.clone(),
            started: Instant::now(),
            work: 0,
            table_entries: 0,
        }
    }

    /// From now on, the clock may end whatever runs.
    pub fn watch_clock(&self) {
        // Not every number, such as infinity, is a `Duration`.
        let seconds = self.limits.seconds.map(Duration::try_from_secs_f64);
        let allowed = seconds.and_then(Result::ok);
        self.watch
            .end_at(allowed.and_then(|allowed| self.started.checked_add(allowed)));
        self.watch.look();
    }

    /// Notes that table entries were visited.
    pub fn work(&mut self, entries: u64) {
        self.work = self.work.saturating_add(entries);
        self.watch.note_work(self.work);
        self.watch.visited(entries);
    }

    /// Notes that an elimination computed table entries.
    pub fn eliminated(&mut self, entries: u64) {
        self.table_entries = self.table_entries.saturating_add(entries);
        self.work(entries);
    }

    /// Entries that one elimination may still have.
    pub fn entries_left(&self) -> u64 {
        self.limits
            .table_entries
            .min(self.limits.work.saturating_sub(self.work))
    }

    /// Memory that a search may take, in units of 8 bytes.
    pub fn search_memory(&self) -> u64 {
        self.limits.table_entries
    }

    pub fn is_spent(&self) -> bool {
        self.watch.is_over() || self.work >= self.limits.work
    }
}
