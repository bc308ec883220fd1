//! Simulation of whole systems: jobs of real endpoints, the real aggregator over in-memory tables,
//! the real job table, and links and hosts between them that fail. Virtual time, one thread, and
//! every decision drawn from a seed: the same seed gives the same run.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`scenario`] | a scenario: jobs, links, faults |
//! | [`draw`], [`threads`] | the scenario of a seed; the data threads that its ranks offer |
//! | [`changes`] | draws reconfigurations: ranks that go on in another job, with others |
//! | [`program`] | the calls of ranks, and the expected results |
//! | [`packed`] | error bounds of sums in fewer bits |
//! | [`net`], [`link`] | time, packets and messages in flight, and what happens to them |
//! | [`worker`] | a rank's process around session and HELLO |
//! | [`calls`], [`shard`] | a rank in a job: its calls, and the data paths that run them |
//! | [`hosts`] | ranks that share a host and its memory |
//! | [`surroundings`] | the surroundings of a worker |
//! | [`squatter`] | a stranger that takes the seats of ranks |
//! | [`daemon`], [`data_plane`] | an aggregator: control plane and data plane |
//! | [`stripes`], [`uneven`] | draws the aggregators of jobs with several, and their failures |
//! | [`tree`] | draws the combiners between workers and the root |
//! | [`combiner`], [`cells`] | a combiner: control plane and data plane |
//! | [`oracle`] | the promises, checked as the run proceeds |
//! | [`world`] | one run |
//! | [`campaign`] | many runs |
//! | [`scaling`] | times of trees on links without faults |
//! | [`tally`] | counters of faults and fates |
//!
//! Nothing of the product is reimplemented here except the thin layers of its I/O: the loop of the
//! worker's data thread, the execution of a session's actions, what the end of one of a rank's
//! sessions means for its others, and the gRPC services of root and combiners.

#![forbid(unsafe_code)]

pub mod calls;
pub mod campaign;
pub mod cells;
pub mod changes;
pub mod combiner;
pub mod daemon;
pub mod data_plane;
pub mod draw;
pub mod hosts;
pub mod link;
pub mod net;
pub mod oracle;
pub mod packed;
pub mod plot;
pub mod program;
pub mod rng;
pub mod scaling;
pub mod scenario;
pub mod shard;
pub mod squatter;
pub mod stripes;
pub mod surroundings;
pub mod tally;
pub mod threads;
pub mod tree;
pub mod uneven;
pub mod worker;
pub mod world;

pub use world::{Run, play, simulate, simulate_tree};
