//! The Python extension module `hap._core`: JSON in; JSON, arrays or random words out. See `python/hap/_core.pyi`.
//!
//! Every method releases the interpreter's lock while it works, and turns every error of the core into a
//! `ValueError`, of a class of its own where a caller goes on. Those that may take long answer Ctrl-C, and report to a
//! callback.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cluster::Cluster;
use crate::graph::Graph;
use crate::program::{Program, Splits};
use crate::random::{Stream, Window};
use crate::shares::{NamedShares, from_fractions, from_splits};
use crate::simulate::{Options, Simulation, simulate};
use crate::stages::{Stages, stages};
use crate::synthesis::solver::{self, Instance, Limits, SolveError, WarmStart};
use crate::synthesis::{self, Made, Request, Synthesis, SynthesisError};
use crate::validate::{ValidProgram, validate_with};
use crate::wellformed::Names;

mod kept;
mod observer;

use kept::Kept;
use observer::observed;

/// The solver makes and drops small tables by the ten thousand: a third of its time with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

create_exception!(
    hap._core,
    LimitReachedError,
    PyValueError,
    "The limits ended a synthesis, or a solve, before it had found anything."
);

impl From<SynthesisError> for PyErr {
    fn from(error: SynthesisError) -> Self {
        match error {
            SynthesisError::LimitReached { .. } => LimitReachedError::new_err(error.to_string()),
            _ => value_error(error),
        }
    }
}

impl From<SolveError> for PyErr {
    fn from(error: SolveError) -> Self {
        match error {
            SolveError::LimitReached { .. } => LimitReachedError::new_err(error.to_string()),
            _ => value_error(error),
        }
    }
}

/// A training step, parsed and validated once.
#[pyclass(name = "Graph", module = "hap._core", frozen)]
struct PyGraph {
    graph: Arc<Graph>,
    names: Names,
    /// Programs that were made or read last: callers simulate one program under many splits.
    programs: Kept<ValidProgram>,
    /// Clusters that were read last: of one, a step is asked for again and again.
    clusters: Kept<Cluster>,
}

#[pymethods]
impl PyGraph {
    #[new]
    fn new(py: Python<'_>, json: &[u8]) -> PyResult<Self> {
        py.detach(|| {
            let graph = Graph::from_json(json).map_err(value_error)?;
            let names = graph.names();
            Ok(Self {
                graph: Arc::new(graph),
                names,
                programs: Kept::default(),
                clusters: Kept::default(),
            })
        })
    }

    /// The cheapest program under a request, and a step of it as by [`Self::simulate`].
    #[pyo3(signature = (cluster, request, progress = None, warm = None, options = "{}"))]
    fn synthesise(
        &self,
        py: Python<'_>,
        cluster: &str,
        request: &str,
        progress: Option<Py<PyAny>>,
        warm: Option<&PyWarmStart>,
        options: &str,
    ) -> PyResult<String> {
        py.detach(|| {
            let cluster = self.cluster(cluster)?;
            let request: Request = parse("request", request)?;
            let options: Options = parse("options", options)?;
            let mut start = warm.map(PyWarmStart::take).unwrap_or_default();
            let made = observed(progress.as_ref(), |watch| {
                synthesis::synthesise_from(
                    &self.graph,
                    &self.names,
                    &cluster,
                    &request,
                    &options,
                    &mut start,
                    watch,
                )
            })?;
            if let Some(warm) = warm {
                warm.put(start);
            }
            let Made {
                synthesis,
                valid,
                simulation,
            } = made;
            self.programs.add(write(&synthesis.program)?, valid);
            write(&Reply { synthesis, simulation })
        })
    }

    /// The weighted constraint problem of a request.
    fn problem(&self, py: Python<'_>, cluster: &str, request: &str) -> PyResult<String> {
        py.detach(|| {
            let cluster = self.cluster(cluster)?;
            let request: Request = parse("request", request)?;
            let problem = synthesis::problem(&self.graph, &cluster, &request)
                .map_err(value_error)?
                .problem;
            Instance {
                name: "problem".to_owned(),
                problem,
            }
            .to_json()
            .map_err(value_error)
        })
    }

    /// Seconds, memory and timeline of a program under integer splits.
    fn simulate(&self, py: Python<'_>, cluster: &str, program: &str, splits: &str, options: &str) -> PyResult<String> {
        py.detach(|| {
            let cluster = self.cluster(cluster)?;
            let program = self.valid_program(program)?;
            let splits: Splits = parse("splits", splits)?;
            let options: Options = parse("options", options)?;
            let shares = from_splits(&self.graph, cluster.devices().len(), &splits).map_err(value_error)?;
            write(&simulate(&self.graph, &cluster, &shares, &program, &options))
        })
    }

    /// Affine terms of a program's stages and memory at real shares.
    #[pyo3(signature = (cluster, program, shares, options = "{}"))]
    fn stages<'py>(
        &self,
        py: Python<'py>,
        cluster: &str,
        program: &str,
        shares: &str,
        options: &str,
    ) -> PyResult<Arrays<'py>> {
        let found = py.detach(|| {
            let cluster = self.cluster(cluster)?;
            let program = self.valid_program(program)?;
            let shares: NamedShares = parse("shares", shares)?;
            let options: Options = parse("options", options)?;
            let shares = from_fractions(&self.graph, cluster.devices().len(), &shares).map_err(value_error)?;
            PyResult::Ok(stages(&self.graph, &cluster, &shares, &program, options.optimiser()))
        })?;
        let Stages {
            axes,
            kinds,
            sorts,
            terms,
        } = found;
        let counts = array(py, sorts.iter().map(|sort| (sort.count as u64).to_ne_bytes()))?;
        let computation = array(py, sorts.iter().map(|sort| [u8::from(sort.computation)]))?;
        let kinds = array(py, kinds.iter().map(|kind| (*kind as u64).to_ne_bytes()))?;
        let terms = array(py, terms.iter().map(|number| number.to_ne_bytes()))?;
        Ok((axes, kinds, counts, computation, terms))
    }

    /// Raises where a program does not compute this graph.
    fn validate(&self, py: Python<'_>, program: &str) -> PyResult<()> {
        py.detach(|| self.valid_program(program).map(|_| ()))
    }
}

