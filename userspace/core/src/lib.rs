//! The aggregator daemon without its I/O: no sockets, no threads, no clock.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`control_plane`] | requests in, effects carried out: the one loop that does so |
//! | [`jobs`] | the job table: requests in, effects out |
//! | [`proxy`] | the control plane of a combiner: what passes between its ranks and its parent |
//! | [`data_plane`] | what the control plane asks of a data plane |
//! | [`drop_rate`] | the share of packets that a data plane loses on purpose |
//! | [`limits`], [`job_spec`] | the limits of a data plane, and a job as it gets it |
//! | [`version`] | the protocol version that a rank must speak to join |
//! | [`rate`] | how often something may happen in a minute |
//! | [`shared_ports`] | whether a port is too slow for the hosts behind it |
//! | [`slots`] | how many slots a job gets |
//! | [`oldest_round`] | how far a shard is, and the ranks that its oldest unfinished round lacks |
//! | [`stragglers`] | the ranks that running jobs wait for, and for how long |
//! | [`lateness`] | the ranks whose contributions come later than all others' |
//! | [`throughput`] | how many bytes of results running jobs get, and how fast |
//! | [`memory_tables`] | the tables of a data plane, in this process's memory |
//! | [`memory_cells`] | the cells of a combiner, in this process's memory |

#![forbid(unsafe_code)]
#![cfg_attr(not(test), forbid(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests begin at some time"))]

pub mod control_plane;
pub mod data_plane;
pub mod drop_rate;
pub mod job_spec;
pub mod jobs;
pub mod lateness;
pub mod limits;
pub mod memory_cells;
pub mod memory_tables;
pub mod oldest_round;
pub mod proxy;
pub mod rate;
pub mod shared_ports;
pub mod slots;
pub mod stragglers;
pub mod throughput;
pub mod version;
