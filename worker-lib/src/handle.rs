//! The elements of a call on their way to the drivers and back.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use switchml_worker_core::CallStats;

use crate::driver::{DriverLock, Shared};
use crate::error::Error;
use crate::waker::Wakers;

/// The state that the parts of a call share. It is dropped with the last of them.
pub(crate) struct Whole {
    number: u64,
    /// The number of unfinished parts, and the statistics of the finished ones.
    parts: Mutex<(usize, CallStats)>,
    shared: Arc<Shared>,
    answer: Sender<CallStats>,
}

impl Whole {
    /// Call `number`, of `parts` parts; `answer` gets its statistics once all are finished.
    pub fn new(number: u64, parts: usize, shared: Arc<Shared>, answer: Sender<CallStats>) -> Self {
        Self { number, parts: Mutex::new((parts, CallStats::default())), shared, answer }
    }

    /// Counts the part of a shard as finished. The call is finished with the last part.
    pub fn finish_part(&self, shard: usize, stats: &CallStats) {
        self.shared.finish_part(shard, &stats.round_trips);
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, call) = &mut *parts;
        call.add_part(stats);
        *left -= 1;
        if *left == 0 {
            let call = std::mem::take(call);
            self.shared.finish_call(self.number, &call);
            // The send fails if the user has dropped the handle and does not want the result.
            let _ = self.answer.send(call);
        }
    }
}

/// A wake-up of the threads of a shard, which is due when this is dropped.
pub(crate) struct Deferred(Option<Wakers>);

impl Deferred {
    /// A wake-up of these threads; none if they need none.
    pub fn new(wakers: Option<Wakers>) -> Self {
        Self(wakers)
    }

    /// Wakes them now.
    pub fn wake(&mut self) {
        self.0.take().inspect(Wakers::wake);
    }

    /// This thread does what they would be woken up for.
    fn forget(&mut self) {
        self.0 = None;
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        self.wake();
    }
}

/// A collective in flight. Dropping it does not cancel the collective: the other ranks need this
/// rank's share.
#[must_use = "the result comes out of wait()"]
pub struct Handle<T> {
    number: u64,
    /// The driver of the call's first part.
    driver: Option<Arc<DriverLock>>,
    /// The wake-up of that driver's threads, unless the thread that waits drives.
    deferred: Deferred,
    answers: Receiver<CallStats>,
    answered: Option<Result<CallStats, Error>>,
    /// The tensor. The buffers share it until they are finished or dropped.
    tensor: Arc<T>,
    shared: Arc<Shared>,
}

impl<T> Handle<T> {
    /// A collective, with its number, and the driver of its first part with a wake-up. Its buffers
    /// work on `tensor`, and then send to `answers`.
    pub(crate) fn new(
        (number, driver, deferred): (u64, Option<Arc<DriverLock>>, Deferred),
        answers: Receiver<CallStats>,
        tensor: Arc<T>,
        shared: Arc<Shared>,
    ) -> Self {
        Self { number, driver, deferred, answers, answered: None, tensor, shared }
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// Why the collective failed, see [`Error`].
    pub fn wait(self) -> Result<T, Error> {
        self.wait_with_stats().map(|(tensor, _)| tensor)
    }

    /// Waits for the result. Returns it with the call's statistics.
    ///
    /// # Errors
    /// The errors of [`Handle::wait`].
    pub fn wait_with_stats(mut self) -> Result<(T, CallStats), Error> {
        if self.answered.is_none() {
            self.drive(None);
        }
        let Self { answers, answered, tensor, shared, .. } = self;
        let stats = answered.unwrap_or_else(|| answers.recv().map_err(|_| shared.reason()))?;
        // All buffers are finished: there is no other owner.
        let tensor = Arc::into_inner(tensor).ok_or_else(|| shared.reason())?;
        Ok((tensor, stats))
    }

    /// Sends the first packets of a deferred call on this thread, so that they travel until the
    /// call is waited for. Does not wait for anything.
    pub fn send(&self) {
        if let Some(driver) = &self.driver {
            driver.send(self.number);
        }
    }

    /// Whether [`Handle::wait`] would return at once.
    pub fn is_done(&mut self) -> bool {
        self.wait_for(Duration::ZERO)
    }

    /// Waits until the collective is over, but no longer than `time`. Returns whether it is over,
    /// so that [`Handle::wait`] would return at once.
    pub fn wait_for(&mut self, time: Duration) -> bool {
        if self.answered.is_some() {
            return true;
        }
        let until = Instant::now().checked_add(time);
        if time.is_zero() {
            self.deferred.wake();
        } else {
            self.drive(until);
        }
        let left = until.map_or(time, |until| until.saturating_duration_since(Instant::now()));
        self.answered = match self.answers.recv_timeout(left) {
            Ok(answer) => Some(Ok(answer)),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(self.shared.reason())),
        };
        self.answered.is_some()
    }

    /// This thread waits anyway, so it drives if no other thread does, as in a call that blocks.
    fn drive(&mut self, until: Option<Instant>) {
        if self.driver.as_ref().is_some_and(|driver| driver.run(self.number, until)) {
            self.deferred.forget();
        } else {
            self.deferred.wake();
        }
    }
}
