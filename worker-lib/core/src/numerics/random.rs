//! Random numbers that all ranks and all runs draw alike: a hash of where they are used.

use crate::hash;

/// Where the random numbers of a chunk come from.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub(super) struct Source {
    /// For the signs of the rotation.
    pub(super) signs: u32,
    /// For the dither.
    pub(super) dither: u32,
    /// The rank, in whose order the dither is dealt.
    pub(super) rank: u32,
}

impl Source {
    /// That of the chunk whose first element is number `first` of call `call`.
    pub(super) fn new(call: u64, first: u64, rank: u32) -> Self {
        let hash = hash::fold([call, first]);
        Self { signs: hash as u32, dither: (hash >> 32) as u32, rank }
    }
}

/// 32 random bits for each index (Wellons, "Prospecting for hash functions", 2018: `lowbias32`).
/// Multiplications and shifts of 32 bits, which every vector unit has.
#[inline(always)]
pub(super) fn word(seed: u32, index: u32) -> u32 {
    let mut x = seed.wrapping_add(index);
    x = (x ^ x >> 16).wrapping_mul(0x7FEB_352D);
    x = (x ^ x >> 15).wrapping_mul(0x846C_A68B);
    x ^ x >> 16
}
