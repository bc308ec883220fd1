//! What serves packets: the [`DataPlane`] trait, and its backends.

use switchml_protocol::maps::Event;
use tokio::sync::mpsc;

pub use switchml_userspace_core::data_plane::*;

pub mod software;
mod worker_thread;
pub mod xdp;

/// Notable packets, from the data plane to whoever logs them. What the channel has no room for is
/// dropped: events are for people, the counters count.
pub type EventSender = mpsc::Sender<Event>;
