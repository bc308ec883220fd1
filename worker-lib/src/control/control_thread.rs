//! The control thread of a process, which all its memberships share.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::clock::Clock;
use super::lines::Lines;
use super::{Error, connection};
use crate::files;
use crate::per_process::PerProcess;

/// The control thread. It ends when this is dropped.
pub(crate) struct Control {
    pub(super) handle: Handle,
    shared: Shared,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What memberships share.
#[derive(Clone, Default)]
pub(super) struct Shared {
    pub lines: Arc<Lines>,
    pub clock: Arc<Clock>,
}

impl Control {
    /// That of the calling thread's process and network namespace.
    ///
    /// # Errors
    ///
    /// [`Error::System`].
    pub fn here() -> Result<Arc<Self>, Error> {
        static CONTROL: PerProcess<Control> = PerProcess::new();
        CONTROL.here(Self::start)
    }

    fn start() -> Result<Self, Error> {
        files::raise_limit();
        let runtime = connection::runtime()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let shared = Shared::default();
        let clock = Arc::clone(&shared.clock);
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    // The sender is dropped.
                    _ = stopped => {}
                    () = clock.run() => {}
                }
            });
        };
        let thread = switchml_control::thread::spawn("switchml-control", run)
            .map_err(|error| Error::System { why: files::explained(&error) })?;
        Ok(Self { handle, shared, stop: Some(stop), thread: Some(thread) })
    }

    pub(super) fn shared(&self) -> Shared {
        self.shared.clone()
    }

    /// Whether this is the control thread, which must not wait for itself.
    pub fn is_here(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| thread.thread().id() == thread::current().id())
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.is_here() {
            return;
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
