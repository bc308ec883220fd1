//! DONE: that rounds are complete, for ranks that do not need their lanes (rule 9.4 of
//! `docs/protocol.md`).

use crate::audience::Audience;
use crate::header::{Header, Kind, flags};

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

    /// A DONE for the call of this RESULT to all; it names no round yet.
    #[inline(always)]
    pub fn new(result: &Header) -> Self {
        let mut header = *result;
        header.kind = Kind::Done as u8;
        header.flags = flags::CHECKED | result.flags & flags::CE;
        header.lanes.set(0);
        Self { header, sum: 0 }
    }

    /// Whether it can name the round of this RESULT to all.
    #[inline(always)]
    pub fn takes(&self, result: &Header) -> bool {
        result.job == self.header.job
            && result.epoch == self.header.epoch
            && result.op == self.header.op
            && result.fingerprint == self.header.fingerprint
    }

    /// Names the round of this RESULT, and returns the lane that does so.
    #[inline(always)]
    pub fn add(&mut self, result: &Header) -> u32 {
        let lane = u32::from(result.slot.get()) << 16 | result.round.get() & 0xFFFF;
        self.header.flags |= result.flags & flags::CE;
        self.header.lanes.set(self.header.lanes.get() + 1);
        self.sum = self.sum.wrapping_add(lane);
        lane
    }

    /// The ranks that need the lanes of its rounds; a DONE goes to the others.
    #[inline(always)]
    pub const fn audience(&self) -> Audience {
        Audience::of(self.header.op)
    }

    /// The number of rounds that it names: its lanes.
    #[inline(always)]
    pub fn len(&self) -> u16 {
        self.header.lanes.get()
    }

    /// Whether it names no round.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
