//! The control plane's client: how a rank joins a job, and hears that it is over. Values do not
//! travel here.
//!
//! gRPC on a thread that all memberships of a process share; every call of this module blocks.
//! Sections 22 and 23 of `docs/spec` are the specification.

mod address;
mod board;
mod clock;
mod connection;
mod control_thread;
mod error;
mod lines;
mod member;
mod membership;
mod messages;
mod reports;
mod sessions;
mod status;
mod threads;

pub use address::{Access, Token, resolve};
pub use error::Error;
pub use membership::{Membership, Wish};
pub use messages::Assigned;
pub use sessions::Sessions;
pub use status::{
    AggregatorStatus, RankWithoutMulticast, examine, ranks_without_multicast, slow_jobs, status,
};
pub use switchml_control::tls::{ClientTls, TlsError};
pub use switchml_control::{ExamineReply, Port};
pub use switchml_worker_core::session::MadeCall;
