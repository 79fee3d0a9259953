//! Exact synthesis: the cheapest program of a graph for fixed splits and prices.
//!
//! A graph becomes a weighted constraint problem ([`model`]) that the [`solver`] solves with a certificate; the solution
//! becomes a program again ([`emit`], along the [`routes`] of classes), gradients are reduced in [`buckets`], and gathers
//! start early ([`prefetch`]).
//!
//! * [`request`]: what is asked and answered;
//! * [`costs`]: what choices and conversions cost, and random costs; [`priced`]: true costs under prices;
//! * [`classes`]: tensors that are one another's views;
//! * [`constraints`]: what a request leaves to choose from;
//! * [`phases`]: forward and backward, and what may run again there; [`segments`]: cuts of the forward;
//! * [`demands`]: which placements of a class are produced and demanded;
//! * [`convert`]: the cheapest way to create placements from others;
//! * [`crossing`]: what of a class is kept for the backward; [`held`]: the prices of memory;
//! * [`tables`]: the cost tables of a class; [`pairwise`]: those of large ones.

use std::time::Instant;

use crate::buckets;
use crate::cluster::Cluster;
use crate::cost::CostModel;
use crate::graph::Graph;
use crate::prefetch;
use crate::shares::{Shares, from_splits};
use crate::simulate::{Options, Simulation};
use crate::validate::ValidProgram;
use crate::wellformed::Names;

pub mod classes;
pub mod constraints;
pub mod convert;
pub mod costs;
pub mod crossing;
pub mod demands;
pub mod emit;
pub mod held;
pub mod model;
pub mod pairwise;
pub mod phases;
pub mod priced;
pub mod request;
pub mod routes;
pub mod segments;
pub mod solver;
pub mod tables;

pub use model::{Encoding, Model, Variable};
pub use request::{Constraints, MemoryPrices, Prices, Request, Synthesis, SynthesisError};

use costs::{Costs, RandomCosts};
use held::HeldPrices;
use priced::PricedCosts;
use solver::{Limits, Solution, SolveError, WarmStart, Watch};

/// The cheapest program of a graph under a request, for a validated graph and a validated cluster.
///
/// Equal arguments give equal programs, unless the limits are in seconds.
///
/// # Errors
/// Requests that do not fit the graph or the cluster; constraints that leave no program; limits too small to find one.
pub fn synthesise(graph: &Graph, cluster: &Cluster, request: &Request) -> Result<Synthesis, SynthesisError> {
    let options = match &request.prices.memory {
        Some(prices) => Options {
            optimiser_tensors: prices.optimiser_tensors,
            temporaries: prices.temporaries,
            ..Options::default()
        },
        None => Options::default(),
    };
    let (names, mut warm) = (graph.names(), WarmStart::default());
    let made = synthesise_from(graph, &names, cluster, request, &options, &mut warm, &Watch::default());
    made.map(|made| made.synthesis)
}

/// A synthesised program, proven right, and a step of it.
#[derive(Debug)]
pub struct Made {
    /// The program with its cost.
    pub synthesis: Synthesis,
    /// The program, quick to walk.
    pub valid: ValidProgram,
    /// A step of it under the splits of the request.
    pub simulation: Simulation,
}

/// As [`synthesise`], with what earlier syntheses of the graph have found, observed by someone who may stop it.
///
/// A warm start saves time where costs have changed little. Of several programs of equal cost another one may be found.
///
/// # Errors
/// As [`synthesise`], and [`SynthesisError::Stopped`].
pub fn synthesise_from(
    graph: &Graph,
    names: &Names,
    cluster: &Cluster,
    request: &Request,
    options: &Options,
    warm: &mut WarmStart,
    watch: &Watch<'_>,
) -> Result<Made, SynthesisError> {
    let started = Instant::now();
    let shares = shares(graph, cluster, request)?;
    let costs = CostModel::new(graph, cluster, &shares);
    let found = with_costs(&costs, request, Search { started, warm, watch })?;
    let proven = buckets::merged(cluster, &costs, names, options, found.program);
    let proven = prefetch::prefetched(cluster, &costs, options, proven);
    Ok(Made {
        synthesis: Synthesis {
            program: proven.program,
            seconds: started.elapsed().as_secs_f64(),
            ..found
        },
        valid: proven.valid,
        simulation: proven.simulation,
    })
}

/// The weighted constraint problem of a request. The model's variables say what the problem's labels stand for.
///
/// # Errors
/// As for [`synthesise`].
pub fn problem(graph: &Graph, cluster: &Cluster, request: &Request) -> Result<Model, SynthesisError> {
    let shares = shares(graph, cluster, request)?;
    with_costs(&CostModel::new(graph, cluster, &shares), request, MakeModel)
}

