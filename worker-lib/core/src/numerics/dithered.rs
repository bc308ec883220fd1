//! Floats in a quarter of a lane: rotated (see `rotation`), then rounded with a dither that the
//! decoder knows.
//!
//! Each rank adds a random part of a step before it rounds, and the sum of these parts is
//! subtracted from the result: that makes the rounding error independent of the element, zero on
//! average, and of half the variance of stochastic rounding (Roberts, "Picture coding using
//! pseudo-random noise", 1962). The parts of the N ranks are 1/N apart. So one number determines
//! their sum, and errors of ranks with similar elements cancel (Suresh et al., "Correlated
//! quantization for distributed mean estimation and optimization", ICML 2022).

#![expect(clippy::needless_range_loop, reason = "iterators do not vectorise here")]

use super::exponent::is_marker;
use super::fixed::Fixed;
use super::format::{F32, Format, OneLane, largest_exponent, power_of_two};
use super::random::{self, Source};
use super::rotation::{
    Arrays, FIELDS, HALVES, ROWS, Room, Rows, SPREAD, Shape, Signs, WIDTH, column, hadamard,
    largest, store,
};

/// Rule 26.9: most ranks for which a field leaves each rank enough levels.
pub(super) const MOST_RANKS: usize = 32;
/// Bits of a field, and of a dither.
const BITS: u32 = 8;
/// Fields 0 and 2 of a lane.
const EVEN: u32 = 0x00FF_00FF;
/// Number of steps per octave in the scale of a chunk, as a number of bits. Coarser steps waste
/// levels: quarters of an octave made the squared errors of normal elements 1.13 times as large.
const FINER: i32 = 4;
/// Lanes that the elements of a column are in.
const LANES: usize = HALVES / FIELDS;
/// Lanes of a full packet of 1500 bytes. These chunks have separate code: with constant bounds it
/// is faster.
const FULL: usize = 352;

/// How a job of N ranks turns the floats of a chunk into fields of 8 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dithered {
    fixed: Fixed,
    source: Source,
    /// The value of zero in the sum of all ranks, in units of 2^-8 of a step, if rank 0's dither is
    /// 0.
    middle: u32,
}

/// The scale that an exponent of rotated elements encodes.
struct Scale {
    /// E: the octave.
    octave: i32,
    /// Upper bound of rotated elements, in units of 2^E: 17/16, 18/16 and so on, up to 2.
    limit: f64,
}

impl Scale {
    /// Exponents that no f32 has (from a foreign packet) are replaced by the nearest.
    #[inline(always)]
    fn new(exponent: i32) -> Self {
        let octave =
            (exponent >> FINER).clamp(F32::MIN_EXPONENT, F32::BIAS + SPREAD.ilog2() as i32);
        let steps = 1 << FINER;
        let limit = 1.0 + f64::from((exponent & (steps - 1)) + 1) / f64::from(steps);
        Self { octave, limit }
    }
}

impl Dithered {
    pub(super) fn new(fixed: Fixed) -> Self {
        let by = Self { fixed, source: Source::default(), middle: 0 };
        // Half a step of each rank compensates the rounding.
        let of_rank = |rank| by.half() + by.shift(rank) - (1 << (BITS - 1));
        Self { middle: (0..fixed.ranks).map(of_rank).sum(), ..by }
    }

    pub(super) fn at(self, source: Source) -> Self {
        Self { source, ..self }
    }

    /// Steps of a rank's share of a field: K = floor(255 / N), for a single rank 127.
    #[inline(always)]
    fn steps(self) -> u32 {
        255 / self.fixed.ranks.max(2)
    }

    /// Half of these steps, in units of 2^-8 of a step.
    #[inline(always)]
    fn half(self) -> u32 {
        self.steps() << (BITS - 1)
    }

    /// The dither of a rank minus that of rank 0, in units of 2^-8 of a step.
    #[inline(always)]
    fn shift(self, rank: u32) -> u32 {
        (rank << BITS) / self.fixed.ranks
    }
}

