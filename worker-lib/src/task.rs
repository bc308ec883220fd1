//! The elements of a call on their way to the driver and back.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};

use crate::driver::Shared;
use crate::error::Error;
use crate::numerics::Element;
use crate::stats::CallStats;

/// A call's elements, while the collective is in flight.
pub trait Task: Send {
    /// The elements, in native byte order.
    fn bytes(&self) -> &[u8];
    /// The same, to be overwritten with the result.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Gives them back with the result, and tells what the call took. A task that is dropped instead has failed.
    fn finish(self: Box<Self>, stats: CallStats);
}

/// The result, and what it took.
type Answer<T> = (Vec<T>, CallStats);

/// Elements that the task owns.
struct Owned<T> {
    tensor: Vec<T>,
    answer: Sender<Answer<T>>,
}

impl<T: Element> Task for Owned<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.tensor)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.tensor)
    }

    fn finish(self: Box<Self>, stats: CallStats) {
        let Self { tensor, answer } = *self;
        // Whoever dropped the handle does not want the result.
        let _ = answer.send((tensor, stats));
    }
}

/// A task that owns its elements, and the handle that gets them back.
pub(crate) fn owned<T: Element>(tensor: Vec<T>, shared: &Arc<Shared>) -> (Box<dyn Task>, Handle<T>) {
    let (answer, answers) = mpsc::channel();
    (Box::new(Owned { tensor, answer }), Handle { answers, answered: None, shared: Arc::clone(shared) })
}

/// A collective in flight. Dropping it does not cancel the collective: the other ranks need this rank's share.
#[must_use = "the result comes out of wait()"]
pub struct Handle<T> {
    answers: Receiver<Answer<T>>,
    answered: Option<Result<Answer<T>, Error>>,
    shared: Arc<Shared>,
}

impl<T> Handle<T> {
    /// Waits for the result.
    ///
    /// # Errors
    /// Why the collective failed, see [`Error`].
    pub fn wait(self) -> Result<Vec<T>, Error> {
        self.wait_with_stats().map(|(tensor, _)| tensor)
    }

    /// Waits for the result, and tells what the call took, too.
    ///
    /// # Errors
    /// As [`Handle::wait`].
    pub fn wait_with_stats(self) -> Result<(Vec<T>, CallStats), Error> {
        match self.answered {
            Some(answer) => answer,
            None => self.answers.recv().map_err(|_| self.shared.reason()),
        }
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
