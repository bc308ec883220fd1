//! The ranks that a packet stands for: the sender of a CONTRIBUTION, or the set of a PARTIAL (rule
//! 2.9).

use crate::RANKS_PER_GROUP;
use crate::ranks::GROUPS;
use crate::wire::header::{CheckWord, Header, Kind, Op};

/// Ranks of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    first: u16,
    /// Bit b is rank `first` + b.
    ranks: u32,
    is_partial: bool,
}

impl Share {
    /// The ranks that a CONTRIBUTION or a PARTIAL with this header stands for.
    #[inline(always)]
    pub const fn of(header: &Header) -> Self {
        let (first, is_partial) = (header.rank.get(), header.is_partial());
        Self { first, ranks: if is_partial { header.aux.get() } else { 1 }, is_partial }
    }

    /// Whether it is the share of a PARTIAL, which gets no answer.
    #[inline(always)]
    pub const fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Whether these can be ranks of a job with `ranks` ranks.
    #[inline(always)]
    pub const fn is_within(&self, ranks: u32) -> bool {
        let whole = !self.is_partial || self.first.is_multiple_of(RANKS_PER_GROUP);
        whole && self.ranks != 0 && self.first as u32 + 32 - self.ranks.leading_zeros() <= ranks
    }

    /// The highest rank of the packet. (For the lowest, BPF would need a table.)
    #[inline(always)]
    pub const fn highest(&self) -> u16 {
        if self.is_partial {
            self.first + 31_u32.wrapping_sub(self.ranks.leading_zeros()) as u16
        } else {
            self.first
        }
    }

    /// Rank `first` + `index` if it is one of them.
    #[inline(always)]
    pub const fn rank(&self, index: u16) -> Option<u16> {
        if self.ranks >> (index & 31) & 1 == 1 { Some(self.first + index) } else { None }
    }

    /// Number of the ranks' group.
    #[inline(always)]
    pub const fn group(&self) -> usize {
        // The group of an admitted packet is in range; the modulo shows that to the BPF verifier.
        (self.first / RANKS_PER_GROUP) as usize % GROUPS
    }

    /// The first rank of the ranks' group, and a bitmap of the ranks within it.
    #[inline(always)]
    pub const fn in_group(&self) -> (u16, u32) {
        let place = self.first % RANKS_PER_GROUP;
        (self.first - place, self.ranks << place)
    }

    /// Rules 3.2 and 3.5: how many salts the check word of their packet contains.
    #[inline(always)]
    pub const fn count(&self) -> u32 {
        if self.is_partial { self.ranks.count_ones() } else { 1 }
    }

    /// Rule 3.5: by how much the check word of the packet with this header exceeds the sum of the
    /// check words of the contributions that it stands for.
    #[inline(always)]
    pub fn surplus(&self, header: &Header) -> u32 {
        if !self.is_partial {
            return 0;
        }
        // With an even number of salts, the fields' highest bits would cancel out.
        let salt = if self.count().is_multiple_of(2) { header.salt() } else { 0 };
        salt.wrapping_add(self.ranks).wrapping_add(u32::from(self.first))
    }

    /// Rules 2.9, 3.5 and 27.14: makes a packet's header that of a PARTIAL, of these ranks of the
    /// group that begins with rank `first`. `check` is the sum of their contributions' check words.
    /// If these do not add up, `lane_sum` is asked for the sum of the partial's lanes instead.
    #[inline(always)]
    pub fn make_partial<E>(
        header: &mut Header,
        (first, ranks): (u16, u32),
        check: u32,
        lane_sum: impl FnOnce() -> Result<u32, E>,
    ) -> Result<(), E> {
        header.kind = Kind::Partial as u8;
        header.rank.set(first);
        header.aux.set(ranks);
        let share = Self::of(header);
        let check = match Op::of(header.op).map(Op::check_word) {
            Some(CheckWord::AddsUp) => check,
            Some(CheckWord::OfLanes) | None => header.check_of(lane_sum()?, share.count()),
        };
        header.check.set(check.wrapping_add(share.surplus(header)));
        Ok(())
    }

    /// Rules 3.1 and 3.5: whether the check word of the packet with this header is that of lanes
    /// with this sum.
    #[inline(always)]
    pub fn agrees(&self, header: &Header, lane_sum: u32) -> bool {
        let check = header.check_of(lane_sum, self.count()).wrapping_add(self.surplus(header));
        check == header.check.get()
    }
}
