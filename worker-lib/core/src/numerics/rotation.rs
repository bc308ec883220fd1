//! The randomized Hadamard rotation: random signs, then sums of 128 elements each with patterns of
//! signs that are orthogonal. The value of one element is then spread over 128, and their
//! distribution is nearly normal, whatever the elements were (Ailon, Chazelle, "The fast
//! Johnson-Lindenstrauss transform", 2009; before quantizing gradients: Li et al., THC, NSDI'24).
//!
//! A chunk's elements are added up in two passes, each of which keeps them in registers: first as 8
//! rows, then, cut in halves, as 16. In between each row turns by another number of places, so the
//! second pass adds up sums of different elements. So no value ever moves between the lanes of a
//! vector unit.
//!
//! Each loop over [`WIDTH`] places does everything for a place, and writes to a separate array:
//! only such loops become vector instructions.

use switchml_protocol::MAX_LANES;

use super::format::power_of_two;
use super::random::word;
use super::vectorised::vectorised;

/// Rows of the first pass.
pub(super) const ROWS: usize = 8;
/// Halves of these rows, which the second pass adds up.
pub(super) const HALVES: usize = 2 * ROWS;
/// Elements that are added up: 16 sums of 8.
pub(super) const SPREAD: usize = ROWS * HALVES;
/// Elements in a lane.
pub(super) const FIELDS: usize = 4;
/// Number of places that are processed together: the lanes of the widest vector unit.
pub(super) const WIDTH: usize = 16;
/// Where rows that turn back begin: before them is room for a half.
pub(super) const FRONT: usize = MAX_LANES * FIELDS / HALVES;
/// Room for a row, and for what is repeated before or behind it. An odd number of cache lines, so
/// that the same places of several rows do not compete in the cache.
const ROOM: usize = 3 * FRONT + WIDTH;
/// The rows of a chunk.
pub(super) type Rows = [[f32; ROOM]; ROWS];
/// Factors of the elements of all lanes, by field.
pub(super) type Signs = [[f32; MAX_LANES]; FIELDS];

/// Room to rotate a chunk in, once it is asked for.
pub(super) struct Room(Option<Box<Arrays>>);

/// See [`Room`]. All of it is written before it is read. Aligned to cache lines, as most vectors of
/// 64 bytes would otherwise lie in two of them.
#[repr(align(64))]
pub(super) struct Arrays {
    pub(super) rows: Rows,
    pub(super) other: Rows,
    pub(super) signs: Signs,
    /// The bytes of elements where a chunk is not full.
    pub(super) padded: [u8; 4 * FIELDS * MAX_LANES],
    /// What the signs were drawn for.
    drawn: Option<(u32, i32, usize)>,
}

impl Room {
    /// No room yet.
    pub(super) const NONE: Self = Self(None);

    /// The room, with the signs of that seed for so many lanes, times 2^-`power`.
    pub(super) fn arrays(&mut self, seed: u32, power: i32, lanes: usize) -> &mut Arrays {
        let room = self.0.get_or_insert_with(Arrays::new);
        if room.drawn != Some((seed, power, lanes)) {
            draw(seed, power, &mut room.signs, lanes);
            room.drawn = Some((seed, power, lanes));
        }
        room
    }
}

impl Arrays {
    #[cold]
    fn new() -> Box<Self> {
        Box::new(Self {
            rows: [[0.0; _]; _],
            other: [[0.0; _]; _],
            signs: [[0.0; _]; _],
            padded: [0; _],
            drawn: None,
        })
    }
}

vectorised! {
    fn draw(seed: u32, power: i32, signs: &mut Signs, lanes: usize) = draw_with;
}

#[inline(always)]
fn draw_with(seed: u32, power: i32, signs: &mut Signs, lanes: usize) {
    let scale = power_of_two(-power) as f32;
    let [first, second, third, fourth] = signs.each_mut().map(|signs| &mut signs[..lanes]);
    for lane in 0..lanes {
        let random = word(seed, lane as u32);
        let sign = |field: u32| f32::from_bits(scale.to_bits() | (random << field & 0x8000_0000));
        first[lane] = sign(0);
        second[lane] = sign(1);
        third[lane] = sign(2);
        fourth[lane] = sign(3);
    }
}

/// How a chunk's elements lie in rows.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Elements of a row.
    pub(super) row: usize,
    /// Elements of half a row.
    pub(super) half: usize,
    /// Places that each row turns further than the last.
    turn: usize,
    /// Places of a vector that half a row has: all, except in the shortest chunk.
    pub(super) held: usize,
}

