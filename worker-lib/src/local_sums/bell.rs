//! Bells: they wake ranks that wait for results in shared memory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{SocketAddr, UnixDatagram};

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

    /// Readable once it rings, until it is [silenced](Self::silence).
    pub fn file(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub fn silence(&self) {
        while self.0.recv(&mut [0]).is_ok() {}
    }
}

/// What rings the bells of others.
pub(super) struct Ringer(UnixDatagram);

impl Ringer {
    pub fn new() -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Rings a bell. If there is none any more, its rank is gone; if it is full, it rings already.
    pub fn ring(&self, bell: &SocketAddr) {
        let _ = self.0.send_to_addr(&[0], bell);
    }
}
