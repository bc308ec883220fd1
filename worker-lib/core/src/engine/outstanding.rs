//! The outstanding chunks: one place per slot.

use std::collections::VecDeque;

use super::chunk::{Chunk, History};

/// A chunk that was sent and has no result yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outstanding {
    pub number: u64,
    pub slot: u16,
    pub round: u32,
    pub chunk: Chunk,
    /// Time of the last transmission, or of the PENDING that answered it.
    pub sent_at: u64,
    /// Place of that transmission in the order of all transmissions.
    pub sequence: u64,
    /// Whether the chunk was sent again, because it seemed lost.
    pub resent: bool,
    /// Whether the chunk must be sent again.
    pub lost: bool,
    /// Whether its lanes have been sent: false if they were left out, or still wait for the window.
    pub in_full: bool,
    /// Whether the aggregator said that this rank is in, so that the chunk waits for others.
    pub pending: bool,
    /// Time of the last PENDING.
    pub pending_at: u64,
    /// Time of the last answer other than a result.
    pub answered_at: u64,
    /// Time of the last damaged result.
    pub damaged_at: Option<u64>,
    pub history: History,
}

impl Outstanding {
    /// Whether the chunk was sent once, in the order of numbers, and has had no answer.
    pub fn is_fresh(&self) -> bool {
        !self.resent && !self.history.room && !self.pending && !self.chunk.may_wait
    }

    /// Whether the chunk has yet to be sent.
    pub fn is_unsent(&self) -> bool {
        self.chunk.may_wait && !self.in_full
    }

    /// Whether its result may wait only for another rank's lanes: the chunk was EMPTY, and nobody
    /// has asked for its lanes.
    pub fn waits_for_lanes(&self) -> bool {
        self.chunk.empty && (!self.in_full || self.pending)
    }
}

/// The outstanding chunks, found by slot and by number.
#[derive(Clone, Debug)]
pub(super) struct Table {
    slots: Box<[Option<Outstanding>]>,
    /// The oldest outstanding chunk: every chunk before it has its result.
    oldest: Place,
    /// The place of the next new chunk.
    next: Place,
    len: u32,
    /// Number of outstanding chunks whose lanes have not been sent.
    empty: u32,
    /// Numbers of the chunks that have yet to be sent, in the order in which they leave.
    unsent: VecDeque<u64>,
}

/// A chunk's number, and where that puts it (rule 12.1). Counted on: dividing takes longer than the
/// rest.
#[derive(Clone, Copy, Debug)]
struct Place {
    number: u64,
    slot: u16,
    round: u32,
}

impl Place {
    fn of(number: u64, slots: usize) -> Self {
        let slots = slots as u64;
        Self { number, slot: (number % slots) as u16, round: (number / slots) as u32 }
    }

    fn advance(&mut self, slots: usize) {
        self.number += 1;
        self.slot += 1;
        if usize::from(self.slot) == slots {
            self.slot = 0;
            self.round = self.round.wrapping_add(1);
        }
    }
}

impl Table {
    /// An empty table, whose first chunk will be number `first`.
    pub fn new(slots: u16, first: u64) -> Self {
        let slots: Box<[_]> = vec![None; usize::from(slots.max(1))].into();
        let (first, unsent) = (Place::of(first, slots.len()), VecDeque::with_capacity(slots.len()));
        Self { slots, oldest: first, next: first, len: 0, empty: 0, unsent }
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    /// Number of chunks whose lanes are in flight.
    pub fn in_full(&self) -> u32 {
        self.len - self.empty
    }

    /// Number of chunks that have yet to be sent.
    pub fn unsent(&self) -> u32 {
        self.unsent.len() as u32
    }

    /// Number of the first chunk that has yet to be sent.
    pub fn first_unsent(&self) -> Option<u64> {
        self.unsent.front().copied()
    }

    /// Notes that a chunk's lanes were sent, if they were `left_out` so far. If the chunk was
    /// `unsent`, it is the first of the unsent ones.
    pub fn note_in_full(&mut self, left_out: bool, unsent: bool) {
        self.empty -= u32::from(left_out);
        if unsent {
            self.unsent.pop_front();
        }
    }

    pub fn next(&self) -> u64 {
        self.next.number
    }

    /// Number of chunks, from the next one on, whose slot is free: the result of the chunk S places
    /// before has come.
    pub fn room(&self) -> u32 {
        (self.oldest.number + self.slots.len() as u64 - self.next.number) as u32
    }

    /// Puts the next chunk into its slot, which is free: it is sent now, as number `sequence` of
    /// all transmissions, unless it may wait.
    pub fn push(&mut self, chunk: Chunk, now: u64, sequence: u64) -> &Outstanding {
        let Place { number, slot, round } = self.next;
        self.next.advance(self.slots.len());
        let place = &mut self.slots[usize::from(slot)];
        debug_assert!(place.is_none());
        self.len += 1;
        let in_full = !chunk.empty && !chunk.may_wait;
        self.empty += u32::from(!in_full);
        if chunk.may_wait {
            self.unsent.push_back(number);
        }
        place.insert(Outstanding {
            number,
            slot,
            round,
            chunk,
            sent_at: now,
            sequence,
            resent: false,
            lost: chunk.may_wait,
            in_full,
            pending: false,
            pending_at: 0,
            answered_at: 0,
            damaged_at: None,
            history: History { sent_at: now, empty: chunk.empty, ..History::default() },
        })
    }

    /// The chunk that is in this round of this slot and was sent.
    pub fn get(&self, slot: u16, round: u32) -> Option<&Outstanding> {
        let entry = self.slots.get(usize::from(slot))?.as_ref();
        entry.filter(|entry| entry.round == round && !entry.is_unsent())
    }

    /// The chunk that is in this slot and was sent, and the low 16 bits of whose round are these.
    pub fn named(&self, slot: u16, round: u16) -> Option<&Outstanding> {
        let entry = self.slots.get(usize::from(slot))?.as_ref();
        entry.filter(|entry| entry.round as u16 == round && !entry.is_unsent())
    }

    /// The chunk that is in this slot.
    pub fn get_mut(&mut self, slot: u16) -> Option<&mut Outstanding> {
        self.slots.get_mut(usize::from(slot))?.as_mut()
    }

    /// Takes the chunk, which was sent, out of its slot: it has its result now.
    pub fn take(&mut self, slot: u16) -> Option<Outstanding> {
        let entry = self.slots.get_mut(usize::from(slot))?.take()?;
        self.len -= 1;
        self.empty -= u32::from(!entry.in_full);
        while self.oldest.number < self.next.number && self.oldest().is_none() {
            self.oldest.advance(self.slots.len());
        }
        Some(entry)
    }

    /// Calls `f` with each outstanding chunk, oldest first, until it returns false.
    pub fn for_each_while(&mut self, mut f: impl FnMut(&mut Outstanding) -> bool) {
        let (behind, before) = self.slots.split_at_mut(self.oldest.slot.into());
        let places = (self.next.number - self.oldest.number) as usize;
        for entry in before.iter_mut().chain(behind).take(places).flatten() {
            if !f(entry) {
                return;
            }
        }
    }

    pub fn oldest_number(&self) -> u64 {
        self.oldest.number
    }

    pub fn oldest(&self) -> Option<&Outstanding> {
        self.slots[usize::from(self.oldest.slot)].as_ref()
    }
}
