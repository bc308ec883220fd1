//! What the communicators of a process share, so that one more costs few files and threads: data
//! threads, and events. They also share the control thread, its connections (`control::lines`), and
//! aggregators of their own.
//!
//! Torch makes dozens of groups, and so of communicators. One more takes a socket for each shard,
//! and no thread.

use std::convert::Infallible;
use std::sync::Arc;

use crate::data_threads::DataThreads;
use crate::error::Error;
use crate::files;
use crate::per_process::PerProcess;
use crate::waker::Events;

/// See the [module's documentation](self).
#[derive(Default)]
pub(crate) struct Commons {
    pub data_threads: DataThreads,
    pub events: Arc<Events>,
}

impl Commons {
    /// Those of the calling thread's process and network namespace.
    pub fn here() -> Arc<Self> {
        static COMMONS: PerProcess<Commons> = PerProcess::new();
        let make = || {
            files::raise_limit();
            Ok::<_, Infallible>(Self::default())
        };
        let Ok(commons) = COMMONS.here(make);
        commons
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
