//! The ranks that need the lanes of a round's result: rules 2.10 and 9.3 of `docs/spec`.

use crate::wire::header::Op;

/// Ranks that an op can name: 0 up to this.
pub const NAMED_RANKS: u16 = 64;

/// The upper two bits of an op, and the mask of the rank below them.
const ONE: u8 = 1;
const ALL_BUT: u8 = 2;
const RANK: u8 = 0x3F;

/// The ranks that need the lanes of a result; all others need to know that the round is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Audience {
    /// Every rank.
    All,
    /// One rank alone.
    One(u16),
    /// Every rank but this one.
    AllBut(u16),
}

impl Audience {
    /// The audience that a packet's op names.
    #[inline(always)]
    pub const fn of(op: u8) -> Self {
        let rank = (op & RANK) as u16;
        match op >> 6 {
            ONE => Self::One(rank),
            ALL_BUT => Self::AllBut(rank),
            _ => Self::All,
        }
    }

    /// The op field of packets for this audience, whose lanes are combined by `op`: always a sum,
    /// unless the audience is all ranks.
    ///
    /// The rank must be below [`NAMED_RANKS`].
    #[inline(always)]
    pub const fn op(self, op: Op) -> u8 {
        match self {
            Self::All => op as u8,
            Self::One(rank) => ONE << 6 | rank as u8 & RANK,
            Self::AllBut(rank) => ALL_BUT << 6 | rank as u8 & RANK,
        }
    }

    /// Whether an op field can say that lanes are combined by `op`, and name ranks.
    pub const fn can_be_named_with(op: Op) -> bool {
        match op {
            Op::Sum => true,
            Op::Max => false,
        }
    }

    /// Whether a rank needs the lanes.
    #[inline(always)]
    pub const fn has(self, rank: u16) -> bool {
        match self {
            Self::All => true,
            Self::One(one) => rank == one,
            Self::AllBut(one) => rank != one,
        }
    }

    /// Whether any of these ranks needs them: bit r of the bitmap is rank r.
    #[inline(always)]
    pub const fn has_any(self, ranks: u64) -> bool {
        match self {
            Self::All => true,
            Self::One(one) => ranks >> (one & RANK as u16) & 1 == 1,
            Self::AllBut(one) => ranks & !(1 << (one & RANK as u16)) != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule 2.10, in a job of four ranks.
    #[test]
    fn an_audience_may_name_no_rank_of_the_job() {
        let ranks = 0b1111;
        for (op, audience, needs) in [
            (64 + 3, Audience::One(3), true),
            (64 + 4, Audience::One(4), false),
            (64 + 63, Audience::One(63), false),
            (128 + 63, Audience::AllBut(63), true),
        ] {
            assert_eq!(Audience::of(op), audience);
            assert_eq!(audience.has_any(ranks), needs, "{audience:?}");
        }
        assert!((0..4).all(|rank| Audience::AllBut(63).has(rank)));
    }
}