impl Shape {
    #[inline(always)]
    pub(super) const fn of(lanes: usize) -> Self {
        let row = lanes * FIELDS / ROWS;
        let half = row / 2;
        let held = if half < WIDTH { half } else { WIDTH };
        Self { row, half, turn: half / ROWS, held }
    }

    /// Where the vectors of a half begin, and the first of their columns that is new. The last
    /// vector ends where the half does, so it may begin in the one before.
    #[inline(always)]
    pub(super) fn of_half(self) -> impl Iterator<Item = (usize, usize)> {
        let last = self.half - self.held;
        (0..self.half).step_by(WIDTH).map(move |new| (if new < last { new } else { last }, new))
    }

    /// Vectors of the halves of all rows, once these have turned.
    #[inline(always)]
    pub(super) fn turned(self, rows: &Rows, first: usize) -> [&[f32; WIDTH]; HALVES] {
        let mut vectors = [vector(&rows[0], 0); HALVES];
        // Not `from_fn`: it is not always inlined, and then not compiled for the vector unit.
        for row in 0..ROWS {
            let at = first + row * self.turn;
            vectors[2 * row] = vector(&rows[row], at);
            vectors[2 * row + 1] = vector(&rows[row], at + self.half);
        }
        vectors
    }

    /// Writes vectors of rows that are to turn, and repeats their beginning behind their end.
    #[inline(always)]
    pub(super) fn put(self, rows: &mut Rows, first: usize, vectors: &[[f32; WIDTH]; ROWS]) {
        for row in 0..ROWS {
            store(&mut rows[row], first, &vectors[row]);
            if first < (ROWS - 1) * self.turn {
                store(&mut rows[row], self.row + first, &vectors[row]);
            }
        }
    }

    /// Vectors of all rows, once these have turned back.
    #[inline(always)]
    pub(super) fn turned_back(self, rows: &Rows, first: usize) -> [&[f32; WIDTH]; ROWS] {
        let mut vectors = [vector(&rows[0], 0); ROWS];
        for row in 0..ROWS {
            vectors[row] = vector(&rows[row], FRONT + first - row * self.turn);
        }
        vectors
    }

    /// Writes vectors of the halves of rows that are to turn back, and repeats the rows' end before
    /// their beginning. In this order, as in the shortest chunk a half is less than a vector.
    #[inline(always)]
    pub(super) fn put_halves(self, rows: &mut Rows, first: usize, halves: &[[f32; WIDTH]; HALVES]) {
        for row in 0..ROWS {
            let [left, right] = [&halves[2 * row], &halves[2 * row + 1]];
            store(&mut rows[row], FRONT - self.half + first, right);
            store(&mut rows[row], FRONT + first, left);
            store(&mut rows[row], FRONT + self.half + first, right);
        }
    }

    /// Vectors of the factors of all rows.
    #[inline(always)]
    pub(super) fn factors(self, signs: &Signs, first: usize) -> [&[f32; WIDTH]; ROWS] {
        const ROWS_OF_FIELD: usize = ROWS / FIELDS;
        let mut factors = [vector(&signs[0], 0); ROWS];
        for row in 0..ROWS {
            let lane = row % ROWS_OF_FIELD * self.row + first;
            factors[row] = vector(&signs[row / ROWS_OF_FIELD], lane);
        }
        factors
    }
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

/// [`WIDTH`] values from `at` on.
#[inline(always)]
pub(super) fn vector<T>(values: &[T], at: usize) -> &[T; WIDTH] {
    let Some(vector) = values[at..].first_chunk() else { panic!("no vector at {at}") };
    vector
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

/// Writes a vector from `at` on.
#[inline(always)]
pub(super) fn store<T: Copy>(values: &mut [T], at: usize, vector: &[T; WIDTH]) {
    values[at..][..WIDTH].copy_from_slice(vector);
}

/// The largest magnitude of all rotated elements, as the bits of a float, after the first pass.
#[inline(always)]
pub(super) fn largest(rows: &Rows, shape: Shape) -> u32 {
    let mut largest = [0u32; WIDTH];
    // In the shortest chunk, places behind the half's end repeat other places' magnitudes.
    for (first, _) in shape.of_half() {
        let halves = shape.turned(rows, first);
        let mut next = [0u32; WIDTH];
        for place in 0..WIDTH {
            let mut largest = largest[place];
            for x in hadamard(column(&halves, place)) {
                let magnitude = x.to_bits() & 0x7FFF_FFFF;
                largest = if magnitude > largest { magnitude } else { largest };
            }
            next[place] = largest;
        }
        largest = next;
    }
    largest.into_iter().fold(0, u32::max)
}
