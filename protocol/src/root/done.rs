//! DONE: that rounds are complete, for ranks that do not need their lanes (rule 9.4 of
//! `docs/spec`).

use crate::wire::audience::Audience;
use crate::wire::header::{Header, Kind, flags};

/// A DONE under construction, for RESULTs to all of one call and one audience.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Done {
    header: Header,
    sum: u32,
}

impl Done {
    /// Whether a RESULT to all may be told to some ranks by a DONE.
    #[inline(always)]
    pub fn may_tell(result: &Header) -> bool {
        !matches!(Audience::of(result.op), Audience::All) && result.tag_len() == 0
    }

    /// A DONE for the call of this RESULT to all, if some ranks may be told by one; it names no
    /// round yet.
    #[inline(always)]
    pub fn of(result: &Header) -> Option<Self> {
        if !Self::may_tell(result) {
            return None;
        }
        let mut header = *result;
        header.kind = Kind::Done as u8;
        header.flags = flags::CHECKED | result.flags & flags::CE;
        header.lanes.set(0);
        Some(Self { header, sum: 0 })
    }

    /// Names the round of this RESULT to all, if it is of the same call; the lane that does so.
    #[inline(always)]
    pub fn add(&mut self, result: &Header) -> Option<u32> {
        let is_of_call = result.job == self.header.job
            && result.epoch == self.header.epoch
            && result.op == self.header.op
            && result.fingerprint == self.header.fingerprint;
        if !is_of_call {
            return None;
        }
        let lane = u32::from(result.slot.get()) << 16 | result.round.get() & 0xFFFF;
        self.header.flags |= result.flags & flags::CE;
        self.header.lanes.set(self.header.lanes.get() + 1);
        self.sum = self.sum.wrapping_add(lane);
        Some(lane)
    }

    /// Whether it goes to a place in place of the RESULTs: none of the place's ranks needs their
    /// lanes. Bit r of the bitmap is rank r.
    #[inline(always)]
    pub const fn is_for(&self, ranks: u64) -> bool {
        !self.audience().has_any(ranks)
    }

    /// The ranks that need the lanes of its rounds.
    #[inline(always)]
    pub const fn audience(&self) -> Audience {
        Audience::of(self.header.op)
    }

    /// The number of rounds that it names: its lanes.
    #[inline(always)]
    pub fn rounds(&self) -> u16 {
        self.header.lanes.get()
    }

    /// The header of the DONE; the lanes follow it.
    #[inline(always)]
    pub fn header(&self) -> Header {
        let mut header = self.header;
        header.check.set(header.check_of(self.sum, 1));
        header
    }
}

/// The slot that a lane of a DONE names, and the low 16 bits of the round.
pub const fn named(lane: u32) -> (u16, u16) {
    ((lane >> 16) as u16, lane as u16)
}
