//! The randomized Hadamard rotation: random signs, then sums of 128 elements each with all patterns
//! of signs. What one element holds is then spread over 128, and what they hold is near to normal,
//! whatever the elements were (Ailon, Chazelle, "The fast Johnson-Lindenstrauss transform", 2009;
//! before quantizing gradients: Li et al., THC, NSDI'24).
//!
//! A chunk's elements are 128 rows; each column is rotated for itself, so that nothing moves
//! between the lanes of a vector unit.

use switchml_protocol::{LANES_PER_BLOCK, MAX_LANES};

use super::random::word;

/// Elements of a column, as many as a block of lanes has fields of 8 bits.
pub(super) const ROWS: usize = 4 * LANES_PER_BLOCK;
/// Columns that are rotated together.
const WIDTH: usize = 16;
/// A chunk's elements, and room to read and write whole vectors at the end.
pub(super) type Elements = [f32; 4 * MAX_LANES + WIDTH];
/// Some columns of a chunk, row by row.
type Tile = [f32; ROWS * WIDTH];

/// Room to rotate a chunk in, once it is asked for.
pub(super) struct Room(Option<Box<Arrays>>);

/// See [`Room`]. All of it is written before it is read.
pub(super) struct Arrays {
    pub(super) elements: Elements,
    pub(super) signs: [u32; MAX_LANES],
    tile: Tile,
}

impl Room {
    /// None yet.
    pub(super) const NONE: Self = Self(None);

    /// The room.
    pub(super) fn arrays(&mut self) -> &mut Arrays {
        self.0.get_or_insert_with(|| {
            Box::new(Arrays { elements: [0.0; _], signs: [0; _], tile: [0.0; _] })
        })
    }
}

/// Draws a word of random bits for each lane: the signs of its fields, from the highest bit.
#[inline(always)]
pub(super) fn draw_signs(signs: &mut [u32], seed: u32) {
    for (index, bits) in signs.iter_mut().enumerate() {
        *bits = word(seed, index as u32);
    }
}

/// An element with its sign changed, maybe: field `field` of a lane with these random bits.
#[inline(always)]
pub(super) fn flipped(element: f32, signs: u32, field: usize) -> f32 {
    f32::from_bits(element.to_bits() ^ ((signs << field) & 0x8000_0000))
}

/// Multiplies each column of a chunk by the Hadamard matrix, of entries 1 and -1. Twice, that is a
/// factor of [`ROWS`]. What comes to lie behind the chunk's end means nothing.
#[inline(always)]
pub(super) fn hadamard(room: &mut Arrays, lanes: usize) {
    let Arrays { elements, tile, .. } = room;
    let columns = lanes / LANES_PER_BLOCK;
    for first in (0..columns).step_by(WIDTH) {
        // Whole vectors, whatever is behind the columns: only that is fast.
        for (row, tile) in tile.as_chunks_mut::<WIDTH>().0.iter_mut().enumerate() {
            tile.copy_from_slice(&elements[row * columns + first..][..WIDTH]);
        }
        butterflies::<16, WIDTH>(tile);
        butterflies::<8, { 16 * WIDTH }>(tile);
        for (row, tile) in tile.as_chunks::<WIDTH>().0.iter().enumerate() {
            let to = &mut elements[row * columns + first..][..WIDTH];
            if columns <= WIDTH {
                // What it writes behind the row, the next one overwrites.
                to.copy_from_slice(tile);
            } else {
                let held = (columns - first).min(WIDTH);
                to[..held].copy_from_slice(&tile[..held]);
            }
        }
    }
}

/// Sums and differences of what is `RUN` apart, then of what is 2 * `RUN` apart, and so on for
/// `RADIX` elements. Plain loops: these unroll, and then vectorise over `place`.
#[inline(always)]
fn butterflies<const RADIX: usize, const RUN: usize>(tile: &mut Tile) {
    for block in tile.chunks_exact_mut(RADIX * RUN) {
        for place in 0..RUN {
            let mut x = [0f32; RADIX];
            for i in 0..RADIX {
                x[i] = block[i * RUN + place];
            }
            let mut apart = 1;
            while apart < RADIX {
                for i in 0..RADIX {
                    if i & apart == 0 {
                        (x[i], x[i + apart]) = (x[i] + x[i + apart], x[i] - x[i + apart]);
                    }
                }
                apart *= 2;
            }
            for i in 0..RADIX {
                block[i * RUN + place] = x[i];
            }
        }
    }
}
