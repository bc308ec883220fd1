//! Signs of life at the other end of a connection: what its process sends, and what its host does.
//! A process that is stopped sends nothing, and its host still acknowledges.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};

/// When data, or the end, was last read from a connection. This distinguishes a connection that
/// ends after a silence from one that was closed.
#[derive(Clone, Debug)]
pub struct Pulse(Arc<Mutex<Instant>>);

impl Default for Pulse {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Pulse {
    /// Something was read.
    pub fn beat(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// How long nothing was read.
    pub fn silence(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// Has the kernel probe the other end's host after so long a silence, and then again and again, and
/// break the connection if the host acknowledges nothing for `patience`.
///
/// # Errors
/// Those of the system.
pub fn watch_host(connection: &impl AsFd, silence: Duration, patience: Duration) -> io::Result<()> {
    let socket = SockRef::from(connection);
    let probes = TcpKeepalive::new().with_time(silence).with_interval(Duration::from_secs(1));
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_user_timeout(Some(patience))
}