/// The power of two that the elements of a chunk are divided by before they are rotated, where the
/// largest has this exponent: none, unless sums could overflow or be subnormal.
#[inline(always)]
fn divided_by(exponent: i32) -> i32 {
    match exponent {
        ..-60 => -100,
        -60..=60 => 0,
        61.. => 64,
    }
}

/// The first pass over a chunk's elements, with their signs.
#[inline(always)]
fn rotate<F: OneLane>(src: &[u8], lanes: usize, arrays: &mut Arrays) {
    let (size, shape) = (size_of::<F::Raw>(), Shape::of(lanes));
    let Arrays { rows, padded, signs, .. } = arrays;
    let len = FIELDS * lanes * size;
    let src = if src.len() < len {
        padded[..src.len()].copy_from_slice(src);
        padded[src.len()..len].fill(0);
        &padded[..len]
    } else {
        &src[..len]
    };
    for first in (0..shape.row).step_by(WIDTH) {
        let factors = shape.factors(signs, first);
        let mut raw = [[<F::Raw as bytemuck::Zeroable>::zeroed(); WIDTH]; ROWS];
        for row in 0..ROWS {
            let from = &src[(row * shape.row + first) * size..][..WIDTH * size];
            bytemuck::cast_slice_mut(&mut raw[row]).copy_from_slice(from);
        }
        let mut sums = [[0f32; WIDTH]; ROWS];
        for place in 0..WIDTH {
            let mut x = [0f32; ROWS];
            for row in 0..ROWS {
                x[row] = F::widen(raw[row][place]) as f32 * factors[row][place];
            }
            x = hadamard(x);
            for row in 0..ROWS {
                sums[row][place] = x[row];
            }
        }
        shape.put(rows, first, &sums);
    }
}

/// This rank's exponent of a chunk: in sixteenths of an octave, of the largest rotated element.
#[inline(always)]
pub(super) fn exponent<F: OneLane>(by: Dithered, src: &[u8], lanes: usize, room: &mut Room) -> i32 {
    // Rotated elements have the exponent of the largest element, or up to 7 more. With these, all
    // elements are finite, and nothing is divided by.
    let usual = -52..(F::BIAS + 1).min(61);
    let mut power = 0;
    loop {
        let largest = if lanes == FULL {
            largest_of::<F>(by, src, FULL, (power, room))
        } else {
            largest_of::<F>(by, src, lanes, (power, room))
        };
        if power == 0 && !usual.contains(&F32::exponent(largest)) {
            let own = largest_exponent::<F>(src);
            if is_marker(own) {
                return own;
            }
            power = divided_by(own);
            if power != 0 {
                continue;
            }
        }
        return sixteenths(largest) + (power << FINER);
    }
}

/// The bits of the largest rotated element.
#[inline(always)]
fn largest_of<F: OneLane>(
    by: Dithered,
    src: &[u8],
    lanes: usize,
    (power, room): (i32, &mut Room),
) -> u32 {
    let arrays = room.arrays(by.source.signs, power, lanes);
    rotate::<F>(src, lanes, arrays);
    largest(&arrays.rows, Shape::of(lanes))
}

/// The exponent of an f32 that is not subnormal, in sixteenths of an octave.
#[inline(always)]
fn sixteenths(bits: u32) -> i32 {
    (bits >> (F32::MANTISSA_BITS - FINER as u32)) as i32 - (F32::BIAS << FINER)
}

/// How a rank's rotated elements become fields, in units of 2^-8 of a step.
#[derive(Clone, Copy)]
struct Rounding {
    /// Units in 1.
    scale: f32,
    /// Half the steps of a field: the value of zero, and of the largest element.
    middle: u32,
    /// See [`Dithered::shift`], for fields 0 and 2.
    shift: u32,
    seed: u32,
}

impl Rounding {
    /// The rounding of elements that were divided by 2^`power`.
    #[inline(always)]
    fn new(by: Dithered, scale: &Scale, power: i32) -> Self {
        let middle = by.half();
        // The second factor is exact.
        let factor = power_of_two(power - scale.octave) as f32;
        let scale = (f64::from(middle) / scale.limit) as f32 * factor;
        let shift = by.shift(by.source.rank) * 0x0001_0001;
        Self { scale, middle, shift, seed: by.source.dither }
    }

