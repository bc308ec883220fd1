//! Wakes a thread that waits for packets or for work.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// Wakes the thread that waits, any number of times; clones wake the same thread.
#[derive(Clone)]
pub(crate) struct Waker(Arc<OwnedFd>);

impl Waker {
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)))
    }

    /// Wakes the thread, or keeps it from its next sleep.
    pub fn wake(&self) {
        // Fails only when 2^64 wake-ups are waiting already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Sleeps until there was a wake-up, and clears it.
    pub fn sleep(&self) -> io::Result<()> {
        match poll(&mut [PollFd::new(self, PollFlags::IN)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => self.clear(),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Clears the wake-ups so far.
    pub fn clear(&self) {
        // Fails only when there are no wake-ups.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The wakers of a driver: for the thread that drives, which waits for packets, and for the data
/// thread, which sleeps.
#[derive(Clone)]
pub(crate) struct Wakers {
    pub driving: Waker,
    pub idle: Waker,
}

impl Wakers {
    pub fn wake(&self) {
        self.driving.wake();
        self.idle.wake();
    }
}
