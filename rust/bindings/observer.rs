//! Ctrl-C and a callback while the core works.

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::synthesis::solver::{Progress, Watch};

/// Least time between two visits to the interpreter.
const INTERVAL: Duration = Duration::from_millis(20);

/// Does work that looks at its watch again and again. Every 20 ms the interpreter handles its signals and the callback is
/// called with bound, cost, work and variables, as it is at the end. What either raises ends the work and is raised here.
///
/// All of it in the calling thread: a thread of its own would give the allocator's memory back when it ends, and ask for
/// it again page by page at the next call.
pub(super) fn observed<T, E: Into<PyErr>>(
    callback: Option<&Py<PyAny>>,
    work: impl FnOnce(&Watch<'_>) -> Result<T, E>,
) -> PyResult<T> {
    let (latest, raised) = (Cell::new(None), RefCell::new(None));
    let visited = Cell::new(Instant::now());
    let observe = |progress: &Progress| {
        latest.set(Some(*progress));
        if visited.get().elapsed() < INTERVAL {
            return ControlFlow::Continue(());
        }
        let outcome = visit(callback, latest.get());
        visited.set(Instant::now());
        match outcome {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                raised.replace(Some(error));
                ControlFlow::Break(())
            }
        }
    };
    let outcome = work(&Watch::new(&observe));
    if let Some(error) = raised.into_inner() {
        return Err(error);
    }
    let outcome = outcome.map_err(Into::into)?;
    visit(callback, latest.get())?;
    Ok(outcome)
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
