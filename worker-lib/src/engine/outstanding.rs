//! The chunks that are on their way: one place per slot.

use super::{Chunk, History};

/// A chunk that was sent and has no result yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outstanding {
    pub number: u64,
    pub chunk: Chunk,
    /// Time of the last transmission, or of the PENDING that answered it.
    pub sent_at: u64,
    /// Place of that in the order of all transmissions.
    pub sequence: u64,
    pub resent: bool,
    /// To be sent again.
    pub lost: bool,
    /// Bitmap of the ranks that are in, if the aggregator told: this rank is, and the wait is for others.
    pub pending: Option<u64>,
    pub history: History,
}

/// The outstanding chunks, found by slot and by number.
#[derive(Clone, Debug)]
pub(super) struct Table {
    slots: Box<[Option<Outstanding>]>,
    /// Every chunk below has its result.
    oldest: u64,
    /// Number of the next new chunk.
    next: u64,
    len: u32,
}

impl Table {
    /// An empty table, whose first chunk will be number `first`.
    pub fn new(slots: u16, first: u64) -> Self {
        Self { slots: vec![None; usize::from(slots.max(1))].into(), oldest: first, next: first, len: 0 }
    }

    /// Number of slots S.
    pub fn slots(&self) -> u64 {
        self.slots.len() as u64
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn next(&self) -> u64 {
        self.next
    }

    pub fn slot_of(&self, number: u64) -> u16 {
        (number % self.slots()) as u16
    }

    pub fn round_of(&self, number: u64) -> u32 {
        (number / self.slots()) as u32
    }

    /// How many chunks find their slot free, from the next one on: those for which the result of the chunk S places before is here.
    pub fn room(&self) -> u32 {
        (self.oldest + self.slots() - self.next) as u32
    }

    /// Puts the next chunk into its slot, which is free.
    pub fn push(&mut self, entry: Outstanding) {
        let slot = usize::from(self.slot_of(entry.number));
        debug_assert!(entry.number == self.next && self.slots[slot].is_none());
        self.slots[slot] = Some(entry);
        self.next += 1;
        self.len += 1;
    }

    /// The chunk that is in this round of this slot.
    pub fn get_mut(&mut self, slot: u16, round: u32) -> Option<&mut Outstanding> {
        let slots = self.slots();
        let entry = self.slots.get_mut(usize::from(slot))?.as_mut()?;
        ((entry.number / slots) as u32 == round).then_some(entry)
    }

    /// Takes a chunk out that has its result now.
    pub fn remove(&mut self, number: u64) {
        let slot = usize::from(self.slot_of(number));
        if self.slots[slot].take().is_some() {
            self.len -= 1;
        }
        while self.oldest < self.next && self.slots[usize::from(self.slot_of(self.oldest))].is_none() {
            self.oldest += 1;
        }
    }

    /// The outstanding chunks, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Outstanding> {
        (self.oldest..self.next).filter_map(|number| self.slots[usize::from(self.slot_of(number))].as_ref())
    }

    /// Calls `f` with each outstanding chunk, oldest first, until it returns false.
    pub fn for_each_while(&mut self, mut f: impl FnMut(&mut Outstanding) -> bool) {
        for number in self.oldest..self.next {
            let slot = usize::from(self.slot_of(number));
            if let Some(entry) = &mut self.slots[slot]
                && !f(entry)
            {
                return;
            }
        }
    }

    pub fn oldest(&self) -> Option<&Outstanding> {
        self.iter().next()
    }
}
