//! Lends a caller's slice to the driver for the length of a call: the one place where a borrow may cross threads.

#![allow(unsafe_code)]

use std::sync::mpsc::{self, Receiver, Sender};

use crate::stats::CallStats;
use crate::task::Task;

/// Elements that the task has borrowed.
struct Lent {
    start: *mut u8,
    len: usize,
    answer: Sender<CallStats>,
}

// SAFETY: the pointer is the only one in use to its bytes while this value exists (see `lend`), and bytes have no thread.
unsafe impl Send for Lent {}

impl Task for Lent {
    fn bytes(&self) -> &[u8] {
        // SAFETY: `lend` holds the exclusive borrow that `start` and `len` came from, and does not return before this value is gone.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` makes the slice the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    fn finish(self: Box<Self>, stats: CallStats) {
        // Sending lets the lender go on. The pointer is not used after that.
        let _ = self.answer.send(stats);
    }
}

/// Waits until the task is gone, also when the lender unwinds.
struct Borrow(Receiver<CallStats>);

impl Borrow {
    /// Returns once the task has sent, that is, was consumed by `finish`, or has dropped its sender, and so itself; what it has
    /// sent. A task that is leaked keeps this thread waiting for ever, which is sound.
    fn end(&self) -> Option<CallStats> {
        self.0.recv().ok()
    }
}

impl Drop for Borrow {
    fn drop(&mut self) {
        // After a first `end` there is no sender left, and this returns at once.
        self.end();
    }
}

/// Lends `bytes` to the task that `submit` takes. Returns once the task is gone: what the call took if the task was
/// finished, not dropped.
pub(crate) fn lend(bytes: &mut [u8], submit: impl FnOnce(Box<dyn Task>)) -> Option<CallStats> {
    let (answer, answers) = mpsc::channel();
    let task = Box::new(Lent { start: bytes.as_mut_ptr(), len: bytes.len(), answer });
    let borrow = Borrow(answers);
    submit(task);
    borrow.end()
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;
    use crate::stats::Recorder;

    #[test]
    fn the_lender_waits_and_sees_what_was_written() {
        let mut bytes = *b"lent";
        let finished = lend(&mut bytes, |mut task| {
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(20));
                task.bytes_mut().make_ascii_uppercase();
                task.finish(Recorder::new(4).finish());
            });
        });
        assert_eq!((finished.map(|stats| stats.bytes), &bytes), (Some(4), b"LENT"));
    }

    #[test]
    fn a_dropped_task_ends_the_borrow() {
        assert_eq!(lend(&mut [0], drop), None);
    }
}
