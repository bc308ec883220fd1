//! The elements of a call on their way to the drivers and back.

use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};

use switchml_worker_core::CallStats;

use crate::driver::Shared;
use crate::error::Error;

/// What the parts of a call have in common. It is gone when they all are.
pub(crate) struct Whole {
    number: u64,
    /// Parts that are not finished, and what the others took.
    parts: Mutex<(usize, CallStats)>,
    shared: Arc<Shared>,
    answer: Sender<CallStats>,
}

impl Whole {
    /// Call `number`, of so many parts; `answer` gets what it took once all are finished.
    pub fn new(number: u64, parts: usize, shared: Arc<Shared>, answer: Sender<CallStats>) -> Self {
        Self { number, parts: Mutex::new((parts, CallStats::default())), shared, answer }
    }

    /// A part is finished. With the last one the call is.
    pub fn finish_part(&self, stats: &CallStats) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, call) = &mut *parts;
        call.add_part(stats);
        *left -= 1;
        if *left == 0 {
            let call = std::mem::take(call);
            self.shared.finish_call(self.number, &call);
            // Whoever dropped the handle does not want the result.
            let _ = self.answer.send(call);
        }
    }
}

/// A collective in flight. Dropping it does not cancel the collective: the other ranks need this
/// rank's share.
#[must_use = "the result comes out of wait()"]
pub struct Handle<T> {
    answers: Receiver<CallStats>,
    answered: Option<Result<CallStats, Error>>,
    /// The buffers have it, too, until they are finished or dropped.
    tensor: Arc<T>,
    shared: Arc<Shared>,
}

impl<T> Handle<T> {
    /// A collective whose buffers work on `tensor`, and then answer.
    pub(crate) fn new(answers: Receiver<CallStats>, tensor: Arc<T>, shared: Arc<Shared>) -> Self {
        Self { answers, answered: None, tensor, shared }
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// Why the collective failed, see [`Error`].
    pub fn wait(self) -> Result<T, Error> {
        self.wait_with_stats().map(|(tensor, _)| tensor)
    }

    /// Waits for the result, and tells what the call took, too.
    ///
    /// # Errors
    /// As [`Handle::wait`].
    pub fn wait_with_stats(self) -> Result<(T, CallStats), Error> {
        let Self { answers, answered, tensor, shared } = self;
        let stats = answered.unwrap_or_else(|| answers.recv().map_err(|_| shared.reason()))?;
        // All buffers are finished: there is no other owner.
        let tensor = Arc::into_inner(tensor).ok_or_else(|| shared.reason())?;
        Ok((tensor, stats))
    }

    /// Whether [`Handle::wait`] would return at once.
    pub fn is_done(&mut self) -> bool {
        if self.answered.is_none() {
            self.answered = match self.answers.try_recv() {
                Ok(answer) => Some(Ok(answer)),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(Err(self.shared.reason())),
            };
        }
        self.answered.is_some()
    }
}
