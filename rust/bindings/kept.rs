//! What need not be read and checked once more.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Things that are kept.
const MOST: usize = 32;

/// The things that were used last, by their text; the last one is in front.
pub(super) struct Kept<T>(Mutex<VecDeque<(String, Arc<T>)>>);

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Kept<T> {
    /// The one of a text, which is kept from now on.
    pub fn get_or_make<E>(&self, text: &str, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        match self.get(text) {
            Some(known) => Ok(known),
            None => Ok(self.add(text.to_owned(), make()?)),
        }
    }

    /// The one of a text, if it is kept.
    fn get(&self, text: &str) -> Option<Arc<T>> {
        let mut kept = self.lock();
        let place = kept.iter().position(|(known, _)| known == text)?;
        let entry = kept.remove(place)?;
        let found = Arc::clone(&entry.1);
        kept.push_front(entry);
        Some(found)
    }

    /// Keeps one in place of that which was used longest ago.
    pub fn add(&self, text: String, thing: T) -> Arc<T> {
        let thing = Arc::new(thing);
        let mut kept = self.lock();
        kept.retain(|(known, _)| *known != text);
        kept.truncate(MOST - 1);
        kept.push_front((text, Arc::clone(&thing)));
        thing
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(String, Arc<T>)>> {
        // What a panicking thread left behind is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
