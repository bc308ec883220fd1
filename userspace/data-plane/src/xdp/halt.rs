//! Stops a start in progress, however long the verifier would go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::signal::Signal;

/// State shared by a start and the code that may end it.
#[derive(Debug, Default)]
pub struct Halt {
    is_wanted: AtomicBool,
    /// The thread that is in the verifier: a [`Pthread`], which is a pointer in musl's libc, and so
    /// nothing that Rust lets threads share.
    verifying: Mutex<Option<usize>>,
}

impl Halt {
    /// Ends the start before the next program is loaded, and interrupts a load in progress: the
    /// verifier gives up when a signal arrives. The loader then tries once more, so call this again
    /// until the start has ended. The process must have a handler for SIGTERM.
    pub fn halt(&self) {
        self.is_wanted.store(true, Ordering::SeqCst);
        // While this is locked, the thread does not leave the verifier.
        if let Some(thread) = *self.verifying() {
            // This fails only for a thread that has ended.
            let _ = pthread_kill(thread as Pthread, Signal::SIGTERM);
        }
    }

    /// Runs `load`, which calls the verifier; `None` if the start should end.
    pub(super) fn unless_wanted<T>(&self, load: impl FnOnce() -> T) -> Option<T> {
        *self.verifying() = Some(pthread_self() as usize);
        let loaded = (!self.is_wanted()).then(load);
        *self.verifying() = None;
        // A load that was interrupted says something else.
        loaded.filter(|_| !self.is_wanted())
    }

    fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::SeqCst)
    }

    fn verifying(&self) -> MutexGuard<'_, Option<usize>> {
        self.verifying.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
