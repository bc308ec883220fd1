//! Simulation of whole systems: jobs of real endpoints, the real aggregator over in-memory tables,
//! the real job table, and between them links and hosts that fail. Virtual time, one thread, and
//! every decision drawn from a seed: the same seed gives the same run.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`scenario`] | what a seed stands for: jobs, links, faults |
//! | [`program`] | what ranks call, and what must come out |
//! | [`packed`] | how far sums in fewer bits may be off |
//! | [`net`], [`link`] | time, packets and messages under way, and what happens to them |
//! | [`worker`] | a rank's process around session and HELLO |
//! | [`calls`] | what a rank does in a job: its calls, around the data path |
//! | [`surroundings`] | what a worker acts on |
//! | [`daemon`], [`data_plane`] | the aggregator: control plane and data plane |
//! | [`tree`], [`combiner`] | combiners between workers and the root |
//! | [`oracle`] | what was promised, checked as it happens |
//! | [`world`] | one run |
//! | [`campaign`] | many runs |
//! | [`scaling`] | times of trees on links without faults |
//! | [`tally`] | what was tried, and what came of it |
//!
//! Nothing of the product is written again here except the thin layers for its I/O: the loop of the
//! worker's data thread, what carries out a session's actions, and the daemon's gRPC service.

#![forbid(unsafe_code)]

pub mod calls;
pub mod campaign;
pub mod combiner;
pub mod daemon;
pub mod data_plane;
pub mod link;
pub mod net;
pub mod oracle;
pub mod packed;
pub mod plot;
pub mod program;
pub mod rng;
pub mod scaling;
pub mod scenario;
pub mod surroundings;
pub mod tally;
pub mod tree;
pub mod worker;
pub mod world;

pub use world::{Run, play, simulate, simulate_tree};