    /// This rank's dithers of a lane's fields: of 0 and 2, and of 1 and 3.
    #[inline(always)]
    fn dithers(self, lane: usize) -> [u32; 2] {
        let random = random::word(self.seed, lane as u32);
        [random, random >> BITS].map(|random| ((random & EVEN) + self.shift) & EVEN)
    }

    /// A rotated element in units, from 0 on, in the lowest 16 bits.
    #[inline(always)]
    fn units(self, x: f32) -> u32 {
        /// Adding this to |x| <= 2^22 rounds it to an integer, in the last bits.
        const SHIFT: f32 = 12_582_912.0;
        let limit = self.middle as f32;
        let x = x * self.scale;
        // Not `clamp`: it would let NaN through.
        let x = if x > -limit { x } else { -limit };
        let x = if x < limit { x } else { limit };
        (x + (SHIFT + limit)).to_bits() & 0xFFFF
    }

    /// The lane of four rotated elements.
    #[inline(always)]
    fn lane(self, x: [f32; FIELDS], [even, odd]: [u32; 2]) -> u32 {
        let even = (self.units(x[0]) | self.units(x[2]) << 16) + even;
        let odd = (self.units(x[1]) | self.units(x[3]) << 16) + odd;
        (even >> BITS & EVEN) | (odd & !EVEN)
    }

    /// Four rotated elements minus the values of their fields.
    #[inline(always)]
    fn errors(self, x: [f32; FIELDS], dithers: [u32; 2]) -> [f32; FIELDS] {
        let lane = self.lane(x, dithers);
        let zero = (self.middle - (1 << (BITS - 1))) as i32;
        let mut errors = [0f32; FIELDS];
        for field in 0..FIELDS {
            let steps = (lane >> (BITS * field as u32)) & 0xFF;
            let dither = (dithers[field % 2] >> (16 * (field as u32 / 2))) & 0xFF;
            let value = (steps << BITS) as i32 - dither as i32 - zero;
            errors[field] = x[field] - value as f32 / self.scale;
        }
        errors
    }
}

/// The fields of one of the four lanes that a column of halves is in.
#[inline(always)]
fn of_lane(x: &[f32; HALVES], lane: usize) -> [f32; FIELDS] {
    let mut fields = [0f32; FIELDS];
    for field in 0..FIELDS {
        fields[field] = x[field * LANES + lane];
    }
    fields
}

/// Four elements per lane, each a quarter of a chunk from the next, the first in the lowest bits.
#[inline(always)]
pub(super) fn encode<F: OneLane>(
    by: Dithered,
    src: &[u8],
    exponent: i32,
    payload: &mut [u8],
    room: &mut Room,
) -> u32 {
    if let Ok(payload) = <&mut [u8; 4 * FULL]>::try_from(&mut *payload) {
        encode_in::<F>(by, src, exponent, payload, room)
    } else {
        encode_in::<F>(by, src, exponent, payload, room)
    }
}

