//! Floats in a quarter of a lane: rotated (see `rotation`), then rounded with a dither that the
//! decoder knows.
//!
//! Each rank adds a random part of a step before it rounds, and the sum of these parts is taken
//! off the result: that makes the rounding error independent of the element, zero on average, and
//! of half the variance of stochastic rounding (Roberts, "Picture coding using pseudo-random
//! noise", 1962). The parts of the N ranks are 1/N apart, so that their sum takes one number to
//! know, and that errors of ranks with like elements cancel (Suresh et al., "Correlated
//! quantization for distributed mean estimation and optimization", ICML 2022).

use super::bytes::{elements, fill};
use super::exponent::is_skipped;
use super::fixed::Fixed;
use super::format::{F32, Format, OneLane, largest_exponent, power_of_two};
use super::random::{self, Source};
use super::rotation::{Arrays, ROWS, Room, draw_signs, flipped, hadamard};

/// Most ranks whose sums fit a field with enough levels left for each.
pub(super) const MOST_RANKS: usize = 32;
/// Bits of a field.
const WIDTH: u32 = 8;
/// Steps of an octave that the scale of a chunk is told in, as a number of bits.
const FINER: i32 = 2;

/// How a job of N ranks turns the floats of a chunk into fields of 8 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dithered {
    fixed: Fixed,
    source: Source,
}

/// The scale that an exponent of rotated elements stands for.
struct Scale {
    /// E: the octave.
    octave: i32,
    /// What rotated elements are below, in units of 2^E: 1.25, 1.5, 1.75 or 2.
    limit: f64,
}

impl Scale {
    /// Exponents that no f32 has (a foreign packet's) are bent to the nearest.
    #[inline(always)]
    fn new(exponent: i32) -> Self {
        let octave = (exponent >> FINER).clamp(F32::MIN_EXPONENT, F32::BIAS + ROWS.ilog2() as i32);
        let limit = 1.0 + f64::from((exponent & 3) + 1) / 4.0;
        Self { octave, limit }
    }
}

impl Dithered {
    pub(super) fn new(fixed: Fixed) -> Self {
        Self { fixed, source: Source::default() }
    }

    pub(super) fn at(self, source: Source) -> Self {
        Self { source, ..self }
    }

    /// Steps of a rank's share of a field, K = floor(255 / N).
    #[inline(always)]
    fn steps(self) -> u32 {
        255 / self.fixed.ranks
    }

    /// A chunk of so many lanes, rotated: its elements times 2^-E, each rounded to f32.
    #[inline(always)]
    fn rotate<F: OneLane>(self, src: &[u8], octave: i32, lanes: usize, room: &mut Arrays) {
        let Arrays { elements: rotated, signs, .. } = room;
        let signs = &mut signs[..lanes];
        draw_signs(signs, self.source.signs);
        rotated[src.len() / size_of::<F::Raw>()..4 * lanes].fill(0.0);
        let scale = power_of_two(-octave);
        // The same, without f64: the factor is an f32, and the product is rounded once either way.
        let is_plain = octave.abs() <= 126;
        let fields = rotated[..4 * lanes].chunks_exact_mut(lanes);
        for (field, (to, src)) in fields.zip(src.chunks(lanes * size_of::<F::Raw>())).enumerate() {
            let elements = elements::<F::Raw>(src);
            if is_plain {
                for ((to, raw), signs) in to.iter_mut().zip(elements).zip(&*signs) {
                    *to = flipped(F::widen(raw) as f32 * scale as f32, *signs, field);
                }
            } else {
                for ((to, raw), signs) in to.iter_mut().zip(elements).zip(&*signs) {
                    *to = flipped((F::widen(raw) * scale) as f32, *signs, field);
                }
            }
        }
        hadamard(room, lanes);
    }

    /// The inverse of [`Dithered::rotate`]: rotated elements back, each times `factor` / 128.
    #[inline(always)]
    fn rotate_back<F: OneLane>(self, factor: f64, lanes: usize, room: &mut Arrays, dst: &mut [u8]) {
        hadamard(room, lanes);
        let signs = &mut room.signs[..lanes];
        draw_signs(signs, self.source.signs);
        let fields = room.elements[..4 * lanes].chunks_exact(lanes);
        let dst = dst.chunks_mut(lanes * size_of::<F::Raw>());
        for (field, (from, dst)) in fields.zip(dst).enumerate() {
            let elements = from
                .iter()
                .zip(&*signs)
                .map(|(x, signs)| F::narrow(f64::from(flipped(*x, *signs, field)) * factor));
            fill(dst, elements);
        }
    }
}

/// This rank's exponent of a chunk: in quarters of an octave, of the largest rotated element.
#[inline(always)]
pub(super) fn exponent<F: OneLane>(by: Dithered, src: &[u8], lanes: usize, room: &mut Room) -> i32 {
    let own = largest_exponent::<F>(src);
    if is_skipped(own) {
        return own;
    }
    let room = room.arrays();
    by.rotate::<F>(src, own, lanes, room);
    let bits = room.elements[..4 * lanes].iter().map(|x| F32::magnitude(x.to_bits()));
    let largest = bits.fold(0, |a, b| if b > a { b } else { a });
    let quarters = (largest >> (F32::MANTISSA_BITS - FINER as u32)) as i32;
    quarters - (F32::BIAS << FINER) + (own << FINER)
}

