//! Sets of ranks of a job, and how a PENDING names one.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{CONTROL_REPLY_LANES, LANES_PER_BLOCK, MAX_RANKS, RANKS_PER_GROUP};

/// Groups of the largest job.
pub const GROUPS: usize = MAX_RANKS / RANKS_PER_GROUP as usize;

/// Ranks that a PENDING can name in as many lanes as other control replies have; in larger jobs a
/// PENDING has a block.
const RANKS_OF_SHORT_REPLY: u32 = 32 * CONTROL_REPLY_LANES as u32;

const _: () = assert!(GROUPS == LANES_PER_BLOCK && GROUPS * 32 == MAX_RANKS);

/// A bitmap by group: bit b of word g is rank 32g + b.
pub type Words = [u32; GROUPS];

/// Whether PENDINGs in a job of `ranks` ranks are longer than other control replies.
#[inline(always)]
pub const fn is_large(ranks: u32) -> bool {
    ranks > RANKS_OF_SHORT_REPLY
}

/// Rule 2.3: lanes of a PENDING in a job of `ranks` ranks.
#[inline(always)]
pub const fn pending_lanes(ranks: u32) -> usize {
    if is_large(ranks) { LANES_PER_BLOCK } else { CONTROL_REPLY_LANES }
}

/// Rule 2.3: the group whose ranks lane `lane` of a PENDING names; of two lanes, the first has the
/// higher ranks.
#[inline(always)]
pub const fn group_of_lane(lane: usize) -> usize {
    lane ^ 1
}

/// A set of ranks. Part of a value of a BPF map.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct Ranks(Words);

impl Ranks {
    /// The empty set.
    pub const NONE: Self = Self([0; GROUPS]);

    /// All ranks that a job can have.
    pub const ALL: Self = Self([u32::MAX; GROUPS]);

    /// All ranks of a job with `ranks` ranks.
    pub fn below(ranks: u16) -> Self {
        (0..ranks).collect()
    }

    /// The ranks named by a PENDING with these lanes.
    pub fn of_pending(lanes: impl IntoIterator<Item = u32>) -> Self {
        let mut words = [0; GROUPS];
        for (lane, word) in lanes.into_iter().enumerate() {
            if let Some(to) = words.get_mut(group_of_lane(lane)) {
                *to = word;
            }
        }
        Self(words)
    }

    /// Lanes of a PENDING that names these ranks, in a job with `ranks` ranks.
    pub fn to_pending(self, ranks: u32) -> impl Iterator<Item = u32> {
        (0..pending_lanes(ranks)).map(move |lane| self.0[group_of_lane(lane)])
    }

    /// The bitmap.
    pub(crate) fn words(&self) -> &Words {
        &self.0
    }

    /// The ranks of group `index`, as bits.
    #[inline(always)]
    pub fn group(&self, index: usize) -> u32 {
        self.0.get(index).copied().unwrap_or(0)
    }

    /// Whether the rank is one of them.
    pub fn contains(&self, rank: u16) -> bool {
        self.group((rank / RANKS_PER_GROUP).into()) >> (rank % RANKS_PER_GROUP) & 1 == 1
    }

    /// Adds a rank; nothing if no job has it.
    pub fn insert(&mut self, rank: u16) {
        if let Some(word) = self.0.get_mut(usize::from(rank / RANKS_PER_GROUP)) {
            *word |= 1 << (rank % RANKS_PER_GROUP);
        }
    }

    /// The ranks that are in this set or in `other`.
    #[must_use]
    pub fn union(self, other: &Self) -> Self {
        Self(core::array::from_fn(|group| self.0[group] | other.0[group]))
    }

    /// The ranks that are in this set and not in `other`.
    #[must_use]
    pub fn without(self, other: &Self) -> Self {
        Self(core::array::from_fn(|group| self.0[group] & !other.0[group]))
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        *self == Self::NONE
    }

    /// The number of ranks in the set.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The ranks, in order.
    pub fn iter(&self) -> impl Iterator<Item = u16> + use<> {
        let this = *self;
        (0..MAX_RANKS as u16).filter(move |rank| this.contains(*rank))
    }
}

impl<const N: usize> From<[u16; N]> for Ranks {
    fn from(ranks: [u16; N]) -> Self {
        ranks.into_iter().collect()
    }
}

impl FromIterator<u16> for Ranks {
    fn from_iter<T: IntoIterator<Item = u16>>(ranks: T) -> Self {
        let mut this = Self::NONE;
        ranks.into_iter().for_each(|rank| this.insert(rank));
        this
    }
}
