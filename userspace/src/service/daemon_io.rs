//! What the control plane does: in the data plane, to ranks' streams, to the log.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use switchml_control::join_event::Event;
use switchml_userspace_core::control_plane::{Io, Timer};
use switchml_userspace_core::data_plane::DataPlane;
use switchml_userspace_core::jobs::Level;
use tracing::{error, info, warn};

use super::{State, lock};
use crate::mailbox::Sender;

pub struct DaemonIo {
    pub data_plane: Arc<dyn DataPlane>,
    /// Where timers find the control plane.
    pub state: Weak<Mutex<State>>,
}

impl Io for DaemonIo {
    type Stream = Sender;
    type DataPlane = dyn DataPlane;

    fn data_plane(&self) -> &Self::DataPlane {
        &*self.data_plane
    }

    fn tell(&mut self, stream: &Sender, event: Event) {
        stream.send(event);
    }

    fn end(&mut self, stream: Sender) {
        drop(stream);
    }

    fn schedule(&mut self, after: Duration, timer: Timer) {
        let state = Weak::clone(&self.state);
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            if let Some(state) = state.upgrade() {
                let State { control_plane, io, .. } = &mut *lock(&state);
                control_plane.on_timer(io, timer);
            }
        });
    }

    fn log(&mut self, level: Level, line: &str) {
        match level {
            Level::Info => info!("{line}"),
            Level::Warn => warn!("{line}"),
            Level::Error => error!("{line}"),
        }
    }
}
