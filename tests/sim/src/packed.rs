//! How far a sum in 16 or 8 bits may be off: by arithmetic of its own, from what the numerics
//! promise.

use switchml_worker_core::Precision;

use crate::rng::hash;

/// Most ranks of a sum in 8 bits; among more it travels in 16.
const MOST_RANKS_IN_8_BITS: usize = 32;
/// Lanes come in blocks of so many.
const BLOCK: usize = 32;
/// Elements that are rotated together.
const COLUMN: usize = 128;

/// How a call's elements travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Two elements to a lane.
    Bits16,
    /// Four elements to a lane.
    Bits8,
}

impl Packing {
    /// That of a call among `ranks` ranks.
    pub fn of(precision: Precision, ranks: u16) -> Option<Self> {
        match precision {
            Precision::Exact => None,
            Precision::Bits8 if usize::from(ranks) <= MOST_RANKS_IN_8_BITS => Some(Self::Bits8),
            Precision::Bits8 | Precision::Bits16 => Some(Self::Bits16),
        }
    }

    /// Elements in a lane.
    pub fn elements(self) -> usize {
        match self {
            Self::Bits16 => 2,
            Self::Bits8 => 4,
        }
    }
}

/// A data chunk as the ranks made it.
pub struct Chunk {
    /// The number of its call in the session.
    pub call: u64,
    /// Each rank's elements.
    pub ranks: Vec<Vec<f64>>,
}

/// How far the elements of a chunk's sum may be off.
pub struct Bounds {
    /// Each of them.
    pub each: f64,
    /// The root of the sum of squares, over the elements of a column.
    pub column: f64,
    /// How many columns there are; those of element i and of element i + columns are the same.
    pub columns: usize,
}

impl Bounds {
    /// Those of a sum that is divided by so much.
    pub fn over(self, divisor: f64) -> Self {
        Self { each: self.each / divisor, column: self.column / divisor, ..self }
    }
}

impl Chunk {
    /// Whether all elements are zero on all ranks.
    pub fn is_zero(&self) -> bool {
        self.largest() == 0.0
    }

    /// Before the result is rounded to its type.
    pub fn bounds(&self, packing: Packing) -> Bounds {
        let ranks = self.ranks.len() as f64;
        match packing {
            Packing::Bits16 => {
                // N * 2^(L-15) * M.
                let growth = self.ranks.len().next_power_of_two().ilog2() as i32;
                let each = ranks * 2f64.powi(growth - 15) * self.largest();
                Bounds { each, column: f64::INFINITY, columns: 1 }
            }
            Packing::Bits8 => {
                // N * B / K, for what f32 rounds 1.01 times that. A rotation keeps the sum of
                // squares, but for the factor of 128 that it is divided by; so a column of 128 has
                // no more than one element may have.
                let levels =
                    if self.ranks.len() == 1 { 127 } else { 255 / self.ranks.len() } as f64;
                let each = 1.01 * ranks * self.limit() / levels;
                Bounds { each, column: each, columns: self.lanes() / BLOCK }
            }
        }
    }

    fn largest(&self) -> f64 {
        self.ranks.iter().flatten().fold(0.0, |largest, x| x.abs().max(largest))
    }

    /// Of the chunk in 8 bits.
    fn lanes(&self) -> usize {
        self.ranks[0].len().div_ceil(4).next_multiple_of(BLOCK)
    }

    /// B: the first sixteenth of an octave above all rotated elements, or above what f32 makes of
    /// them.
    fn limit(&self) -> f64 {
        let rotated = self.ranks.iter().flat_map(|elements| self.rotated(elements));
        let largest = 1.00001 * rotated.fold(0.0, |largest, x| x.abs().max(largest));
        let sixteenth = 2f64.powi(largest.log2().floor() as i32 - 4);
        ((largest / sixteenth).floor() + 1.0) * sixteenth
    }

    /// Signs, then all sums and differences of each column, in f64.
    fn rotated(&self, elements: &[f64]) -> Vec<f64> {
        let (lanes, columns) = (self.lanes(), self.lanes() / BLOCK);
        // The hash of rule 4.1 is this one.
        let seed = hash(&[self.call]) as u32;
        let mut all = vec![0.0; COLUMN * columns];
        for (i, x) in elements.iter().enumerate() {
            let (field, lane) = (i / lanes, i % lanes);
            let flips = word(seed.wrapping_add(lane as u32)) >> (31 - field) & 1 == 1;
            all[i] = if flips { -x } else { *x };
        }
        for step in (0..COLUMN.ilog2()).map(|bit| columns << bit) {
            for i in (0..all.len()).filter(|i| (i / step).is_multiple_of(2)) {
                (all[i], all[i + step]) = (all[i] + all[i + step], all[i] - all[i + step]);
            }
        }
        all
    }
}

/// The random word of rule 26.4.
fn word(x: u32) -> u32 {
    let x = (x ^ x >> 16).wrapping_mul(0x7FEB_352D);
    let x = (x ^ x >> 15).wrapping_mul(0x846C_A68B);
    x ^ x >> 16
}
