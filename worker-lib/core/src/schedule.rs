//! The collectives in flight, in the order of their issue.

use std::collections::VecDeque;

use switchml_protocol::ranks::Ranks;

use crate::buffer::Buffer;
use crate::call::{Call, Submission};
use crate::collective::{Collective, Terms};
use crate::engine::{Chunk, Completed, Failure, Part};
use crate::phases::predictor::Predictor;
use crate::stats::CallStats;

/// Collectives in flight. The chunks of one get their numbers after those of the one before (rule
/// 17.7).
pub(crate) struct Schedule {
    terms: Terms,
    /// Number of collectives before the first in `collectives`.
    first: u64,
    /// The collectives; `None` for finished ones.
    collectives: VecDeque<Option<Collective>>,
    /// Place in `collectives` of the collective whose chunks are being numbered.
    sending: usize,
    /// Buffers and statistics of finished collectives, to be given back.
    done: Vec<(Box<dyn Buffer>, CallStats)>,
    predictor: Predictor,
}

impl Schedule {
    pub fn new(terms: Terms) -> Self {
        Self {
            terms,
            first: 0,
            collectives: VecDeque::new(),
            sending: 0,
            done: Vec::new(),
            predictor: Predictor::default(),
        }
    }

    /// Whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.collectives.is_empty()
    }

    /// Adds a collective.
    pub fn push(&mut self, submission: Submission) {
        let place = self.first + self.collectives.len() as u64;
        self.collectives.push_back(Some(Collective::new(place, self.terms, submission)));
    }

    /// Whether the collective with this number, which was added, is done.
    pub fn is_done(&self, number: u64) -> bool {
        !self.collectives.iter().flatten().any(|collective| collective.number() == number)
    }

    /// The next new chunk, if it is known already.
    pub fn next(&mut self) -> Option<Chunk> {
        while let Some(place) = self.collectives.get_mut(self.sending) {
            // A finished collective has had all its chunks numbered.
            if let Some(collective) = place {
                let chunk = collective.next(&self.predictor);
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
            Some(Some(collective)) => collective.encode(chunk.part, payload),
            // Not reached: a chunk without a result belongs to an unfinished collective.
            _ => 0,
        }
    }

    /// Whether the unchecked maximum that came for a chunk may be right.
    pub fn accept(&mut self, chunk: &Chunk, maximum: &[u8]) -> bool {
        let place = self.place(chunk).and_then(|place| self.collectives.get_mut(place));
        place
            .and_then(Option::as_mut)
            .is_some_and(|collective| collective.accept(chunk.part, maximum))
    }

    /// Decodes the result of a chunk.
    ///
    /// # Errors
    /// When an accepted maximum turns out to be wrong.
    pub fn decode(
        &mut self,
        now: u64,
        completed: &Completed,
        missing: &Ranks,
        payload: &[u8],
    ) -> Result<(), Failure> {
        self.complete(now, completed, missing, |collective, part, predictor| {
            collective.decode(part, payload, predictor)
        })
    }

    /// Notes that a chunk is complete whose lanes this rank does not need.
    pub fn pass(&mut self, now: u64, completed: &Completed, missing: &Ranks) {
        let _ = self.complete(now, completed, missing, |collective, part, _| {
            collective.pass(part);
            Ok(())
        });
    }

    fn complete(
        &mut self,
        now: u64,
        Completed { chunk, history, .. }: &Completed,
        missing: &Ranks,
        take_in: impl FnOnce(&mut Collective, Part, &mut Predictor) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(place) = self.place(chunk).and_then(|place| self.collectives.get_mut(place))
        else {
            return Ok(());
        };
        if let Some(collective) = place {
            take_in(collective, chunk.part, &mut self.predictor)?;
            collective.record(now, history, missing);
            self.done.extend(take_if_done(place));
        }
        self.forget_done();
        Ok(())
    }

    /// The unfinished collectives up to collective `last`, with their numbers in the session.
    pub fn in_flight(&self, last: u64) -> impl Iterator<Item = (u64, &Call)> {
        let placed = (self.first..=last).zip(&self.collectives);
        placed.filter_map(|(_, place)| {
            place.as_ref().map(|collective| (collective.number(), collective.call()))
        })
    }

    /// Whether there are finished collectives that are not given back yet.
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Statistics of these.
    pub fn done(&self) -> impl Iterator<Item = &CallStats> {
        self.done.iter().map(|(_, stats)| stats)
    }

    /// Gives back the elements of the collectives that are done.
    pub fn give_back(&mut self) {
        self.done.drain(..).for_each(|(buffer, stats)| buffer.finish(stats));
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

/// The buffer and statistics of a collective, if it is done.
fn take_if_done(place: &mut Option<Collective>) -> Option<(Box<dyn Buffer>, CallStats)> {
    place.take_if(|collective| collective.is_done()).map(Collective::finish)
}
