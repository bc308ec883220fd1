//! Local sums (rule 12.11): ranks of one host add up in memory that they share, and send one packet
//! for all.
//!
//! To the root that packet looks like a combiner's: a partial sum (section 27 of
//! `docs/spec`). As in a combiner, all state is soft. Resends go to the root unchanged, so
//! no rank waits for the shared memory, or for a rank that died: at worst, each rank of a chunk
//! sends its own packet. A chunk that is sent again takes along the packets that the cell holds of
//! other ranks. So a rank that dies in any step costs the others a timer, until the end of its
//! stream names it. There is no lock with which a rank could die.
//!
//! Everything else is as without local sums: each rank has its own binding, engine, timers and
//! stream.
//!
//! Each slot has a [`Cell`], one word that the ranks change by compare-and-swap, and a packet of
//! each rank, which this rank writes and another may read:
//!
//! 1. [`Cell::claim`], then the rank writes its packet: nobody reads it until step 2.
//! 2. [`Cell::arrive`]: the last rank is told the ranks whose packets leave.
//! 3. The last rank adds them up ([`add_up`]), and then calls [`Cell::left`]: nobody writes them
//!    until then.
//!
//! A rank that sends a chunk again, or without lanes, calls [`Cell::pass`] instead of these steps.
//!
//! [`Outlet`] takes these steps for a rank's packets, in whatever [`Memory`] the ranks share.

mod outlet;

use std::convert::Infallible;

use switchml_protocol::RANKS_PER_GROUP;
use switchml_protocol::wire::header::{HEADER_LEN, Header, Kind, Op, flags};
use switchml_protocol::wire::share::Share;
use zerocopy::FromBytes;

use crate::numerics::lane_sum;
pub use outlet::{Claimed, LocalSums, Memory, Outlet, Readable};

/// Most ranks that share a cell: the cell's word has two bits for each, beside the round.
pub const MOST_RANKS: usize = 24;
/// Bits of the round. Ranks that use a slot at the same time are at most one round apart.
const ROUND_BITS: u32 = 15;
const ROUND_MASK: u32 = (1 << ROUND_BITS) - 1;

/// The progress of a slot's ranks in its newest round. Sets of ranks are bitmaps of their places in
/// the host's team.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// The round modulo 2^15.
    round: u32,
    /// Whether a rank is adding up held packets.
    is_leaving: bool,
    /// Ranks whose packets wait here.
    held: u32,
    /// Ranks whose packets have gone to the root.
    passed: u32,
}

/// The outcome for a rank's contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The new cell.
    pub cell: Cell,
    /// The ranks whose packets the caller adds up and sends, before its own if that goes.
    pub leaves: u32,
    /// Whether the caller's own packet goes to the root unchanged.
    pub goes: bool,
}

/// A round, seen from a cell's.
#[derive(PartialEq, Eq)]
enum Age {
    Older,
    Same,
    Newer,
}

impl Cell {
    /// The cell encoded in a word; 0 is a cell never used.
    pub const fn from_word(word: u64) -> Self {
        let set = (1 << MOST_RANKS) - 1;
        Self {
            held: word as u32 & set,
            passed: (word >> MOST_RANKS) as u32 & set,
            is_leaving: word >> (2 * MOST_RANKS) & 1 == 1,
            round: (word >> (2 * MOST_RANKS + 1)) as u32 & ROUND_MASK,
        }
    }

    /// The cell encoded as a word.
    pub const fn word(self) -> u64 {
        let sets = self.held as u64 | (self.passed as u64) << MOST_RANKS;
        let round = (self.round as u64) << 1 | self.is_leaving as u64;
        sets | round << (2 * MOST_RANKS)
    }

    /// The cell after rank `me`, a set of one, may write its packet of `round`. `None` if another
    /// rank may be reading that packet, or if the rank was here before: it must use [`Self::pass`].
    pub fn claim(self, me: u32, round: u32) -> Option<Self> {
        match self.age(round) {
            Age::Same if (self.held | self.passed) & me == 0 => Some(self),
            Age::Newer if !self.is_leaving => Some(Self::at(round)),
            _ => None,
        }
    }

    /// Rank `me` of `all` has written its packet of `round`.
    pub fn arrive(self, me: u32, all: u32, round: u32) -> Step {
        let (leaves, goes) = (0, true);
        if self.age(round) != Age::Same || (self.held | self.passed) & me != 0 {
            return Step { cell: self, leaves, goes };
        }
        let held = self.held | me;
        if self.is_leaving || held == me && held | self.passed == all {
            return Step { cell: Self { passed: self.passed | me, ..self }, leaves, goes };
        }
        if held | self.passed != all {
            return Step { cell: Self { held, ..self }, leaves, goes: false };
        }
        Step { cell: Self { held, is_leaving: true, ..self }, leaves: held, goes: false }
    }