/// What is done once the costs are known. A trait because each kind of costs is a type of its own.
trait Task {
    type Answer;
    fn run(
        self,
        graph: &Graph,
        request: &Request,
        costs: &impl Costs,
        memory: Option<&HeldPrices>,
    ) -> Result<Self::Answer, SynthesisError>;
}

fn with_costs<T: Task>(model: &CostModel, request: &Request, task: T) -> Result<T::Answer, SynthesisError> {
    let graph = model.graph();
    let priced = PricedCosts::new(graph, model, &request.prices)?;
    let prices = request.prices.memory.as_ref();
    let memory = prices
        .map(|prices| HeldPrices::new(graph, model.shares(), model.devices(), prices))
        .transpose()?;
    match request.random {
        Some(seed) => task.run(graph, request, &RandomCosts::new(graph, seed), memory.as_ref()),
        None => task.run(graph, request, &priced, memory.as_ref()),
    }
}

fn shares(graph: &Graph, cluster: &Cluster, request: &Request) -> Result<Shares, SynthesisError> {
    let devices = cluster.devices().len();
    from_splits(graph, devices, &request.splits).map_err(|error| SynthesisError::Splits(error.to_string()))
}

struct MakeModel;

impl Task for MakeModel {
    type Answer = Model;

    fn run(
        self,
        graph: &Graph,
        request: &Request,
        costs: &impl Costs,
        memory: Option<&HeldPrices>,
    ) -> Result<Model, SynthesisError> {
        Model::new(graph, &request.constraints, costs, memory, Encoding::default())
    }
}

struct Search<'a> {
    started: Instant,
    warm: &'a mut WarmStart,
    watch: &'a Watch<'a>,
}

impl Task for Search<'_> {
    type Answer = Synthesis;

    fn run(
        self,
        graph: &Graph,
        request: &Request,
        costs: &impl Costs,
        memory: Option<&HeldPrices>,
    ) -> Result<Synthesis, SynthesisError> {
        let mut model = Model::new(graph, &request.constraints, costs, memory, Encoding::default())?;
        let solution = solve(graph, &model, &request.limits, self.warm, self.watch)?;
        let emitted = emit::emit(graph, &mut model, &solution.assignment);
        let storing = memory.map_or(0.0, |memory| memory.storing(&emitted.stored));
        let computation = model.computation(graph, costs, &solution.assignment);
        let cost = computation + emitted.communication + emitted.keeping + storing;
        // Where the solver has proven its assignment, the gap is 0 in whatever order the costs are summed. The program may
        // cost more than the assignment, which counts some sets of placements too low (see `Encoding::sets`).
        let as_solved = cost <= solution.cost + 1e-6 * solution.cost.abs();
        let proven = (as_solved && solution.gap() == 0.0) || solution.bound >= cost;
        let bound = if proven { cost } else { solution.bound };
        let search_gap = if proven { 0.0 } else { (cost - bound) / cost };
        self.warm.learn(solution.certificate);
        Ok(Synthesis {
            program: emitted.program,
            cost,
            priced_memory: memory.map_or(Vec::new(), |memory| memory.bytes(&emitted.stored, &emitted.kept)),
            bound,
            search_gap,
            seconds: self.started.elapsed().as_secs_f64(),
            table_entries: solution.table_entries,
            states: solution.states,
        })
    }
}

fn solve(
    graph: &Graph,
    model: &Model,
    limits: &Limits,
    warm: &WarmStart,
    watch: &Watch<'_>,
) -> Result<Solution, SynthesisError> {
    if let Some(seconds) = limits
        .seconds
        .filter(|seconds| !(0.0..=f64::INFINITY).contains(seconds))
    {
        return Err(SynthesisError::Request {
            field: "limits.seconds".to_owned(),
            expected: "a number that is not negative".to_owned(),
            got: seconds.to_string(),
        });
    }
    solver::solve_from(&model.problem, limits, warm, watch).map_err(|error| match error {
        SolveError::Infeasible { variable } => SynthesisError::Infeasible(match variable {
            Some(variable) => format!("nothing fits {}", model.describe(graph, variable)),
            None => "the operators' choices cannot be joined by conversions".to_owned(),
        }),
        SolveError::Stopped => SynthesisError::Stopped,
        SolveError::LimitReached { bound } => SynthesisError::LimitReached { bound },
        SolveError::Invalid { .. } => unreachable!("the model is well formed: {error}"),
    })
}

#[cfg(test)]
mod examples;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod walk;
