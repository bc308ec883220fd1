//! A network plugin for NCCL (`libnccl-net-switchml.so`): point-to-point messages over TCP.
//!
//! NCCL finds the plugin by the symbol [`ncclNetPlugin_v8`].

pub mod abi;
mod interfaces;
mod link;
mod log;
mod meeting;
mod net;

pub use net::PLUGIN as ncclNetPlugin_v8;
