//! The outside world of a combiner's control plane: data plane, ranks' streams, parent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use switchml_control::LeaveRequest;
use switchml_control::join_event::Event;
use switchml_userspace_core::data_plane::DataPlane;
use switchml_userspace_core::jobs::{Level, StreamId};
use switchml_userspace_core::proxy::{self, Io, Timer};
use tracing::{error, info, warn};

use super::{Link, State, Streams};
use crate::service::turns::turn;

/// Longest time to tell the parent that a rank was lost.
const GOODBYE: Duration = Duration::from_secs(1);

pub struct ProxyIo {
    pub data_plane: Arc<dyn DataPlane>,
    /// The state, where timers find the proxy.
    pub state: Weak<Mutex<State>>,
    pub streams: Streams,
    pub links: BTreeMap<StreamId, Link>,
}

impl Io for ProxyIo {
    type DataPlane = dyn DataPlane;

    fn data_plane(&self) -> &Self::DataPlane {
        &*self.data_plane
    }

    fn tell(&mut self, stream: StreamId, event: Event) {
        if let Some(stream) = self.streams.get(&stream) {
            stream.send(event);
        }
    }

    fn end(&mut self, stream: StreamId, broken: Option<String>) {
        match (self.streams.remove(&stream), broken) {
            (Some(stream), Some(why)) => stream.break_off(why),
            (stream, _) => drop(stream),
        }
    }

    fn leave(&mut self, stream: StreamId, request: LeaveRequest) {
        let Some(Link { client, listener }) = self.links.remove(&stream) else { return };
        let mut client = client;
        tokio::spawn(async move {
            // If the parent does not get the request, the end of the connection tells it.
            let _ = tokio::time::timeout(GOODBYE, client.leave(request)).await;
            listener.abort();
        });
    }

    fn hang_up(&mut self, stream: StreamId) {
        if let Some(link) = self.links.remove(&stream) {
            link.listener.abort();
        }
    }

    fn schedule(&mut self, after: Duration, timer: Timer) {
        let state = Weak::clone(&self.state);
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            if let Some(state) = state.upgrade() {
                let State { proxy, io } = &mut *turn(&state).await;
                proxy::on_timer(proxy, io, timer);
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
