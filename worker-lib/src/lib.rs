//! All-reduce through an in-network aggregator.
//!
//! Ranks of a job hand in tensors, a switch adds them up on their way, and every rank gets the same
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
//! println!("{:?} at most; late: {:?}", stats.round_trips.max(), stats.stragglers().collect::<Vec<_>>());
//!
//! communicator.close()
//! # }
//! ```
//!
//! [`Communicator`] has the rest: [`broadcast`](Communicator::broadcast),
//! [`barrier`](Communicator::barrier). Elements are f32, f64, f16 and bf16 (of the `half` crate)
//! and i32; [`numerics`] says what exactly the results are. Every error is one line that names the
//! ranks at fault.
//!
//! # Inside
//!
//! | module | what it does |
//! | --- | --- |
//! | [`control`] | joins the job, hears of its end |
//! | `collective`, `schedule` | one collective's chunks; several collectives in flight |
//! | `ahead`, `predictor` | data chunks of small calls that do not wait for their exponents; what these will be |
//! | `witness` | proves maxima of an aggregator that does not check them |
//! | [`numerics`] | elements to lanes and back |
//! | [`engine`] | what to send next: pure, no I/O |
//! | `endpoint` | engine and collectives together: a rank's data path without its I/O |
//! | `stats` | what calls took |
//! | `transport`, `hello` | UDP sockets, and how large a packet the path carries |
//! | `driver`, `patience` | moves packets between endpoint and sockets, on the caller's thread or on one of its own; how it waits for them |
//! | `shards` | which part of a call each of several data threads runs |

#![deny(unsafe_code)]

mod ahead;
mod builder;
mod bundles;
mod collective;
mod communicator;
pub mod control;
mod driver;
#[doc(hidden)]
pub mod endpoint;
pub mod engine;
mod error;
mod hash;
mod hello;
#[doc(hidden)]
pub mod interface;
#[doc(hidden)]
pub mod issued;
mod lend;
mod notice;
pub mod numerics;
mod path;
mod patience;
mod predictor;
mod schedule;
mod shards;
mod stats;
mod task;
mod transport;
mod waker;
mod witness;

pub use builder::Builder;
pub use communicator::{Communicator, Info, Stats};
pub use error::Error;
pub use lend::Tensor;
pub use numerics::{DType, Element, ReduceOp};
pub use path::Narrow;
pub use patience::WaitStats;
pub use stats::{CallStats, RoundTrips, Straggler};
pub use task::Handle;
