//! Random numbers that are the same on all ranks and in all runs: a hash of where they are used.

use crate::hash;

/// The seeds of a chunk's random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub(super) struct Source {
    /// Seed of the rotation's signs: the same for all chunks of a call.
    pub(super) signs: u32,
    /// Seed of the dither.
    pub(super) dither: u32,
    /// The rank, which shifts its dither.
    pub(super) rank: u32,
}

impl Source {
    /// The seeds of the chunk whose first element is number `first` of call `call`.
    pub(super) fn new(call: u64, first: u64, rank: u32) -> Self {
        Self { signs: hash::fold([call]) as u32, dither: hash::fold([call, first]) as u32, rank }
    }
}

/// 32 random bits for each index (Wellons, "Prospecting for hash functions", 2018: `lowbias32`).
/// Multiplications and shifts of 32 bits, which every vector unit has.
#[inline(always)]
pub(super) fn word(seed: u32, index: u32) -> u32 {
    let x = seed.wrapping_add(index);
    let x = (x ^ x >> 16).wrapping_mul(0x7FEB_352D);
    let x = (x ^ x >> 15).wrapping_mul(0x846C_A68B);
    x ^ x >> 16
}
