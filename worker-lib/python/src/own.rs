//! Values that belong to the process that made them: a fork of it has its memory, but none of its
//! threads.

use std::mem::ManuallyDrop;

/// A value of one process.
pub struct Own<T> {
    value: ManuallyDrop<T>,
    process: u32,
}

impl<T> Own<T> {
    /// A value of this process.
    pub fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), process: std::process::id() }
    }

    /// The value, in its own process. In a fork it may be locked forever.
    ///
    /// # Errors
    ///
    /// In a fork, what to do instead.
    pub fn get(&self) -> Result<&T, String> {
        if self.is_here() {
            return Ok(&self.value);
        }
        Err(format!(
            "this is a fork of process {}, which the communicator belongs to, and does not have \
             its threads; make a new communicator here",
            self.process
        ))
    }

    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        // A fork has no threads that this could wait for.
        if self.is_here() {
            // SAFETY: this is the only place that drops it, and nobody uses it any more.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
