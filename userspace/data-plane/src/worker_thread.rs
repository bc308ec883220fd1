//! A thread that waits for a descriptor, and can be told to end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

/// A running thread; dropping this ends it, and waits for that.
pub struct WorkerThread {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

/// Tells the thread to end.
pub struct Stop(OwnedFd);

impl WorkerThread {
    /// Runs `work` in a thread of this name. It should return when [`Stop::wait_readable`] says
    /// false.
    ///
    /// # Errors
    ///
    /// When the system has no descriptor or thread left.
    pub fn spawn(
        name: &str,
        work: impl FnOnce(&Stop) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(Stop(eventfd(0, EventfdFlags::CLOEXEC)?));
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn({
            let (name, stop) = (name.to_owned(), Arc::clone(&stop));
            move || {
                if let Err(error) = work(&stop) {
                    tracing::error!("the {name} thread failed: {error}");
                }
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        // An eventfd takes 8 bytes, a number; it fails only when that number would overflow.
        let _ = rustix::io::write(&self.stop.0, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has been reported already.
            let _ = thread.join();
        }
    }
}

impl Stop {
    /// Waits until there is something to read (true), or the thread has been told to end (false).
    ///
    /// # Errors
    ///
    /// When the kernel cannot wait for the descriptor.
    pub fn wait_readable(&self, descriptor: &impl AsFd) -> io::Result<bool> {
        loop {
            let mut ready = [
                PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN),
            ];
            match poll(&mut ready, None) {
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(ready[0].revents().is_empty()),
            }
        }
    }
}
