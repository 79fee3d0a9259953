//! Ctrl-C and a callback while the core works.

use std::error::Error;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

use crate::synthesis::solver::{Progress, Watch};

/// Time between two visits to the interpreter.
const INTERVAL: Duration = Duration::from_millis(20);

/// What the working thread and the waiting one know of each other.
#[derive(Default)]
struct Shared {
    latest: Option<Progress>,
    stopped: bool,
}

/// Does work in a thread of its own, while this one waits. Every 20 ms the interpreter handles its signals and the
/// callback is called with bound, cost, work and variables, as it is at the end. What either raises is raised from here
/// at once; the thread stops as soon as it sees that.
pub(super) fn observed<T, E>(
    callback: Option<&Py<PyAny>>,
    work: impl FnOnce(&Watch<'_>) -> Result<T, E> + Send + 'static,
) -> PyResult<T>
where
    T: Send + 'static,
    E: Error + Send + 'static,
{
    let shared: Arc<Mutex<Shared>> = Arc::default();
    let (sender, receiver) = channel();
    let worker = Arc::clone(&shared);
    let thread = thread::spawn(move || {
        let observe = |progress: &Progress| {
            let mut shared = worker.lock().unwrap_or_else(PoisonError::into_inner);
            shared.latest = Some(*progress);
            if shared.stopped {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        // Nobody listens any more where the work was stopped.
        let _ = sender.send(work(&Watch::new(&observe)));
    });
    loop {
        let outcome = match receiver.recv_timeout(INTERVAL) {
            Ok(outcome) => Some(outcome.map_err(super::value_error)?),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Err(panic) => resume_unwind(panic),
                Ok(()) => unreachable!("a thread that does not panic sends its outcome"),
            },
        };
        let latest = shared.lock().unwrap_or_else(PoisonError::into_inner).latest;
        if let Err(error) = visit(callback, latest) {
            shared.lock().unwrap_or_else(PoisonError::into_inner).stopped = true;
            return Err(error);
        }
        if let Some(outcome) = outcome {
            return Ok(outcome);
        }
    }
}

fn visit(callback: Option<&Py<PyAny>>, latest: Option<Progress>) -> PyResult<()> {
    Python::attach(|py| {
        py.check_signals()?;
        if let (Some(callback), Some(progress)) = (callback, latest) {
            let Progress {
                bound,
                cost,
                work,
                variables,
            } = progress;
            callback.call1(py, (bound, cost, work, variables))?;
        }
        Ok(())
    })
}
