//! Data threads: they drive what no caller drives. All communicators of a process take them from
//! here, because most of these have nothing in flight.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::thread;

use crate::lock::lock;

/// A driver, to a data thread.
pub(crate) trait Drives: Send + Sync {
    /// A data thread's turn: drives calls that no caller waits for.
    fn serve(&self);
}

/// The data threads of a process. They end when this is dropped.
#[derive(Default)]
pub(crate) struct DataThreads(Arc<Pool>);

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    has_changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Drivers that no thread has taken yet.
    waiting: VecDeque<Arc<dyn Drives>>,
    threads: usize,
    /// Threads that wait for a driver.
    idle: usize,
    /// Threads that stay without work: as many as the largest communicator has shards.
    kept: usize,
    is_over: bool,
}

impl DataThreads {
    /// Keeps a thread for each shard of a communicator.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn keep(&self, shards: usize) -> io::Result<()> {
        let mut state = lock(&self.0.state);
        state.kept = state.kept.max(shards);
        while state.threads < state.kept {
            self.0.spawn(&mut state)?;
        }
        Ok(())
    }

    /// The turns of a driver that is about to be made.
    pub fn turns(&self) -> Turns {
        Turns(Arc::new(Inner {
            pool: Arc::clone(&self.0),
            // The first turn begins with `Turns::begin`.
            state: AtomicU8::new(DUE),
            driver: OnceLock::new(),
        }))
    }
}

impl Drop for DataThreads {
    fn drop(&mut self) {
        lock(&self.0.state).is_over = true;
        self.0.has_changed.notify_all();
    }
}

impl Pool {
    fn spawn(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        let pool = Arc::clone(self);
        thread::Builder::new().name("switchml-data".to_owned()).spawn(move || pool.run())?;
        state.threads += 1;
        Ok(())
    }

    /// Has a thread serve a driver. If the system refuses another thread, the next free one does.
    fn serve(self: &Arc<Self>, driver: Arc<dyn Drives>) {
        let mut state = lock(&self.state);
        state.waiting.push_back(driver);
        if state.waiting.len() > state.idle {
            let _ = self.spawn(&mut state);
        }
        drop(state);
        self.has_changed.notify_one();
    }

    fn run(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(driver) = state.waiting.pop_front() {
                drop(state);
                // Who unwinds has ended the driver, and the thread serves others.
                let _ = catch_unwind(AssertUnwindSafe(|| driver.serve()));
                drop(driver);
                state = lock(&self.state);
            } else if state.is_over || state.threads > state.kept {
                state.threads -= 1;
                return;
            } else {
                state.idle += 1;
                state = self.has_changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

/// States of [`Turns`]: no turn; one that waits or goes on; another one after it; no more.
const IDLE: u8 = 0;
const BUSY: u8 = 1;
const DUE: u8 = 2;
const OVER: u8 = 3;

/// When a data thread serves a driver; clones are of the same driver.
#[derive(Clone)]
pub(crate) struct Turns(Arc<Inner>);

struct Inner {
    pool: Arc<Pool>,
    state: AtomicU8,
    driver: OnceLock<Weak<dyn Drives>>,
}

impl Turns {
    /// Has a data thread serve this driver, at once and whenever it is asked for.
    pub fn begin(&self, driver: Arc<dyn Drives>) {
        if self.0.driver.set(Arc::downgrade(&driver)).is_ok() {
            self.0.pool.serve(driver);
        }
    }

    /// Asks for a turn, which begins after this.
    pub fn ask(&self) {
        let asked =
            self.0.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |state| match state {
                IDLE => Some(BUSY),
                BUSY => Some(DUE),
                _ => None,
            });
        if asked == Ok(IDLE)
            && let Some(driver) = self.0.driver.get().and_then(Weak::upgrade)
        {
            self.0.pool.serve(driver);
        }
    }

    /// A turn begins.
    pub fn take(&self) {
        let _ = self.0.state.compare_exchange(DUE, BUSY, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// A turn is done. Whether another one was asked for meanwhile.
    pub fn is_asked_again(&self) -> bool {
        self.0.state.compare_exchange(BUSY, IDLE, Ordering::SeqCst, Ordering::SeqCst).is_err()
    }

    /// There are no more turns.
    pub fn end(&self) {
        self.0.state.store(OVER, Ordering::SeqCst);
    }
}
