//! Exact solution of weighted constraint problems, with a certificate.
//!
//! The parts, in the order in which they are used:
//!
//! * [`problem`] and [`format`]: what is solved, and its file format;
//! * `remainder`: the equivalent problem in progress, over `table`s;
//! * `reduce`: labels that cannot be are dropped (arc consistency);
//! * `eliminate`: variables with small tables are eliminated (bucket elimination), in a greedy `order` where all are;
//!   `minimise` is its inner loop;
//! * `dual`: dual ascent raises a lower bound by moving costs between tables (SRMP), by their min-`marginals`;
//! * `prune`: reduced costs say which labels an optimal assignment can have;
//! * `warm`: where the bound starts from an earlier solve's moves;
//! * `search`: A* over partial assignments, where the rest is too large to eliminate;
//! * `watch`: what an observer sees of all this, who may stop it;
//! * [`certificate`]: the proof of the bound, and its `checker`.
//!
//! The dual of the linear relaxation is almost always tight on the problems of synthesis, so that few labels are left and
//! elimination finishes, where plain elimination would need 10^7 to 10^9 table entries.

mod budget;
pub mod certificate;
mod checker;
mod dual;
mod eliminate;
pub mod format;
mod marginals;
mod minimise;
mod order;
pub mod problem;
mod prune;
mod reduce;
mod remainder;
mod rows;
mod search;
mod solution;
mod solve;
mod table;
mod warm;
mod watch;

pub use budget::Limits;
pub use certificate::{Certificate, CertificateError, Step};
pub use checker::check;
pub use format::Instance;
pub use problem::{Factor, Problem};
pub use solution::{Solution, SolveError, TOLERANCE};
pub use solve::{solve, solve_from};
pub use warm::WarmStart;
pub use watch::{Progress, Watch};

#[cfg(test)]
mod tests;
