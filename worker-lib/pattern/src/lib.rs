//! The contributions of the ranks and the expected results, computed without the library.
//!
//! Rank r's element i is an integer k = a + w·d, with a and d hashed from i, and w from r; floats
//! divide it by a power of two that depends on i. So sum, maximum and minimum over the ranks are
//! known in closed form, in integers: N·a + W·d with W the sum of the w, and a + d times the
//! largest or smallest w.
//!
//! A share of the chunks may be zero on all ranks: a = d = 0 there.
//!
//! This is a crate of its own because each element passes here, so that it is compiled with all
//! optimisations: see the profiles in the workspace's `Cargo.toml`.

#![forbid(unsafe_code)]

mod check;
mod value;

use half::{bf16, f16};
use switchml_worker_core::{ReduceOp, Reduction};

pub use check::{all_equal, digest, digest_words};
pub use value::Value;

/// Which chunks of a tensor are zero on all ranks.
#[derive(Clone, Copy)]
pub struct Zeros {
    /// Share of the chunks, 0 to 1. They are spread evenly, and the first chunk is the last to be
    /// one of them.
    pub share: f64,
    /// Elements of a chunk, at least 1.
    pub chunk: usize,
}

impl Zeros {
    /// No chunk.
    pub const NONE: Self = Self { share: 0.0, chunk: 1 };

    fn covers(self, i: usize) -> bool {
        // The share is in millionths: with whole numbers, rounding moves no chunk.
        let others = ((1.0 - self.share) * 1e6).round() as usize;
        let others_before = |chunk: usize| (chunk * others).div_ceil(1_000_000);
        let chunk = i / self.chunk;
        others_before(chunk + 1) == others_before(chunk)
    }
}

/// An element type that can be benchmarked. These are functions of each type, so that they are
/// compiled here, and not where a generic function is used.
pub trait Tested: Value {
    /// Fills the contribution of a rank, like [`Pattern::fill`].
    fn fill(pattern: &Pattern, rank: usize, elements: &mut [Self]);
    /// The same as [`wrong_elements`].
    fn wrong_elements(pattern: &Pattern, op: Reduction, ranks: usize, result: &[Self]) -> usize;
}

macro_rules! tested {
    ($($type:ty),*) => {$(
        impl Tested for $type {
            fn fill(pattern: &Pattern, rank: usize, elements: &mut [Self]) {
                pattern.fill_with(rank, elements);
            }
            fn wrong_elements(
                pattern: &Pattern,
                op: Reduction,
                ranks: usize,
                result: &[Self],
            ) -> usize {
                check::count_wrong(pattern, op, ranks, result)
            }
        }
    )*};
}

tested!(f32, f64, f16, bf16, i32, i64);

/// The number of elements whose error exceeds what the library documents
/// (`switchml_worker_core::numerics`, "What a result is"); all elements, if a result in 8 bits is
/// wrong as a whole.
pub fn wrong_elements<T: Tested>(
    pattern: &Pattern,
    op: Reduction,
    world_size: usize,
    result: &[T],
) -> usize {
    T::wrong_elements(pattern, op, world_size, result)
}

/// One set of contributions.
pub struct Pattern {
    seed: u64,
    weights: Vec<i64>,
    zeros: Zeros,
}

/// The parts of element i that all ranks share.
struct Parts {
    a: i64,
    d: i64,
    /// Powers of two that a float is smaller than its integer.
    shift: u32,
}

impl Pattern {
    /// A set of contributions, different for every seed.
    pub fn new<T: Value>(seed: u64, world_size: usize, zeros: Zeros) -> Self {
        let weights = (0..world_size as u64)
            .map(|rank| signed(mix(mix(seed) ^ rank), weight_bits::<T>()))
            .collect();
        Self { seed: mix(!seed), weights, zeros }
    }

    /// Fills the contribution of a rank.
    pub fn fill<T: Tested>(&self, rank: usize, elements: &mut [T]) {
        T::fill(self, rank, elements);
    }

    fn fill_with<T: Value>(&self, rank: usize, elements: &mut [T]) {
        let weight = self.weights[rank];
        for (i, element) in elements.iter_mut().enumerate() {
            let Parts { a, d, shift } = self.parts::<T>(i);
            *element = T::exactly(a + weight * d, shift);
        }
    }

    /// Element i of the result: exactly, or, for an average, to the nearest f64.
    pub fn expected<T: Value>(&self, op: ReduceOp) -> impl Fn(usize) -> f64 {
        let ranks = self.weights.len() as i64;
        let sum: i64 = self.weights.iter().sum();
        let largest = self.weights.iter().copied().max().unwrap_or_default();
        let smallest = self.weights.iter().copied().min().unwrap_or_default();
        move |i| {
            let Parts { a, d, shift } = self.parts::<T>(i);
            let (up, down) = if d >= 0 { (largest, smallest) } else { (smallest, largest) };
            match op {
                ReduceOp::Sum => T::of_sum(ranks * a + sum * d, shift),
                ReduceOp::Avg => T::of_sum(ranks * a + sum * d, shift) / ranks as f64,
                ReduceOp::Max => T::of_sum(a + up * d, shift),
                ReduceOp::Min => T::of_sum(a + down * d, shift),
            }
        }
    }

    fn parts<T: Value>(&self, i: usize) -> Parts {
        if self.zeros.share > 0.0 && self.zeros.covers(i) {
            return Parts { a: 0, d: 0, shift: 0 };
        }
        let bits = mix(self.seed ^ i as u64);
        Parts {
            a: signed(bits, T::BITS - 1),
            d: signed(bits.rotate_right(T::BITS), T::BITS - 1 - weight_bits::<T>()),
            shift: if T::FLOAT { T::BITS + (bits >> 61) as u32 } else { 0 },
        }
    }
}

/// |a| < 2^(BITS-1) and |w·d| < 2^(BITS-1), so that |k| < 2^BITS.
const fn weight_bits<T: Value>() -> u32 {
    (T::BITS - 2) / 2
}

/// An integer of magnitude below 2^bits.
fn signed(hash: u64, bits: u32) -> i64 {
    let magnitude = (hash & ((1 << bits) - 1)) as i64;
    if hash >> bits & 1 == 1 { -magnitude } else { magnitude }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
/// generators", 2014).
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_chunks_that_are_zero() {
        for (share, zero) in [(0.0, 0), (0.5, 500), (0.9, 900), (0.99, 990), (1.0, 1000)] {
            let mut tensor = vec![0f32; 1000 * 8];
            Pattern::new::<f32>(3, 2, Zeros { share, chunk: 8 }).fill(1, &mut tensor);
            let (chunks, _) = tensor.as_chunks::<8>();
            assert_eq!(chunks.iter().filter(|chunk| **chunk == [0.0; 8]).count(), zero, "{share}");
            // Evenly spread: in every tenth as many.
            let of_tenth =
                |tenth: &[[f32; 8]]| tenth.iter().filter(|chunk| **chunk == [0.0; 8]).count();
            assert!(chunks.chunks(100).all(|tenth| of_tenth(tenth) == zero / 10), "{share}");
        }
    }
}
