//! What the communicators of a process share, so that one more costs few files and threads: the
//! control thread with its connections, data threads, events, and aggregators of their own.
//!
//! A process may have threads in several network namespaces; each namespace has its own. So has a
//! fork, which has the memory of its parent, but none of its threads.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use crate::control::{self, Control};
use crate::data_threads::DataThreads;
use crate::driver::lock;
use crate::error::Error;
use crate::files;
use crate::peers::Lending;
use crate::waker::Events;

/// See the [module's documentation](self).
pub(crate) struct Commons {
    pub control: Control,
    pub data_threads: DataThreads,
    pub events: Arc<Events>,
    pub own_aggregators: Lending,
}

/// Device and inode of a network namespace.
pub(crate) type Namespace = (u64, u64);

/// The commons of a process, as long as anybody uses them.
struct Process {
    id: u32,
    commons: Mutex<HashMap<Namespace, Weak<Commons>>>,
    /// The process that has forked from this one, if this is the memory of a fork.
    fork: OnceLock<Box<Self>>,
}

impl Process {
    fn new() -> Self {
        Self { id: std::process::id(), commons: Mutex::default(), fork: OnceLock::new() }
    }

    /// The present process. What belongs to a parent may be locked forever, and is left alone.
    fn present() -> &'static Self {
        static FIRST: OnceLock<Process> = OnceLock::new();
        let mut process = FIRST.get_or_init(Self::new);
        while process.id != std::process::id() {
            process = process.fork.get_or_init(|| Box::new(Self::new()));
        }
        process
    }
}

impl Commons {
    /// Those of the calling thread's process and network namespace.
    ///
    /// # Errors
    /// [`control::Error::System`].
    pub fn here() -> Result<Arc<Self>, control::Error> {
        let mut all = lock(&Process::present().commons);
        let namespace = namespace();
        if let Some(known) = all.get(&namespace).and_then(Weak::upgrade) {
            return Ok(known);
        }
        files::raise_limit();
        let commons = Arc::new(Self {
            control: Control::start()?,
            data_threads: DataThreads::default(),
            events: Arc::default(),
            own_aggregators: Lending::default(),
        });
        all.retain(|_, commons| commons.strong_count() > 0);
        all.insert(namespace, Arc::downgrade(&commons));
        Ok(commons)
    }

    /// Keeps what a communicator of so many shards takes while it runs.
    ///
    /// # Errors
    /// When the system refuses a thread or a file.
    pub fn keep_for(&self, shards: usize) -> Result<(), Error> {
        self.data_threads.keep(shards).map_err(Error::system("cannot start a data thread"))?;
        self.events.keep(shards).map_err(Error::system("cannot make an event"))
    }
}

/// The network namespace of the calling thread. Without /proc, all count as one.
pub(crate) fn namespace() -> Namespace {
    fs::metadata("/proc/thread-self/ns/net")
        .map(|file| (file.dev(), file.ino()))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_them_once_as_long_as_they_are_used() {
        let first = Commons::here().unwrap();
        assert!(Arc::ptr_eq(&first, &Commons::here().unwrap()));
        let thread = std::thread::spawn(|| Commons::here().unwrap());
        assert!(Arc::ptr_eq(&first, &thread.join().unwrap()));
    }
}
