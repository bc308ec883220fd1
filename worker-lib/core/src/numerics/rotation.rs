//! The randomized Hadamard rotation: random signs, then sums of 128 elements each with all patterns
//! of signs. The value of one element is then spread over 128, and their distribution is nearly
//! normal, whatever the elements were (Ailon, Chazelle, "The fast Johnson-Lindenstrauss transform",
//! 2009; before quantizing gradients: Li et al., THC, NSDI'24).
//!
//! A chunk's elements are 128 rows; each column is rotated by itself, so that no value moves
//! between the lanes of a vector unit. Rows an eighth of a chunk or more apart are added up first,
//! by the code that reads or writes the elements; then this module adds up rows inside an eighth.
//! Each of these passes keeps its elements in registers.
//!
//! Each loop over [`WIDTH`] places does everything for a place, and writes to a separate array:
//! only such loops become vector instructions.

#![expect(clippy::needless_range_loop, reason = "iterators do not vectorise here")]

use switchml_protocol::{LANES_PER_BLOCK, MAX_LANES};

use super::random::word;

/// Elements of a column, as many as a block of lanes has fields of 8 bits.
pub(super) const ROWS: usize = 4 * LANES_PER_BLOCK;
/// Rows of an eighth of a chunk.
const NEAR: usize = ROWS / 8;
/// Number of places that are processed together: the lanes of the widest vector unit.
pub(super) const WIDTH: usize = 16;
/// A chunk's elements, and room to read and write whole vectors at the end.
pub(super) type Elements = [f32; 4 * MAX_LANES + WIDTH];

/// Room to rotate a chunk in, once it is asked for.
pub(super) struct Room(Option<Box<Arrays>>);

/// See [`Room`]. All of it is written before it is read.
pub(super) struct Arrays {
    pub(super) elements: Elements,
    /// The bytes of a call's last elements, and of zeros behind them.
    padded: [u8; 16 * MAX_LANES],
    signs: [u32; MAX_LANES],
    /// The seed of the signs.
    drawn: Option<u32>,
}

impl Room {
    /// No room yet.
    pub(super) const NONE: Self = Self(None);

    /// The room, with the signs of that seed.
    pub(super) fn arrays(&mut self, seed: u32) -> &mut Arrays {
        let room = self.0.get_or_insert_with(|| {
            let (padded, signs) = ([0; _], [0; _]);
            Box::new(Arrays { elements: [0.0; _], padded, signs, drawn: None })
        });
        if room.drawn != Some(seed) {
            for (lane, bits) in room.signs.iter_mut().enumerate() {
                *bits = word(seed, lane as u32);
            }
            room.drawn = Some(seed);
        }
        room
    }
}

impl Arrays {
    /// The elements, their padding, and a word for each lane: the signs of its fields, from the
    /// highest bit.
    #[inline(always)]
    pub(super) fn parts(&mut self) -> (&mut Elements, &mut [u8], &[u32; MAX_LANES]) {
        (&mut self.elements, &mut self.padded, &self.signs)
    }
}

/// An element with its sign changed, maybe: field `field` of a lane with these random bits.
#[inline(always)]
pub(super) fn flipped(element: f32, signs: u32, field: usize) -> f32 {
    f32::from_bits(element.to_bits() ^ ((signs << field) & 0x8000_0000))
}

/// Multiplies by the Hadamard matrix of `N` rows, of entries 1 and -1.
#[inline(always)]
pub(super) fn hadamard<const N: usize>(mut x: [f32; N]) -> [f32; N] {
    let mut apart = 1;
    while apart < N {
        for i in 0..N {
            if i & apart == 0 {
                (x[i], x[i + apart]) = (x[i] + x[i + apart], x[i] - x[i + apart]);
            }
        }
        apart *= 2;
    }
    x
}

