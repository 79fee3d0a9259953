//! The core of hap: what a distributed training program is, what it costs, and how the cheapest one is found.
//!
//! * [`graph`]: the training step, its axes, and the instructions that each operator offers;
//! * [`placement`]: how a tensor lies on the devices;
//! * [`program`]: a distributed (SPMD) program, an ordered list of instructions;
//! * [`cluster`]: the devices and the links between them;
//! * [`synthesis`]: exact search for the cheapest program.
//!
//! The crate knows no Python; the feature `python` adds the bindings.

pub mod cluster;
pub mod graph;
pub mod placement;
pub mod program;
pub mod synthesis;
