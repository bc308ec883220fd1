//! The data planes of this host; those in switches are the crate `switchml-p4`.

pub mod software;
mod worker_thread;
pub mod xdp;
