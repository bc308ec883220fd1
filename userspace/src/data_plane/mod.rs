//! The data planes of this host; the data planes in switches are in the crate `switchml-p4`.

mod port;
pub mod software;
mod worker_thread;
pub mod xdp;
