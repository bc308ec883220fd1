//! The data planes of this host; those in switches are the crate `switchml-p4`.

use switchml_protocol::maps::Event;
use tokio::sync::mpsc;

pub mod software;
mod worker_thread;
pub mod xdp;

/// Notable packets, from the data plane to whoever logs them. What the channel has no room for is
/// dropped: events are for people, the counters count.
pub type EventSender = mpsc::Sender<Event>;
