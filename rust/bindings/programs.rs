//! Programs that need not be read and proven once more.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::validate::ValidProgram;

/// Programs that are kept.
const MOST: usize = 32;

type Entry = (String, Arc<ValidProgram>);

/// The programs that were used last, by their text; the last one is in front.
#[derive(Default)]
pub(super) struct Programs(Mutex<VecDeque<Entry>>);

impl Programs {
    /// The program of a text, if it is kept.
    pub fn get(&self, text: &str) -> Option<Arc<ValidProgram>> {
        let mut kept = self.lock();
        let place = kept.iter().position(|(known, _)| known == text)?;
        let entry = kept.remove(place)?;
        let program = Arc::clone(&entry.1);
        kept.push_front(entry);
        Some(program)
    }

    /// Keeps a program in place of the one that was used longest ago.
    pub fn add(&self, text: String, program: ValidProgram) -> Arc<ValidProgram> {
        let program = Arc::new(program);
        let mut kept = self.lock();
        kept.retain(|(known, _)| *known != text);
        kept.truncate(MOST - 1);
        kept.push_front((text, Arc::clone(&program)));
        program
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        // What a panicking thread left behind is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
