//! The data planes of this host; the data planes in switches are in the crate `switchml-p4`.

#[cfg(feature = "daemon")]
mod port;
pub mod software;
mod worker_thread;
#[cfg(feature = "daemon")]
pub mod xdp;