    /// The packet of rank `me` of `all` goes to the root unchanged. Held packets of other ranks go,
    /// too, if this one was held, because others may wait for them, or if no other rank is missing.
    pub fn pass(self, me: u32, all: u32, round: u32) -> Step {
        let cell = match self.age(round) {
            Age::Older => self,
            Age::Newer if self.is_leaving => self,
            Age::Newer => Self { passed: me, ..Self::at(round) },
            Age::Same if self.is_leaving => Self { passed: self.passed | me, ..self },
            Age::Same => return self.pass_here(me, all),
        };
        Step { cell, leaves: 0, goes: true }
    }

    fn pass_here(self, me: u32, all: u32) -> Step {
        let was_held = self.held & me != 0;
        // The rank's own held packet does not go: it goes by itself, and its values must count
        // once.
        let (held, passed) = (self.held & !me, self.passed | me);
        let leaves = if was_held || held | passed == all { held } else { 0 };
        let cell = Self { held, passed, is_leaving: leaves != 0, ..self };
        Step { cell, leaves, goes: true }
    }

    /// The packets of these ranks have been read.
    pub fn left(self, ranks: u32) -> Self {
        let (held, passed) = (self.held & !ranks, self.passed | ranks);
        Self { held, passed, is_leaving: false, ..self }
    }

    /// Whether `all` ranks have contributed to this round, and none to a later one.
    pub fn has_all(self, all: u32, round: u32) -> bool {
        self.age(round) == Age::Same && self.held | self.passed == all
    }

    fn at(round: u32) -> Self {
        Self { round: round & ROUND_MASK, ..Self::default() }
    }

    fn age(self, round: u32) -> Age {
        match round.wrapping_sub(self.round) & ROUND_MASK {
            0 => Age::Same,
            ahead if ahead <= ROUND_MASK / 2 => Age::Newer,
            _ => Age::Older,
        }
    }
}

/// Whether a packet with the header `theirs` can be added to one with the header `ours`: it must be
/// of the same round of the same call, from the same group of ranks.
pub fn is_like(ours: &Header, theirs: &Header) -> bool {
    let key = |header: &Header| {
        let Header { job, epoch, slot, round, op, lanes, fingerprint, .. } = *header;
        let group = header.rank.get() / RANKS_PER_GROUP;
        (job, epoch, slot, round, op, lanes, fingerprint, group)
    };
    key(ours) == key(theirs) && theirs.kind == Kind::Contribution as u8
}

/// Turns `sum`, which holds a contribution, into the partial sum of this contribution and `others`,
/// which have the same form (rules 2.9, 3.1 and 3.5). All ranks are of one group, each once.
pub fn add_up(sum: &mut [u8], others: impl Iterator<Item: AsRef<[u8]>>) {
    let Some((head, values)) = sum.split_at_mut_checked(HEADER_LEN) else { return };
    let Ok(header) = Header::mut_from_bytes(head) else { return };
    let first = header.rank.get() / RANKS_PER_GROUP * RANKS_PER_GROUP;
    let mut ranks = bit(header.rank.get(), first);
    let mut check = header.check.get();
    let Some(op) = Op::of(header.op) else { return };
    for other in others {
        let Some((head, lanes)) = other.as_ref().split_at_checked(HEADER_LEN) else { continue };
        let Ok(theirs) = Header::read_from_bytes(head) else { continue };
        ranks |= bit(theirs.rank.get(), first);
        check = check.wrapping_add(theirs.check.get());
        // A loop for each, without a decision in it.
        match op {
            Op::Sum => combine(values, lanes, |a, b| Op::Sum.combine(a, b)),
            Op::Max => combine(values, lanes, |a, b| Op::Max.combine(a, b)),
        }
    }
    header.flags = flags::CHECKED;
    let lane_sum = || Ok::<_, Infallible>(lane_sum(values));
    let Ok(()) = Share::make_partial(header, (first, ranks), check, lane_sum);
}

/// Bit of a rank in the set of a partial sum of ranks from `first` on.
const fn bit(rank: u16, first: u16) -> u32 {
    1_u32.wrapping_shl(rank.wrapping_sub(first) as u32)
}

/// Combines each lane of `values` with the same lane of `lanes`.
fn combine(values: &mut [u8], lanes: &[u8], op: impl Fn(u32, u32) -> u32) {
    for (value, lane) in values.as_chunks_mut::<4>().0.iter_mut().zip(lanes.as_chunks::<4>().0) {
        *value = op(u32::from_be_bytes(*value), u32::from_be_bytes(*lane)).to_be_bytes();
    }
}

#[cfg(test)]
mod tests;
