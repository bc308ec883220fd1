//! All-reduce through an in-network aggregator.
//!
//! Ranks of a job hand in tensors, a switch adds them up on the way, and every rank gets the same
//! sums back. Start `switchml-aggregator` on the switch, then in every process of the job:
//!
//! ```no_run
//! use switchml_worker::{Communicator, ReduceOp};
//!
//! # fn main() -> Result<(), switchml_worker::Error> {
//! // RANK, WORLD_SIZE and SWITCHML_AGGREGATOR from the environment; or Communicator::builder().
//! let communicator = Communicator::from_env()?;
//!
//! let mut gradients = vec![0.5f32; 1 << 20];
//! communicator.all_reduce(&mut gradients, ReduceOp::Avg)?;
//!
//! // Several at once: start them in the same order on every rank, then wait.
//! let first = communicator.all_reduce_start(vec![1i32; 1000], ReduceOp::Sum)?;
//! let second = communicator.all_reduce_start(vec![2.0f64; 1000], ReduceOp::Sum)?;
//! let (first, second) = (first.wait()?, second.wait()?);
//!
//! // What a call took is its value: chunks, resends, round trips, the ranks that came late.
//! let stats = communicator.barrier()?;
//! let late: Vec<_> = stats.stragglers().collect();
//! println!("{:?} at most; late: {late:?}", stats.round_trips.max());
//!
//! communicator.close()
//! # }
//! ```
//!
//! [`Communicator`] has the rest: [`broadcast`](Communicator::broadcast),
//! [`barrier`](Communicator::barrier). Elements are f32, f64, f16 and bf16 (of the `half` crate)
//! and i32; [`numerics`] specifies the results exactly. Every error is one line that names the
//! ranks at fault.
//!
//! # Inside
//!
//! `switchml-worker-core` decides, without I/O, what a rank sends and how it handles the answers.
//!
//! | module | what it does |
//! | --- | --- |
//! | `builder`, `communicator`, `handle` | the caller's objects |
//! | `identity`, `meeting` | which job a rank is of, and how its ranks find each other |
//! | `connect` | from a builder to a communicator |
//! | `buffers` | lends the caller's elements to whoever drives |
//! | [`control`] | joins the job, and hears of its end |
//! | `paths` | the paths of a job's shards at one aggregator |
//! | `open_path`, `transport` | finds the largest packet that the path carries; UDP sockets |
//! | `driver` | moves packets between data path and sockets, on the caller's thread or its own |
//! | `failover` | has another aggregator go on in place of a lost one |
//! | `local_sums` | adds up with the other ranks of this host, in shared memory |
//! | `peers` | aggregators that ranks bring along |
//! | `own_hosts` | adds ranks' hosts to aggregators that are slower than a ring |
//! | `rdma` | what a rank by RDMA needs, and whether it is there |
//! | [`settings`], `variables` | the settings; the environment variables that a builder reads |
//! | `late_ranks`, `narrow_path`, `no_multicast`, `warning` | warnings |

#![deny(unsafe_code)]

mod buffers;
mod builder;
mod commons;
mod communicator;
mod connect;
pub mod control;
mod data_threads;
mod driver;
mod error;
mod failover;
mod files;
mod handle;
mod identity;
#[doc(hidden)]
pub mod interface;
mod late_ranks;
mod local_sums;
mod lock;
mod meeting;
mod narrow_path;
mod no_multicast;
mod open_path;
mod own_address;
mod own_hosts;
mod paths;
mod peers;
mod per_process;
mod prefetch;
#[doc(hidden)]
pub mod rdma;
pub mod settings;
mod slurm;
mod summary;
mod transport;
mod values;
mod variables;
mod waker;
mod warning;
mod yield_core;

pub use buffers::Tensor;
pub use builder::Builder;
pub use communicator::{Communicator, Info, Stats, Stripe};
pub use error::{Error, Server};
pub use handle::Handle;
#[doc(hidden)]
pub use identity::MetRanks;
pub use meeting::UniqueId;
pub use narrow_path::Narrow;
pub use peers::{OwnAggregator, Peer};
pub use settings::Settings;
pub use switchml_control::Variable;
pub use switchml_protocol::capabilities::Capabilities;
pub use switchml_worker_core::{
    CallStats, DType, Element, Precision, ReduceOp, Reduction, RoundTrips, Straggler, WaitStats,
    engine, numerics,
};
pub use variables::VARIABLES;
