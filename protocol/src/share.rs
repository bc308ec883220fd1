//! The rank that a packet stands for: the sender of a CONTRIBUTION.

use crate::RANKS_PER_GROUP;
use crate::header::Header;
use crate::ranks::GROUPS;

/// A rank, as one of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    first: u16,
}

impl Share {
    /// The rank that a CONTRIBUTION with this header stands for.
    #[inline(always)]
    pub const fn of(header: &Header) -> Self {
        Self { first: header.rank.get() }
    }

    /// Number of its group.
    #[inline(always)]
    pub const fn group(&self) -> usize {
        // A packet that was admitted has one in range; the verifier wants to see it.
        (self.first / RANKS_PER_GROUP) as usize % GROUPS
    }

    /// The first rank of its group, and a bitmap of it within that.
    #[inline(always)]
    pub const fn in_group(&self) -> (u16, u32) {
        let place = self.first % RANKS_PER_GROUP;
        (self.first - place, 1 << place)
    }
}
