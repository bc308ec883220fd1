//! Locks whose data changes by single assignments, so that a panic leaves nothing half changed.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes such a lock, also after a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
