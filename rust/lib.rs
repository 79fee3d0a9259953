//! The core of hap: what a distributed training program is, what it costs, and how the cheapest one is found.
//!
//! * [`graph`]: the training step, its axes, and the instructions that each operator offers;
//! * [`placement`]: how a tensor lies on the devices;
//! * [`program`]: a distributed (SPMD) program, an ordered list of instructions;
//! * [`cluster`]: the devices and the links between them;
//! * [`shares`]: which fraction of each axis each device gets;
//! * [`cost`]: what instructions cost; [`buckets`]: which all-reduces are one; [`prefetch`]: which collectives start early;
//! * [`wellformed`]: the validator of graphs; [`validate`]: the validator of programs;
//! * [`simulate`]: how long a step takes; [`memory`]: what it holds; [`stages`]: both as affine functions of the
//!   shares;
//! * [`synthesis`]: exact search for the cheapest program;
//! * [`random`]: random numbers that do not depend on the program.
//!
//! The crate knows no Python; the feature `python` adds the bindings.

#[cfg(feature = "python")]
mod bindings;
pub mod buckets;
pub mod cluster;
pub mod cost;
pub mod graph;
pub mod memory;
pub mod placement;
pub mod prefetch;
pub mod program;
pub mod random;
pub mod shares;
pub mod simulate;
pub mod stages;
pub mod synthesis;
#[cfg(test)]
pub(crate) mod testing;
pub mod validate;
pub mod wellformed;
