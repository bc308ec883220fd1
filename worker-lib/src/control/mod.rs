//! The control plane's client: how a rank joins a job, and hears that it is over. Values never
//! travel here.
//!
//! gRPC on a small thread of its own; every call of this module blocks. `docs/protocol.md`, section
//! "Control plane", is the specification.

mod address;
mod board;
mod error;
mod link;
mod session;
mod status;
mod threads;

pub use address::resolve;
pub use error::{Error, MadeCall};
pub use session::{Assigned, Session};
pub use status::{AggregatorStatus, status};
