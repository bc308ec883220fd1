//! Things that a process has once in each network namespace, as long as anybody uses them. A
//! process may have threads in several namespaces. A fork has its own things, too: it has the
//! memory of its parent, but none of its threads.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use crate::lock::lock;

/// Device and inode of a network namespace.
pub(crate) type Namespace = (u64, u64);

/// The network namespace of the calling thread. Without /proc, all count as one.
pub(crate) fn namespace() -> Namespace {
    fs::metadata("/proc/thread-self/ns/net")
        .map(|file| (file.dev(), file.ino()))
        .unwrap_or_default()
}

/// One thing of its kind in each network namespace of a process.
pub(crate) struct PerProcess<T>(OnceLock<Process<T>>);

struct Process<T> {
    id: u32,
    things: Mutex<HashMap<Namespace, Weak<T>>>,
    /// The process that has forked from this one, if this is the memory of a fork.
    fork: OnceLock<Box<Self>>,
}

impl<T> Process<T> {
    fn new() -> Self {
        Self { id: std::process::id(), things: Mutex::default(), fork: OnceLock::new() }
    }
}

impl<T> PerProcess<T> {
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// The thing of the calling thread's process and network namespace, which is made if there is
    /// none.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn here<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let mut things = lock(&self.present().things);
        let namespace = namespace();
        if let Some(known) = things.get(&namespace).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let made = Arc::new(make()?);
        things.retain(|_, thing| thing.strong_count() > 0);
        things.insert(namespace, Arc::downgrade(&made));
        Ok(made)
    }

    /// The present process. What belongs to a parent may be locked forever, and is left alone.
    fn present(&self) -> &Process<T> {
        let mut process = self.0.get_or_init(Process::new);
        while process.id != std::process::id() {
            process = process.fork.get_or_init(|| Box::new(Process::new()));
        }
        process
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_it_once_as_long_as_it_is_used() {
        static NUMBERS: PerProcess<u32> = PerProcess::new();
        let get = |number| NUMBERS.here(|| Ok::<_, ()>(number)).unwrap();
        let first = get(1);
        assert_eq!(*get(2), 1);
        let thread = std::thread::spawn(move || *get(3));
        assert_eq!(thread.join().unwrap(), 1);
        drop(first);
        assert_eq!(*get(4), 4);
    }
}
