//! The collectives in flight, in the order of their issue.

use std::collections::VecDeque;

use crate::collective::{Call, Collective};
use crate::engine::Chunk;
use crate::numerics::Codec;
use crate::task::Task;

/// Collectives in flight. The chunks of one get their numbers after those of the one before.
pub(crate) struct Schedule {
    /// Lanes of a full chunk.
    lanes: u16,
    /// Number of the first in `collectives`.
    first: u64,
    /// `None` for those that are done.
    collectives: VecDeque<Option<Collective>>,
    /// Place in `collectives` of the one whose chunks get their numbers.
    sending: usize,
    /// Of collectives that are done, to be given back.
    done: Vec<Box<dyn Task>>,
}

impl Schedule {
    pub fn new(lanes: u16) -> Self {
        Self { lanes, first: 0, collectives: VecDeque::new(), sending: 0, done: Vec::new() }
    }

    /// Whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.collectives.is_empty()
    }

    /// Adds a collective.
    pub fn push(&mut self, call: &Call, codec: Codec, contributes: bool, task: Box<dyn Task>) {
        let number = self.first + self.collectives.len() as u64;
        self.collectives.push_back(Some(Collective::new(number, call, codec, contributes, self.lanes, task)));
    }

    /// The next new chunk, if it can be told already.
    pub fn next(&mut self) -> Option<Chunk> {
        while let Some(place) = self.collectives.get_mut(self.sending) {
            // One that is done has had all its chunks numbered.
            if let Some(collective) = place {
                let chunk = collective.next();
                if chunk.is_some() || !collective.is_numbered() {
                    return chunk;
                }
                self.done.extend(take_if_done(place));
            }
            self.sending += 1;
        }
        self.forget_done();
        None
    }

    /// Writes this rank's share of a chunk; the wrapping sum of its lanes.
    pub fn encode(&self, chunk: &Chunk, payload: &mut [u8]) -> u32 {
        match self.place(chunk).and_then(|place| self.collectives.get(place)) {
            Some(Some(collective)) => collective.encode(chunk.index, payload),
            // Not reached: a chunk without a result belongs to a collective that is not done.
            _ => 0,
        }
    }

    /// Takes in the result of a chunk.
    pub fn decode(&mut self, chunk: &Chunk, payload: &[u8]) {
        let Some(place) = self.place(chunk).and_then(|place| self.collectives.get_mut(place)) else { return };
        if let Some(collective) = place {
            collective.decode(chunk.index, payload);
            self.done.extend(take_if_done(place));
        }
        self.forget_done();
    }

    /// Whether collectives are done and not given back yet.
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Gives back the elements of the collectives that are done.
    pub fn give_back(&mut self) {
        self.done.drain(..).for_each(Task::finish);
    }

    fn place(&self, chunk: &Chunk) -> Option<usize> {
        chunk.collective.checked_sub(self.first).map(|place| place as usize)
    }

    fn forget_done(&mut self) {
        while self.sending > 0 && matches!(self.collectives.front(), Some(None)) {
            self.collectives.pop_front();
            self.first += 1;
            self.sending -= 1;
        }
    }
}

/// The task of a collective that is done.
fn take_if_done(place: &mut Option<Collective>) -> Option<Box<dyn Task>> {
    place.take_if(|collective| collective.is_done()).map(Collective::into_task)
}