#[inline(always)]
fn encode_in<F: OneLane>(
    by: Dithered,
    src: &[u8],
    exponent: i32,
    payload: &mut [u8],
    room: &mut Room,
) -> u32 {
    let lanes = payload.len() / 4;
    let (scale, shape) = (Scale::new(exponent), Shape::of(lanes));
    let power = divided_by(scale.octave);
    let arrays = room.arrays(by.source.signs, power, lanes);
    rotate::<F>(src, lanes, arrays);
    let rounding = Rounding::new(by, &scale, power);
    let payload = payload.as_chunks_mut::<4>().0;
    let mut sums = [0u32; WIDTH];
    for (first, new) in shape.of_half() {
        let halves = shape.turned(&arrays.rows, first);
        let mut words = [[[0; 4]; WIDTH]; LANES];
        let mut next = [0u32; WIDTH];
        for place in 0..WIDTH {
            let x = hadamard(column(&halves, place));
            // A lane that was in the last vector, or is behind the half's end, does not count.
            let counts = new <= first + place && first + place < shape.half;
            let counted = if counts { u32::MAX } else { 0 };
            let mut sum = sums[place];
            for lane in 0..LANES {
                let dithers = rounding.dithers(lane * shape.half + first + place);
                let word = rounding.lane(of_lane(&x, lane), dithers);
                words[lane][place] = word.to_be_bytes();
                sum = sum.wrapping_add(word & counted);
            }
            next[place] = sum;
        }
        sums = next;
        for (lane, words) in words.iter().enumerate() {
            let at = lane * shape.half + first;
            if shape.held == WIDTH {
                store(payload, at, words);
            } else {
                payload[at..][..shape.held].copy_from_slice(&words[..shape.held]);
            }
        }
    }
    sums.into_iter().fold(0, u32::wrapping_add)
}

/// The inverse of [`encode`], for the sum of all ranks, divided by the divisor.
#[inline(always)]
pub(super) fn decode<F: OneLane>(
    by: Dithered,
    payload: &[u8],
    exponent: i32,
    dst: &mut [u8],
    room: &mut Room,
) {
    if let Ok(payload) = <&[u8; 4 * FULL]>::try_from(payload) {
        decode_in::<F>(by, payload, exponent, dst, room);
    } else {
        decode_in::<F>(by, payload, exponent, dst, room);
    }
}

#[inline(always)]
fn decode_in<F: OneLane>(
    by: Dithered,
    payload: &[u8],
    exponent: i32,
    dst: &mut [u8],
    room: &mut Room,
) {
    let lanes = payload.len() / 4;
    let arrays = room.arrays(by.source.signs, 0, lanes);
    unpack(by, payload, &mut arrays.rows);
    let Scale { octave, limit } = Scale::new(exponent);
    let unit = f64::from(by.steps() * by.fixed.divisor) * (SPREAD << (BITS - 1)) as f64;
    let Arrays { rows, signs, padded, .. } = arrays;
    write::<F>((rows, signs), lanes, ((limit / unit) as f32, octave), (dst, padded));
}

/// Reads the rotated elements of the sum, in units of 2^-8 of a step, and adds up halves of rows.
#[inline(always)]
fn unpack(by: Dithered, payload: &[u8], rows: &mut Rows) {
    /// The bits of the f32 2^23, whose last bits count ones.
    const ONES: u32 = 0x4B00_0000;
    let payload = payload.as_chunks::<4>().0;
    let (ranks, shape) = (by.fixed.ranks, Shape::of(payload.len()));
    let middle = f32::from_bits(ONES + 0xFF + by.middle);
    for (first, _) in shape.of_half() {
        let mut lanes = [[[0; 4]; WIDTH]; LANES];
        for (lane, words) in lanes.iter_mut().enumerate() {
            let from = &payload[lane * shape.half + first..];
            match from.first_chunk() {
                Some(vector) if shape.held == WIDTH => *words = *vector,
                _ => words[..shape.held].copy_from_slice(&from[..shape.held]),
            }
        }
        let mut sums = [[0f32; WIDTH]; HALVES];
        for place in 0..WIDTH {
            let mut x = [0f32; HALVES];
            for lane in 0..LANES {
                let index = (lane * shape.half + first + place) as u32;
                let random = random::word(by.source.dither, index);
                let sum = u32::from_be_bytes(lanes[lane][place]);
                // 256 times the sum, plus 255 minus the ranks' dithers.
                let rest = |random: u32| (((random & EVEN) * ranks) & EVEN) ^ EVEN;
                let even = (sum & EVEN) << BITS | rest(random);
                let odd = (sum & !EVEN) | rest(random >> BITS);
                for (field, bits) in
                    [even & 0xFFFF, odd & 0xFFFF, even >> 16, odd >> 16].into_iter().enumerate()
                {
                    // The value is less than 2^17 in magnitude, so all sums of 128 are exact.
                    x[field * LANES + lane] = f32::from_bits(ONES | bits) - middle;
                }
            }
            x = hadamard(x);
            for half in 0..HALVES {
                sums[half][place] = x[half];
            }
        }
        shape.put_halves(rows, first, &sums);
    }
}