impl PyGraph {
    fn cluster(&self, json: &str) -> PyResult<Arc<Cluster>> {
        let read = || Cluster::from_json(json).map_err(value_error);
        self.clusters.get_or_make(json, read)
    }

    fn valid_program(&self, json: &str) -> PyResult<Arc<ValidProgram>> {
        self.programs.get_or_make(json, || {
            let program: Program = parse("program", json)?;
            validate_with(&self.graph, &self.names, &program).map_err(value_error)
        })
    }
}

/// What [`PyGraph::stages`] gives: names, and arrays.
type Arrays<'py> = (
    Vec<String>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

/// What [`PyGraph::synthesise`] gives.
#[derive(Serialize)]
struct Reply {
    #[serde(flatten)]
    synthesis: Synthesis,
    simulation: Simulation,
}

/// What syntheses leave for later ones of the same graph.
#[pyclass(name = "WarmStart", module = "hap._core", frozen)]
#[derive(Default)]
struct PyWarmStart(Mutex<WarmStart>);

#[pymethods]
impl PyWarmStart {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// The certificate of the last synthesis or solve.
    fn certificate(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| match self.lock().certificate() {
            Some(certificate) => certificate.to_json().map_err(value_error),
            None => Err(PyValueError::new_err(
                "there is no certificate: pass this warm start to a synthesis or a solve first",
            )),
        })
    }
}

impl PyWarmStart {
    fn lock(&self) -> MutexGuard<'_, WarmStart> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the one that knows nothing: where a synthesis fails, the next one starts anew.
    fn take(&self) -> WarmStart {
        std::mem::take(&mut *self.lock())
    }

    fn put(&self, start: WarmStart) {
        *self.lock() = start;
    }
}

/// Solves a weighted constraint problem exactly.
#[pyfunction]
#[pyo3(signature = (problem, limits, progress = None, warm = None))]
fn solve(
    py: Python<'_>,
    problem: &str,
    limits: &str,
    progress: Option<Py<PyAny>>,
    warm: Option<&PyWarmStart>,
) -> PyResult<String> {
    py.detach(|| {
        let instance = Instance::from_json(problem)
            .map_err(|error| PyValueError::new_err(format!("the problem cannot be read: {error}")))?;
        let limits: Limits = parse("limits", limits)?;
        let mut start = warm.map(PyWarmStart::take).unwrap_or_default();
        let (solved, start) = observed(progress.as_ref(), move |watch| {
            let started = Instant::now();
            let solution = solver::solve_from(&instance.problem, &limits, &start, watch)?;
            let solved = Solved {
                seconds: started.elapsed().as_secs_f64(),
                gap: solution.gap(),
                assignment: solution.assignment,
                cost: solution.cost,
                bound: solution.bound,
                table_entries: solution.table_entries,
                states: solution.states,
            };
            start.learn(solution.certificate);
            Ok::<_, SolveError>((solved, start))
        })?;
        if let Some(warm) = warm {
            warm.put(start);
        }
        write(&solved)
    })
}

/// The random words of an operator in one step, at the positions of a window.
#[pyfunction]
fn random_words<'py>(
    py: Python<'py>,
    seed: i64,
    step: u32,
    operator: u32,
    sizes: Vec<u64>,
    starts: Vec<u64>,
    lengths: Vec<u64>,
) -> PyResult<Bound<'py, PyByteArray>> {
    let window = Window::new(sizes, starts, lengths).map_err(value_error)?;
    let stream = Stream {
        seed: seed.cast_unsigned(),
        step,
        operator,
    };
    PyByteArray::new_with(py, window.count().saturating_mul(4), |bytes| {
        py.detach(|| window.draw(&stream, bytes));
        Ok(())
    })
}

/// What [`solve`] gives.
#[derive(Serialize)]
struct Solved {
    assignment: Vec<usize>,
    cost: f64,
    bound: f64,
    gap: f64,
    seconds: f64,
    table_entries: u64,
    states: u64,
}

/// The extension module.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("LimitReachedError", module.py().get_type::<LimitReachedError>())?;
    module.add_class::<PyWarmStart>()?;
    module.add_class::<PyGraph>()?;
    module.add_function(wrap_pyfunction!(solve, module)?)?;
    module.add_function(wrap_pyfunction!(random_words, module)?)
}

fn parse<T: DeserializeOwned>(what: &str, json: &str) -> PyResult<T> {
    serde_json::from_str(json).map_err(|error| PyValueError::new_err(format!("the {what} cannot be read: {error}")))
}

/// Numbers as their bytes.
fn array<'py, const N: usize>(
    py: Python<'py>,
    numbers: impl ExactSizeIterator<Item = [u8; N]>,
) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, numbers.len() * N, |bytes| {
        let places = bytes.chunks_exact_mut(N);
        places
            .zip(numbers)
            .for_each(|(place, number)| place.copy_from_slice(&number));
        Ok(())
    })
}

fn write<T: Serialize>(value: &T) -> PyResult<String> {
    serde_json::to_string(value).map_err(value_error)
}

fn value_error(error: impl std::error::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}
