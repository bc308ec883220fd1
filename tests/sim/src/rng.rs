//! Random decisions that a seed reproduces, on every machine and with every version of the
//! libraries.

use rand::{Rng as _, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Parts per million.
pub type Ppm = u32;

/// xoshiro256++, whose output is fixed by its definition. Ranges are computed here, since those of
/// the `rand` crate may change between versions.
#[derive(Clone, Debug)]
pub struct Rng(Xoshiro256PlusPlus);

impl Rng {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// A random number.
    pub fn any(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.any()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A number from `low` to `high`, every order of magnitude as likely as another. `low` is not
    /// 0.
    pub fn magnitude(&mut self, low: u64, high: u64) -> u64 {
        let power = self.range(low.ilog2().into(), high.ilog2().into());
        ((1 << power) + self.below(1 << power)).clamp(low, high)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// True with a probability of `ppm` in a million.
    pub fn chance(&mut self, ppm: Ppm) -> bool {
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// One of the given values.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// A word that looks random and is the same for the same words: SplitMix64's finaliser over each.
pub fn hash(words: &[u64]) -> u64 {
    words.iter().fold(0, |hash: u64, word| {
        let mut x = hash.wrapping_add(0x9E37_79B9_7F4A_7C15) ^ word;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    })
}
