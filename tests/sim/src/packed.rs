//! Error bounds of sums in 16 or 8 bits, computed independently from what the numerics promise.

use switchml_worker_core::Precision;

use crate::rng::hash;

/// Most ranks of a sum in 8 bits; with more ranks it travels in 16 bits.
const MOST_RANKS_IN_8_BITS: usize = 32;
/// Lanes of a block.
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
    /// How a call among `ranks` ranks travels.
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

/// Error bounds of the elements of a chunk's sum.
pub struct Bounds {
    /// The bound of each element.
    pub each: f64,
    /// The root of the sum of squares, over the elements of a column.
    pub column: f64,
    /// The number of columns; elements i and i + columns are in the same column.
    pub columns: usize,
}

impl Bounds {
    /// The bounds of a sum that is divided by `divisor`.
    pub fn over(self, divisor: f64) -> Self {
        Self { each: self.each / divisor, column: self.column / divisor, ..self }
    }
}

impl Chunk {
    /// Whether all elements are zero on all ranks.
    pub fn is_zero(&self) -> bool {
        self.largest() == 0.0
    }

    /// The bounds before the result is rounded to its type.
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
                // The bound is N * B / K, and 1.01 times that to allow for roundings of f32. A
                // rotation keeps the sum of squares, except for the division by 128; so the error
                // of a whole column is bounded like that of one element.
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

    /// Lanes of the chunk in 8 bits.
    fn lanes(&self) -> usize {
        self.ranks[0].len().div_ceil(4).next_multiple_of(BLOCK)
    }

    /// B: the first sixteenth of an octave above all rotated elements, with a margin for roundings
    /// of f32.
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
        let (row, half) = (all.len() / 8, all.len() / 16);
        add_up(&mut all, row);
        for (number, row) in all.chunks_mut(row).enumerate() {
            row.rotate_left(number * columns);
        }
        add_up(&mut all, half);
        all
    }
}

/// All sums and differences of rows of `row` elements.
fn add_up(all: &mut [f64], row: usize) {
    for step in (0..(all.len() / row).ilog2()).map(|bit| row << bit) {
        for i in (0..all.len()).filter(|i| (i / step).is_multiple_of(2)) {
            (all[i], all[i + step]) = (all[i] + all[i + step], all[i] - all[i + step]);
        }
    }
}

/// The random word of rule 26.4.
fn word(x: u32) -> u32 {
    let x = (x ^ x >> 16).wrapping_mul(0x7FEB_352D);
    let x = (x ^ x >> 15).wrapping_mul(0x846C_A68B);
    x ^ x >> 16
}
