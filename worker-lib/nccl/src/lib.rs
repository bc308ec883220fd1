//! A network plugin for NCCL (`libnccl-net-switchml.so`): point-to-point messages over TCP, and
//! all-reduce through the aggregator.
//!
//! NCCL finds it by the symbols [`ncclNetPlugin_v8`] and [`ncclCollNetPlugin_v7`].
//!
//! | module | what it does |
//! | --- | --- |
//! | [`abi`] | NCCL's tables, as they lie in memory |
//! | `net`, `coll_net` | the functions in these tables |
//! | `interfaces`, `devices` | what NCCL takes for NICs |
//! | `meeting`, `link` | how two ends find each other; messages between them |
//! | `group`, `elements` | a job at the aggregator; what is added up |
//! | `log` | lines in NCCL's log |

pub mod abi;
mod coll_net;
mod devices;
mod elements;
mod group;
mod interfaces;
mod link;
mod log;
mod meeting;
mod net;

pub use coll_net::PLUGIN as ncclCollNetPlugin_v7;
pub use net::PLUGIN as ncclNetPlugin_v8;