/// How a rank's rotated elements become fields.
#[derive(Clone, Copy)]
struct Rounding {
    /// Steps in 2^E.
    scale: f32,
    /// K, the number of steps of a field.
    steps: f32,
    /// What stands for zero, less half a step.
    middle: f32,
    /// N.
    ranks: u32,
    /// This rank's part of the dither is behind that of rank 0, in units of 1 / (65536 N).
    shift: u32,
    /// Such a unit, and N as many as a step has.
    unit: f32,
    all: u32,
}

impl Rounding {
    #[inline(always)]
    fn new(by: Dithered, scale: &Scale) -> Self {
        let (ranks, steps) = (by.fixed.ranks, by.steps() as f32);
        Self {
            scale: (f64::from(steps) / 2.0 / scale.limit) as f32,
            steps,
            middle: steps / 2.0 - 0.5,
            ranks,
            shift: by.source.rank << 16,
            unit: (1.0 / f64::from(ranks << 16)) as f32,
            all: ranks << 16,
        }
    }

    /// This rank's part of the dither, of a step, with 16 random bits.
    #[inline(always)]
    fn dither(self, random: u32) -> f32 {
        let part = random * self.ranks + self.shift;
        part.min(part.wrapping_sub(self.all)) as i32 as f32 * self.unit
    }

    /// A rotated element, less what its field stands for.
    #[inline(always)]
    fn error(self, x: f32, random: u32) -> f32 {
        let field = self.field(x, random) as i32 as f32;
        x - (field - self.middle - self.dither(random)) / self.scale
    }

    /// The field of a rotated element, with 16 random bits.
    #[inline(always)]
    fn field(self, x: f32, random: u32) -> u32 {
        let place = x * self.scale + self.dither(random) + self.middle;
        // Not `clamp`: it would let NaN through.
        let place = if place > 0.0 { place } else { 0.0 };
        let place = if place < self.steps { place } else { self.steps };
        // Rounds to the nearest integer, in the last bits.
        (place + 8_388_608.0).to_bits() & 0xFF
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
    let lanes = payload.len() / 4;
    let scale = Scale::new(exponent);
    let room = room.arrays();
    by.rotate::<F>(src, scale.octave, lanes, room);
    let rounding = Rounding::new(by, &scale);
    let (a, rest) = room.elements.split_at(lanes);
    let (b, rest) = rest.split_at(lanes);
    let (c, rest) = rest.split_at(lanes);
    let d = &rest[..lanes];
    let payload = &mut payload.as_chunks_mut::<4>().0[..lanes];
    let mut sum = 0u32;
    // Not an iterator: all slices have this length, so that the loop vectorises.
    for lane in 0..lanes {
        let lower = random::word(by.source.dither, lane as u32);
        let upper = random::word(by.source.dither, (lanes + lane) as u32);
        let word = rounding.field(a[lane], lower & 0xFFFF)
            | rounding.field(b[lane], lower >> 16) << WIDTH
            | rounding.field(c[lane], upper & 0xFFFF) << (2 * WIDTH)
            | rounding.field(d[lane], upper >> 16) << (3 * WIDTH);
        payload[lane] = word.to_be_bytes();
        sum = sum.wrapping_add(word);
    }
    sum
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
    let lanes = payload.len() / 4;
    let (ranks, steps) = (by.fixed.ranks, by.steps());
    // The middle of the sum, and half a step for the dither's, in units of 1/65536 of a step.
    let middle = ((ranks * steps - 1) << 15) as i32;
    let room = room.arrays();
    for (pair, rotated) in room.elements[..4 * lanes].chunks_exact_mut(2 * lanes).enumerate() {
        let (lower, upper) = rotated.split_at_mut(lanes);
        let fields = lower.iter_mut().zip(upper).zip(payload.as_chunks::<4>().0);
        for (lane, ((lower, upper), bytes)) in fields.enumerate() {
            let fields = u32::from_be_bytes(*bytes) >> (16 * pair);
            let random = random::word(by.source.dither, (pair * lanes + lane) as u32);
            // At most 2^24 in magnitude: exact.
            let dither = ((random & 0xFFFF) * ranks) & 0xFFFF;
            *lower = (((fields & 0xFF) << 16) as i32 - dither as i32 - middle) as f32;
            let dither = ((random >> 16) * ranks) & 0xFFFF;
            *upper = ((((fields >> WIDTH) & 0xFF) << 16) as i32 - dither as i32 - middle) as f32;
        }
    }
    let Scale { octave, limit } = Scale::new(exponent);
    let unit = f64::from(steps) * f64::from(by.fixed.divisor) * (ROWS << 15) as f64;
    by.rotate_back::<F>(power_of_two(octave) * (limit / unit), lanes, room, dst);
}

/// What a rank's elements lose by [`encode`]: each, less what its field stands for once this rank's
/// own dither is off it. These are what the ranks' fields add up to, so nothing is lost but what is
/// here.
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
    let rounding = Rounding::new(by, &scale);
    let room = room.arrays();
    by.rotate::<F>(src, scale.octave, lanes, room);
    for (pair, rotated) in room.elements[..4 * lanes].chunks_exact_mut(2 * lanes).enumerate() {
        let (lower, upper) = rotated.split_at_mut(lanes);
        for (lane, (lower, upper)) in lower.iter_mut().zip(upper).enumerate() {
            let random = random::word(by.source.dither, (pair * lanes + lane) as u32);
            *lower = rounding.error(*lower, random & 0xFFFF);
            *upper = rounding.error(*upper, random >> 16);
        }
    }
    by.rotate_back::<F>(power_of_two(scale.octave) / ROWS as f64, lanes, room, dst);
}
