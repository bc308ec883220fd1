//! A worker without its I/O: decides what a rank sends, and interprets what it receives.
//!
//! Nothing here opens a socket, starts a thread, reads a clock or touches a file. Bytes and the
//! time come in as arguments, decisions go out. So the library `switchml-worker`, the simulator,
//! the model checker and the fuzz targets drive the same code. Clippy checks that: the crate's
//! `clippy.toml` lists the parts of the standard library that it must not use.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`session`] | a rank's life in its job, from join to leave |
//! | [`hello`] | how large a packet the path carries |
//! | [`call`], [`buffer`] | what a call is; its elements |
//! | [`stripes`] | how much of a call each of several aggregators adds up |
//! | [`cost`] | how long a call takes by theory, and a ring's |
//! | [`shards`] | which part of a call each of several data threads runs |
//! | [`data_path`] | a rank's data path, made of the next five rows: one turn of its loop |
//! | [`wire`] | the interface through which a turn's packets leave |
//! | `phases` | a call's exponents, speculative data, data and witnesses |
//! | `collective`, `schedule` | one call's phases in order; several calls in flight |
//! | [`engine`] | which chunk goes when, in which slot and round |
//! | [`failover`] | what is kept to be sent again to another aggregator |
//! | [`moves`] | which aggregator goes on with the shards of a lost one |
//! | `bundles` | where the stream of chunks is cut into superpackets |
//! | [`local_results`] | how ranks of one host read what one of them receives |
//! | [`local_slots`] | how ranks that are all on one host add up there |
//! | [`local_sum`] | how ranks of one host add up what they send |
//! | [`numerics`] | elements to lanes and back |
//! | [`stats`] | what calls took |
//! | [`issued`] | the calls that a rank may have to report |
//! | [`spin`] | how to wait for packets: looking again, or asleep |

#![forbid(unsafe_code)]
#![forbid(clippy::disallowed_methods, clippy::disallowed_types)]
#![forbid(clippy::print_stdout, clippy::print_stderr)]

pub mod buffer;
mod bundles;
pub mod call;
mod collective;
pub mod cost;
pub mod data_path;
pub mod engine;
pub mod failover;
pub mod greeting;
mod hash;
pub mod hello;
pub mod issued;
pub mod local_results;
pub mod local_slots;
pub mod local_sum;
pub mod moves;
pub mod numerics;
pub mod packet;
mod phases;
mod schedule;
pub mod session;
pub mod shards;
pub mod spin;
pub mod stats;
pub mod stripes;
pub mod wire;

pub use numerics::{DType, Element, Precision, ReduceOp, Reduction};
pub use spin::WaitStats;
pub use stats::{CallStats, RoundTrips, Straggler};
