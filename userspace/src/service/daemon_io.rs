//! The outside world of the daemon's control plane: data plane, ranks' streams, log.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use switchml_control::join_event::Event;
use switchml_userspace_core::control_plane::{Io, Timer};
use switchml_userspace_core::data_plane::DataPlane;
use switchml_userspace_core::jobs::Level;
use tracing::{error, info, warn};

use super::State;
use super::turns::{lock, turn};
use crate::hosts::Hosts;
use crate::mailbox::Sender;

#[derive(Clone)]
pub struct DaemonIo {
    pub data_plane: Arc<dyn DataPlane>,
    /// Counts of the lines of the log that each host has caused.
    pub hosts: Arc<Hosts>,
    /// The host that causes the current effects.
    pub cause: Option<IpAddr>,
    /// The state, where timers find the control plane.
    pub state: Weak<Mutex<State>>,
}

impl DaemonIo {
    /// The same I/O, with effects caused by this host.
    pub fn caused_from(&self, host: Option<IpAddr>) -> Self {
        Self { cause: host, ..self.clone() }
    }
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
                let State { control_plane, io, .. } = &mut *turn(&state).await;
                control_plane.on_timer(io, timer);
            }
        });
    }

    fn prepare(&mut self, epoch: u32, numbers: &[u16]) -> bool {
        if self.data_plane.is_prepared(numbers) {
            return true;
        }
        let (data_plane, state) = (Arc::clone(&self.data_plane), Weak::clone(&self.state));
        let numbers = numbers.to_vec();
        tokio::task::spawn_blocking(move || {
            let result = data_plane.prepare(&numbers);
            if let Some(state) = state.upgrade() {
                let State { control_plane, io, .. } = &mut *lock(&state);
                control_plane.prepared(io, (numbers[0], epoch), result);
            }
        });
        false
    }

    fn log(&mut self, level: Level, line: &str) {
        let left_out = match self.cause.filter(|_| level != Level::Error) {
            Some(host) => self.hosts.line(host, Instant::now()),
            None => Some(0),
        };
        let more = match (left_out, self.cause) {
            (None, _) => return,
            (Some(lines @ 1..), Some(host)) => format!(" ({lines} lines of {host} left out)"),
            _ => String::new(),
        };
        let line = format!("{line}{more}");
        match level {
            Level::Info => info!("{line}"),
            Level::Warn => warn!("{line}"),
            Level::Error => error!("{line}"),
        }
    }
}