/// `N` vectors of [`WIDTH`] values: the first at `at`, each next one `apart` further.
#[inline(always)]
pub(super) fn vectors<T, const N: usize>(
    values: &[T],
    at: usize,
    apart: usize,
) -> [&[T; WIDTH]; N] {
    let Some(first) = values[at..].first_chunk() else { panic!("no vector at {at}") };
    let mut vectors = [first; N];
    // Not `from_fn`: it is not always inlined, and then not compiled for the vector unit.
    for (i, vector) in vectors.iter_mut().enumerate() {
        let at = at + i * apart;
        let Some(values) = values[at..].first_chunk() else { panic!("no vector at {at}") };
        *vector = values;
    }
    vectors
}

/// The values of some vectors at a place.
#[inline(always)]
pub(super) fn column<const N: usize>(vectors: &[&[f32; WIDTH]; N], place: usize) -> [f32; N] {
    let mut column = [0f32; N];
    for i in 0..N {
        column[i] = vectors[i][place];
    }
    column
}

/// Writes [`WIDTH`] values from `at` on.
#[inline(always)]
pub(super) fn store<T: Copy>(values: &mut [T], at: usize, vector: &[T; WIDTH]) {
    values[at..][..WIDTH].copy_from_slice(vector);
}

/// Adds up the rows that are an eighth of a chunk or more apart.
#[inline(always)]
pub(super) fn add_far(elements: &mut Elements, lanes: usize) {
    let eighth = lanes / 2;
    for first in (0..eighth).step_by(WIDTH) {
        let rows = vectors::<_, 8>(&*elements, first, eighth);
        let mut sums = [[0f32; WIDTH]; 8];
        for place in 0..WIDTH {
            let column = hadamard(column(&rows, place));
            for row in 0..8 {
                sums[row][place] = column[row];
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            store(elements, row * eighth + first, sums);
        }
    }
}

/// Adds up the rows inside each eighth of a chunk. Values behind the chunk's end are meaningless.
#[inline(always)]
pub(super) fn add_near(elements: &mut Elements, lanes: usize) {
    let columns = lanes / LANES_PER_BLOCK;
    for eighth in 0..8 {
        let eighth = &mut elements[eighth * NEAR * columns..][..NEAR * columns + WIDTH];
        for first in (0..columns).step_by(WIDTH) {
            // Process whole vectors, including values behind the columns: only that is fast.
            let rows = vectors::<_, NEAR>(eighth, first, columns);
            let mut sums = [[0f32; WIDTH]; NEAR];
            for place in 0..WIDTH {
                let column = hadamard(column(&rows, place));
                for row in 0..NEAR {
                    sums[row][place] = column[row];
                }
            }
            let [most @ .., last] = &sums;
            let held = (columns - first).min(WIDTH);
            if (WIDTH / 2..=WIDTH).contains(&columns) {
                // Values that one row writes behind its end are overwritten by the next row, or by
                // the last.
                for (row, sums) in most.iter().enumerate() {
                    store(eighth, row * columns, sums);
                }
            } else {
                for (row, sums) in most.iter().enumerate() {
                    eighth[row * columns + first..][..held].copy_from_slice(&sums[..held]);
                }
            }
            eighth[(NEAR - 1) * columns + first..][..held].copy_from_slice(&last[..held]);
        }
    }
}

/// The largest magnitude that [`add_near`] would give, as the bits of a float.
#[inline(always)]
pub(super) fn largest_near(elements: &Elements, lanes: usize) -> u32 {
    let columns = lanes / LANES_PER_BLOCK;
    let mut largest = 0;
    for first in (0..columns).step_by(WIDTH) {
        let mut of_column = [0u32; WIDTH];
        for eighth in (0..8).map(|eighth| eighth * NEAR * columns) {
            let rows = vectors::<_, NEAR>(elements, eighth + first, columns);
            for place in 0..WIDTH {
                let column = hadamard(column(&rows, place));
                let mut largest = of_column[place];
                for x in column {
                    let magnitude = x.to_bits() & 0x7FFF_FFFF;
                    largest = if magnitude > largest { magnitude } else { largest };
                }
                of_column[place] = largest;
            }
        }
        let held = (columns - first).min(WIDTH);
        largest = of_column[..held].iter().copied().fold(largest, u32::max);
    }
    largest
}
