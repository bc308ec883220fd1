//! Floats in a quarter of a lane: rotated (see `rotation`), then rounded with a dither that the
//! decoder knows.
//!
//! Each rank adds a random part of a step before it rounds, and the sum of these parts is
//! subtracted from the result: that makes the rounding error independent of the element, zero on
//! average, and of half the variance of stochastic rounding (Roberts, "Picture coding using
//! pseudo-random noise", 1962). The parts of the N ranks are 1/N apart. So one number determines
//! their sum, and errors of ranks with similar elements cancel (Suresh et al., "Correlated
//! quantization for distributed mean estimation and optimization", ICML 2022).

use super::bytes::fill;
use super::exponent::is_marker;
use super::fixed::Fixed;
use super::format::{F32, Format, OneLane, power_of_two};
use super::random::{self, Source};
use super::rotation::{
    Elements, ROWS, Room, WIDTH, add_far, add_near, flipped, hadamard, largest_near, store, vectors,
};

/// Rule 26.9: most ranks for which a field leaves each rank enough levels.
pub(super) const MOST_RANKS: usize = 32;
/// Bits of a field.
const WIDTH_BITS: u32 = 8;
/// Number of steps per octave in the scale of a chunk, as a number of bits. Coarser steps waste
/// levels: quarters of an octave made the squared errors of normal elements 1.13 times as large.
const FINER: i32 = 4;
/// Lanes of a full packet of 1500 bytes. These chunks have separate code: with constant bounds it
/// is twice as fast.
const FULL: usize = 352;

/// How a job of N ranks turns the floats of a chunk into fields of 8 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dithered {
    fixed: Fixed,
    source: Source,
    /// The value of zero in the sum of all ranks, in units of 2^-16 of a step, if rank 0's dither
    /// is 0.
    middle: i32,
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
        let octave = (exponent >> FINER).clamp(F32::MIN_EXPONENT, F32::BIAS + ROWS.ilog2() as i32);
        let steps = 1 << FINER;
        let limit = 1.0 + f64::from((exponent & (steps - 1)) + 1) / f64::from(steps);
        Self { octave, limit }
    }
}