/// The residuals of a rank's elements after [`encode`]: each element minus the value of its field
/// without this rank's dither. The ranks' fields add up to these values, so the residuals are all
/// that is lost.
#[inline(always)]
pub(super) fn residual<F: OneLane>(
    by: Dithered,
    src: &[u8],
    exponent: i32,
    lanes: usize,
    dst: &mut [u8],
    room: &mut Room,
) {
    let (scale, shape) = (Scale::new(exponent), Shape::of(lanes));
    let power = divided_by(scale.octave);
    let rounding = Rounding::new(by, &scale, power);
    let arrays = room.arrays(by.source.signs, power, lanes);
    rotate::<F>(src, lanes, arrays);
    for (first, _) in shape.of_half() {
        let halves = shape.turned(&arrays.rows, first);
        let mut sums = [[0f32; WIDTH]; HALVES];
        for place in 0..WIDTH {
            let mut x = hadamard(column(&halves, place));
            for lane in 0..LANES {
                let dithers = rounding.dithers(lane * shape.half + first + place);
                let errors = rounding.errors(of_lane(&x, lane), dithers);
                for field in 0..FIELDS {
                    x[field * LANES + lane] = errors[field];
                }
            }
            x = hadamard(x);
            for half in 0..HALVES {
                sums[half][place] = x[half];
            }
        }
        shape.put_halves(&mut arrays.other, first, &sums);
    }
    let Arrays { other, signs, padded, .. } = room.arrays(by.source.signs, 0, lanes);
    write::<F>((other, signs), lanes, (1.0 / SPREAD as f32, power), (dst, padded));
}

/// The other pass of turning back: writes a chunk's elements, with their signs, times a factor and
/// a power of two.
#[inline(always)]
fn write<F: OneLane>(
    (rows, signs): (&Rows, &Signs),
    lanes: usize,
    (factor, power): (f32, i32),
    (dst, padded): (&mut [u8], &mut [u8]),
) {
    // Sums are whole numbers times a factor of at least 2^-30. So their products with 2^power in
    // f32 are subnormal or infinite only if the result is.
    if (-90..=120).contains(&power) {
        let factor = factor * power_of_two(power) as f32;
        write_with::<F>((rows, signs), lanes, |x| F::narrow(f64::from(x * factor)), (dst, padded));
    } else {
        let power = power_of_two(power);
        let narrow = |x: f32| F::narrow(f64::from(x * factor) * power);
        write_with::<F>((rows, signs), lanes, narrow, (dst, padded));
    }
}

#[inline(always)]
fn write_with<F: OneLane>(
    (rows, signs): (&Rows, &Signs),
    lanes: usize,
    narrow: impl Fn(f32) -> F::Raw,
    (dst, padded): (&mut [u8], &mut [u8]),
) {
    let (size, shape) = (size_of::<F::Raw>(), Shape::of(lanes));
    let is_full = dst.len() == FIELDS * lanes * size;
    let out = if is_full { &mut *dst } else { &mut *padded };
    for first in (0..shape.row).step_by(WIDTH) {
        let (from, factors) = (shape.turned_back(rows, first), shape.factors(signs, first));
        let mut elements = [[<F::Raw as bytemuck::Zeroable>::zeroed(); WIDTH]; ROWS];
        for place in 0..WIDTH {
            let x = hadamard(column(&from, place));
            for row in 0..ROWS {
                elements[row][place] = narrow(x[row] * factors[row][place]);
            }
        }
        for row in 0..ROWS {
            let at = (row * shape.row + first) * size;
            out[at..][..WIDTH * size].copy_from_slice(bytemuck::cast_slice(&elements[row]));
        }
    }
    if !is_full {
        dst.copy_from_slice(&padded[..dst.len()]);
    }
}
