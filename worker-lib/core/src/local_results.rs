//! Results that ranks of one host share (section 38 of `docs/spec`): one of them, the
//! **taker**, gets the only copy, and posts it in the memory in which they add up
//! ([`local_sum`](crate::local_sum)); the others read it there.
//!
//! All of it is soft state (rule 38.5). A rank that finds no result there asks the aggregator, as
//! it does when a packet is lost, and gets one to itself. So no rank depends on the taker for more
//! than time.
//!
//! There is a ring of [`Entry`]s, which name results in the order in which they came, and room for
//! one result in each slot. No lock is needed, because each slot's [`Cell`] says which ranks have
//! contributed to its newest round:
//!
//! 1. The taker posts the result of a round once the cell shows that all ranks have contributed to
//!    it. So none of them still reads the result of the round before.
//! 2. A rank reads the result of a round only while it has none itself ([`Engine::awaits`]). So it
//!    has not contributed to the next round, and the taker does not write.
//!
//! [`Engine::awaits`]: crate::engine::Engine::awaits

use std::borrow::Cow;

use switchml_protocol::wire::header::{HEADER_LEN, Header};
use zerocopy::{FromBytes, IntoBytes};

use crate::local_sum::Cell;

/// A result that is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Counts entries from 1, modulo 2^32.
    number: u32,
    slot: u16,
    /// The low bits of the round.
    round: u16,
}

impl Entry {
    /// The entry encoded in a word; 0 is none.
    pub const fn from_word(word: u64) -> Self {
        Self { number: (word >> 32) as u32, slot: (word >> 16) as u16, round: word as u16 }
    }

    /// The entry encoded as a word.
    pub const fn word(self) -> u64 {
        (self.number as u64) << 32 | (self.slot as u64) << 16 | self.round as u64
    }
}

/// The number of entries that a ring needs for so many slots. Between two looks of a rank at most
/// two results can come in a slot: of the chunk that it waits for, and of one that it sends then.
pub const fn ring_len(slots: usize) -> usize {
    (2 * slots).next_power_of_two()
}

/// A shard's part of the memory that ranks of a host share, as one of these ranks uses it.
pub trait Board {
    /// A slot's cell.
    fn cell(&self, slot: u16) -> Cell;

    /// The word of the ring for entry `number`. What the taker wrote before is seen, too.
    fn word(&self, number: u32) -> u64;

    /// Sets the word of the ring for entry `number`; after all that was written before.
    fn set_word(&mut self, number: u32, word: u64);

    /// Has `fill` write a slot's result.
    fn write(&mut self, place: &Writable, fill: impl FnOnce(&mut [u8]));

    /// A slot's result.
    fn read(&self, place: &Readable) -> Cow<'_, [u8]>;
}

/// The result of a slot that nobody reads now. Only this module makes one.
pub struct Writable {
    slot: u16,
    lanes: u16,
}

/// The result of a slot that nobody writes now. Only this module makes one.
pub struct Readable {
    slot: u16,
    lanes: u16,
}

impl Writable {
    /// The slot.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// The lanes of the packet.
    pub fn lanes(&self) -> u16 {
        self.lanes
    }
}

impl Readable {
    /// The slot.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// The lanes of the packet.
    pub fn lanes(&self) -> u16 {
        self.lanes
    }
}

/// The local results of a rank's shard. Model checkers copy and compare them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LocalResults<B> {
    board: B,
    /// All places that are taken, as a set.
    all: u32,
    /// Whether this rank is the taker.
    takes: bool,
    /// Number of the next entry.
    next: u32,
}

impl<B: Board> LocalResults<B> {
    /// The local results of a shard, on a host with `ranks` ranks, of the taker or of another one.
    pub fn new(board: B, ranks: usize, takes: bool) -> Self {
        Self { board, all: (1 << ranks) - 1, takes, next: 1 }
    }

    /// The memory.
    pub fn board(&self) -> &B {
        &self.board
    }

    /// The memory, to be changed.
    pub(crate) fn board_mut(&mut self) -> &mut B {
        &mut self.board
    }

    /// The taker has the result of a chunk, of which `header` names slot and round: posts it for
    /// the others, as a packet to all (rule 38.4). Returns whether it did. Other ranks post
    /// nothing.
    pub fn post(&mut self, header: &Header, payload: &[u8]) -> bool {
        let (slot, round) = (header.slot.get(), header.round.get());
        if !self.takes || !self.board.cell(slot).has_all(self.all, round) {
            return false;
        }
        self.show(self.next, header, payload);
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Shows the result of a chunk, of which `header` names slot and round, as this entry. Nobody
    /// else uses the entry's number, or writes or reads a result of that slot.
    pub(crate) fn show(&mut self, number: u32, header: &Header, payload: &[u8]) {
        let (slot, round) = (header.slot.get(), header.round.get() as u16);
        let place = Writable { slot, lanes: (payload.len() / 4) as u16 };
        self.board.write(&place, |packet| {
            let (head, lanes) = packet.split_at_mut(HEADER_LEN);
            head.copy_from_slice(header.as_bytes());
            lanes.copy_from_slice(payload);
        });
        self.board.set_word(number, Entry { number, slot, round }.word());
    }

    /// Whether there is a new entry for a rank that is not the taker.
    pub fn has_news(&self) -> bool {
        self.newest().is_some()
    }

    /// The next packet that was posted of a chunk that this rank `awaits`, given the slot and the
    /// low bits of the round.
    pub fn read(&mut self, awaits: impl Fn(u16, u16) -> bool) -> Option<Cow<'_, [u8]>> {
        loop {
            let Entry { number, slot, round } = self.newest()?;
            self.next = number.wrapping_add(1);
            if awaits(slot, round) {
                return self.packet(slot);
            }
        }
    }

    /// The next entry. If the ring went round meanwhile, the one that is there now: the results in
    /// between are asked for.
    fn newest(&self) -> Option<Entry> {
        let entry = Entry::from_word(self.board.word(self.next));
        let is_new = entry.number.wrapping_sub(self.next) as i32 >= 0;
        (is_new && !self.takes).then_some(entry)
    }

    fn packet(&self, slot: u16) -> Option<Cow<'_, [u8]>> {
        let head = self.board.read(&Readable { slot, lanes: 0 });
        let lanes = Header::ref_from_bytes(&head).ok()?.lanes.get();
        Some(self.board.read(&Readable { slot, lanes }))
    }
}

#[cfg(test)]
mod tests;