impl Dithered {
    pub(super) fn new(fixed: Fixed) -> Self {
        let by = Self { fixed, source: Source::default(), middle: 0 };
        // Half a step of each rank compensates the rounding.
        let of_rank = |rank| (by.half() + by.shift(rank)) as i32 - (1 << 15);
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

    /// Half of these steps, in units of 2^-16 of a step.
    #[inline(always)]
    fn half(self) -> u32 {
        self.steps() << 15
    }

    /// The dither of a rank minus that of rank 0, in units of 2^-16 of a step.
    #[inline(always)]
    fn shift(self, rank: u32) -> u32 {
        (rank << 16) / self.fixed.ranks
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

/// Reads a chunk of `lanes` lanes, times 2^-`power`, with random signs, and adds up rows that are
/// an eighth of the chunk or more apart. Returns the exponent of its largest element.
#[inline(always)]
fn rotate_far<F: OneLane>(
    src: &[u8],
    power: i32,
    lanes: usize,
    (elements, padded, signs): (&mut Elements, &mut [u8], &[u32]),
) -> i32 {
    let (size, eighth) = (size_of::<F::Raw>(), lanes / 2);
    let padded = &mut padded[..4 * lanes * size];
    let src = if src.len() < padded.len() {
        padded[..src.len()].copy_from_slice(src);
        padded[src.len()..].fill(0);
        &*padded
    } else {
        &src[..4 * lanes * size]
    };
    let scale = power_of_two(-power) as f32;
    let mut largest = [<F::Raw as bytemuck::Zeroable>::zeroed(); WIDTH];
    for first in (0..eighth).step_by(WIDTH) {
        let mut raw = [src; 8];
        for (i, raw) in raw.iter_mut().enumerate() {
            *raw = &src[(i * eighth + first) * size..][..WIDTH * size];
        }
        let signs = vectors::<_, 2>(signs, first, eighth);
        let mut sums = [[0f32; WIDTH]; 8];
        for place in 0..WIDTH {
            let mut x = [0f32; 8];
            let mut largest_here = largest[place];
            for i in 0..8 {
                let raw = bytemuck::pod_read_unaligned(&raw[i][place * size..][..size]);
                let magnitude = F::magnitude(raw);
                largest_here = if magnitude > largest_here { magnitude } else { largest_here };
                x[i] = flipped(F::widen(raw) as f32 * scale, signs[i % 2][place], i / 2);
            }
            largest[place] = largest_here;
            x = hadamard(x);
            for i in 0..8 {
                sums[i][place] = x[i];
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            store(elements, i * eighth + first, sums);
        }
    }
    F::exponent(largest.into_iter().fold(largest[0], Ord::max))
}

/// This rank's exponent of a chunk: in sixteenths of an octave, of the largest rotated element.
#[inline(always)]
pub(super) fn exponent<F: OneLane>(by: Dithered, src: &[u8], lanes: usize, room: &mut Room) -> i32 {
    if lanes == FULL {
        exponent_in::<F>(by, src, FULL, room)
    } else {
        exponent_in::<F>(by, src, lanes, room)
    }
}

#[inline(always)]
fn exponent_in<F: OneLane>(by: Dithered, src: &[u8], lanes: usize, room: &mut Room) -> i32 {
    let (elements, padded, signs) = room.arrays(by.source.signs).parts();
    let own = rotate_far::<F>(src, 0, lanes, (elements, padded, signs));
    if is_marker(own) {
        return own;
    }
    let power = divided_by(own);
    if power != 0 {
        rotate_far::<F>(src, power, lanes, (elements, padded, signs));
    }
    let largest = largest_near(elements, lanes);
    let sixteenths = (largest >> (F32::MANTISSA_BITS - FINER as u32)) as i32;
    sixteenths - (F32::BIAS << FINER) + (power << FINER)
}

/// How a rank's rotated elements become fields, in units of 2^-16 of a step.
#[derive(Clone, Copy)]
struct Rounding {
    /// Units in 1.
    scale: f32,
    /// Half the steps of a field: the value of zero, and of the largest element.
    middle: u32,
    /// See [`Dithered::shift`].
    shift: u32,
}

impl Rounding {
    /// The rounding of elements that were divided by 2^`power`.
    #[inline(always)]
    fn new(by: Dithered, scale: &Scale, power: i32) -> Self {
        let middle = by.half();
        // The second factor is exact.
        let factor = power_of_two(power - scale.octave) as f32;
        let scale = (f64::from(middle) / scale.limit) as f32 * factor;
        Self { scale, middle, shift: by.shift(by.source.rank) }
    }

    /// This rank's dither, from the lower 16 of some random bits.
    #[inline(always)]
    fn dither(self, random: u32) -> u32 {
        random.wrapping_add(self.shift) & 0xFFFF
    }

    /// The field of a rotated element, with 16 random bits.
    #[inline(always)]
    fn field(self, x: f32, random: u32) -> u32 {
        /// Adding this to |x| <= 2^22 rounds it to an integer, in the last bits.
        const SHIFT: f32 = 12_582_912.0;
        let limit = self.middle as f32;
        let x = x * self.scale;
        // Not `clamp`: it would let NaN through.
        let x = if x > -limit { x } else { -limit };
        let x = if x < limit { x } else { limit };
        let place = (x + SHIFT).to_bits().wrapping_sub(SHIFT.to_bits()).wrapping_add(self.middle);
        place.wrapping_add(self.dither(random)) >> 16
    }

    /// A rotated element minus the value of its field.
    #[inline(always)]
    fn error(self, x: f32, random: u32) -> f32 {
        let place = (self.field(x, random) << 16) as i32 - self.dither(random) as i32;
        x - (place - self.middle as i32 + (1 << 15)) as f32 / self.scale
    }
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
    let scale = Scale::new(exponent);
    let power = divided_by(scale.octave);
    let (elements, padded, signs) = room.arrays(by.source.signs).parts();
    rotate_far::<F>(src, power, lanes, (elements, padded, signs));
    add_near(elements, lanes);
    let rounding = Rounding::new(by, &scale, power);
    let seed = by.source.dither;
    let payload = &mut payload.as_chunks_mut::<4>().0[..lanes];
    let mut sums = [0u32; WIDTH];
    for first in (0..lanes).step_by(WIDTH) {
        let fields = vectors::<_, 4>(&*elements, first, lanes);
        let mut words = [[0; 4]; WIDTH];
        for place in 0..WIDTH {
            let random = random::quarters(seed, (first + place) as u32);
            let mut word = 0;
            for i in 0..4 {
                word |= rounding.field(fields[i][place], random[i]) << (WIDTH_BITS * i as u32);
            }
            words[place] = word.to_be_bytes();
            sums[place] = sums[place].wrapping_add(word);
        }
        store(payload, first, &words);
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
    let (elements, _, signs) = room.arrays(by.source.signs).parts();
    unpack_far(by, payload, elements);
    add_near(elements, lanes);
    let Scale { octave, limit } = Scale::new(exponent);
    let unit = f64::from(by.steps()) * f64::from(by.fixed.divisor) * (ROWS << 15) as f64;
    write::<F>(elements, signs, lanes, ((limit / unit) as f32, octave), dst);
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
    let scale = Scale::new(exponent);
    let power = divided_by(scale.octave);
    let rounding = Rounding::new(by, &scale, power);
    let (elements, padded, signs) = room.arrays(by.source.signs).parts();
    rotate_far::<F>(src, power, lanes, (elements, padded, signs));
    add_near(elements, lanes);
    for lane in 0..lanes {
        let random = random::quarters(by.source.dither, lane as u32);
        for (field, random) in random.into_iter().enumerate() {
            let x = &mut elements[field * lanes + lane];
            *x = rounding.error(*x, random);
        }
    }
    add_far(elements, lanes);
    add_near(elements, lanes);
    write::<F>(elements, signs, lanes, (1.0 / ROWS as f32, power), dst);
}

/// Writes the elements that rotating twice has made, with their signs, times a factor and a power
/// of two.
#[inline(always)]
fn write<F: OneLane>(
    elements: &Elements,
    signs: &[u32],
    lanes: usize,
    (factor, power): (f32, i32),
    dst: &mut [u8],
) {
    let fields = elements[..4 * lanes].chunks_exact(lanes);
    for (field, (from, dst)) in fields.zip(dst.chunks_mut(lanes * size_of::<F::Raw>())).enumerate()
    {
        let elements = from.iter().zip(signs).map(|(x, signs)| flipped(*x, *signs, field));
        // Sums are whole numbers times a factor of at least 2^-36. So their products with 2^power
        // in f32 are subnormal or infinite only if the result is.
        if (-90..=120).contains(&power) {
            let factor = factor * power_of_two(power) as f32;
            fill(dst, elements.map(|x| F::narrow(f64::from(x * factor))));
        } else {
            let power = power_of_two(power);
            fill(dst, elements.map(|x| F::narrow(f64::from(x * factor) * power)));
        }
    }
}

/// Reads the rotated elements of the sum, in units of 2^-16 of a step, and adds up rows that are an
/// eighth of the chunk or more apart.
#[inline(always)]
fn unpack_far(by: Dithered, payload: &[u8], elements: &mut Elements) {
    let payload = payload.as_chunks::<4>().0;
    let (ranks, eighth) = (by.fixed.ranks, payload.len() / 2);
    for first in (0..eighth).step_by(WIDTH) {
        let lanes = vectors::<_, 2>(payload, first, eighth);
        let mut sums = [[0f32; WIDTH]; 8];
        for place in 0..WIDTH {
            let mut x = [0f32; 8];
            for half in 0..2 {
                let index = half * eighth + first + place;
                let random = random::quarters(by.source.dither, index as u32);
                let lane = u32::from_be_bytes(lanes[half][place]);
                for field in 0..4 {
                    let steps = (lane >> (WIDTH_BITS * field as u32)) & 0xFF;
                    let dither = random[field].wrapping_mul(ranks) & 0xFFFF;
                    // The value is at most 2^24 in magnitude, so it is exact.
                    x[2 * field + half] = ((steps << 16) as i32 - dither as i32 - by.middle) as f32;
                }
            }
            x = hadamard(x);
            for i in 0..8 {
                sums[i][place] = x[i];
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            store(elements, i * eighth + first, sums);
        }
    }
}
