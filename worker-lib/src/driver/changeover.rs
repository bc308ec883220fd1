//! Whether a driver's aggregator is lost, and its way to the next one.
//!
//! The module around this one has `sync`, because a test gives it that of a model checker.

use super::sync::{AtomicBool, Mutex, MutexGuard, Ordering, PoisonError};

/// See the module. Others lose an aggregator and leave the way to the next one; the driver takes
/// that.
pub(crate) struct Changeover<T> {
    /// Changed only under the lock.
    is_lost: AtomicBool,
    arrival: Mutex<Option<T>>,
}

impl<T> Changeover<T> {
    /// A driver that has an aggregator.
    pub fn new() -> Self {
        Self { is_lost: AtomicBool::new(false), arrival: Mutex::new(None) }
    }

    /// Whether the aggregator is lost, or a way to the next one is there.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// The aggregator is lost; so is a way to it that the driver has not taken yet.
    pub fn lose(&self) {
        let mut arrival = self.lock();
        *arrival = None;
        self.is_lost.store(true, Ordering::Release);
    }

    /// Another aggregator goes on.
    pub fn arrive(&self, arrival: T) {
        *self.lock() = Some(arrival);
    }

    /// The driver's way to the next aggregator, which it has from now on.
    pub fn take(&self) -> Option<T> {
        let mut arrival = self.lock();
        let taken = arrival.take()?;
        self.is_lost.store(false, Ordering::Release);
        Some(taken)
    }

    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        // Changes are single assignments, so a panic leaves nothing half changed.
        self.arrival.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
