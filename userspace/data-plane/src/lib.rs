//! The data planes of this host; the data planes in switches are in the crate `switchml-p4`.
//!
//! They are a crate of their own because packets pass here, so that it is compiled with all
//! optimisations: see the profiles in the workspace's `Cargo.toml`.

#![forbid(unsafe_code)]

#[cfg(feature = "xdp")]
mod port;
pub mod software;
mod worker_thread;
#[cfg(feature = "xdp")]
pub mod xdp;
#[cfg(feature = "xdp")]
mod xdp_objects;
#[cfg(feature = "xdp")]
pub use xdp_objects::{xdp_object, xdp_trace_object};
