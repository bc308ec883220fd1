//! Bells: they wake ranks that wait for results in shared memory.
//!
//! A rank that sleeps has a flag in the memory, and a bell: a Unix socket. The rank that posts
//! results rings it once for all results that a look at its own socket has brought.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::segment::Segment;

/// The bell of a rank's shard. Whoever shares the network namespace can ring it, which costs the
/// rank a look.
pub(super) struct Bell(UnixDatagram);

impl Bell {
    /// A bell with this name.
    pub fn new(name: &SocketAddr) -> io::Result<Self> {
        let socket = UnixDatagram::bind_addr(name)?;
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Waits by `wait`, which returns soon once the descriptor is readable, unless there is news
    /// already. `asleep` is 1 meanwhile.
    pub fn wait(
        &self,
        asleep: &AtomicU32,
        has_news: impl FnOnce() -> bool,
        wait: impl FnOnce(Option<BorrowedFd<'_>>) -> io::Result<()>,
    ) -> io::Result<()> {
        asleep.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let outcome = if has_news() { Ok(()) } else { wait(Some(self.0.as_fd())) };
        asleep.store(0, Ordering::Relaxed);
        // A rank that saw it asleep may ring only later: that costs a look.
        while self.0.recv(&mut [0]).is_ok() {}
        outcome
    }
}

/// What rings the bells of others, which are at these places. If the system refused the socket,
/// they find what is new when they would send again.
pub(super) struct Ringer {
    socket: Option<UnixDatagram>,
    others: Vec<(usize, SocketAddr)>,
}

impl Ringer {
    pub fn new(others: Vec<(usize, SocketAddr)>) -> Self {
        let socket = UnixDatagram::unbound().and_then(|socket| {
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        Self { socket: socket.ok(), others }
    }

    /// Wakes those that wait for a shard's news. If there is no bell any more, its rank is gone; if
    /// it is full, it rings already.
    pub fn ring(&self, segment: &Segment, shard: usize) {
        // Either this thread sees that another one sleeps, or that sees what is new.
        fence(Ordering::SeqCst);
        let Some(socket) = &self.socket else { return };
        for (place, bell) in &self.others {
            let asleep = segment.asleep(shard, *place);
            if asleep.load(Ordering::Relaxed) == 1 && asleep.swap(0, Ordering::AcqRel) == 1 {
                let _ = socket.send_to_addr(&[0], bell);
            }
        }
    }
}
