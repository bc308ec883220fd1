//! Floats as integers: f32, f16 and bf16 in one lane, f64 in two. `triple` has floats in three
//! lanes, `packed` floats in half a lane.

use super::bytes::{elements, fill, read_lanes, write_lanes};
use super::format::{F32, F64, Format, OneLane, power_of_two};

/// How a job of N ranks turns floats into integers whose sum over N ranks cannot overflow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fixed {
    /// N.
    pub(super) ranks: u32,
    /// L = ceil(log2 N): the bits that a sum of N integers grows by.
    pub(super) growth: i32,
    /// The divisor of the sum: 1, or N for an average.
    pub(super) divisor: u32,
}

impl Fixed {
    pub(super) fn new(ranks: usize, average: bool) -> Self {
        Self {
            ranks: ranks as u32,
            growth: ranks.next_power_of_two().ilog2() as i32,
            divisor: if average { ranks as u32 } else { 1 },
        }
    }

    /// Binary places of a one-lane integer: 30 - E - L. Exponents that no f32 has (a foreign
    /// packet's) are bent to the nearest.
    #[inline(always)]
    pub(super) fn places(self, exponent: i32) -> i32 {
        30 - exponent.clamp(F32::MIN_EXPONENT, F32::BIAS) - self.growth
    }

    /// Binary places of a two-lane integer: 62 - E - 2L.
    #[inline(always)]
    fn wide_places(self, exponent: i32) -> i32 {
        62 - exponent.clamp(F64::MIN_EXPONENT, F64::BIAS) - 2 * self.growth
    }
}

/// Rule 19.1, one lane per element: round(x * 2^places), ties to even, at most 2^(31-L) - 1 in
/// magnitude.
#[inline(always)]
pub(super) fn encode<F: OneLane>(
    fixed: Fixed,
    src: &[u8],
    exponent: i32,
    payload: &mut [u8],
) -> u32 {
    // The product is exact: 24 bits times a power of two within f64's range.
    let scale = power_of_two(fixed.places(exponent));
    let limit = power_of_two(31 - fixed.growth) - 1.0;
    let used = src.len() / size_of::<F::Raw>();
    let lanes =
        elements::<F::Raw>(src).map(|raw| nearest(within(limit, F::widen(raw) * scale)) as u32);
    write_lanes(payload, used, lanes)
}

/// `x` or the nearest of plus and minus `limit`; minus for NaN, which no chunk with a true exponent
/// holds.
#[inline(always)]
pub(super) fn within(limit: f64, x: f64) -> f64 {
    // Not `clamp`: it would let NaN through.
    let x = if x > -limit { x } else { -limit };
    if x < limit { x } else { limit }
}

/// Adding this to |x| < 2^51 makes the processor's own rounding (nearest, ties to even) drop all
/// binary places and leave the integer in the sum's last bits. Unlike a rounding cast, this
/// compiles to plain instructions of every vector unit.
const SHIFT: f64 = 1.5 * power_of_two(52);

/// The nearest integer, ties to even, of |x| < 2^51.
#[inline(always)]
pub(super) fn nearest(x: f64) -> i64 {
    (x + SHIFT).to_bits() as i64 - SHIFT.to_bits() as i64
}

/// The nearest integer, ties to even, as an f64.
#[inline(always)]
pub(super) fn rounded(x: f64) -> f64 {
    (x + SHIFT) - SHIFT
}

/// Rules 19.3 and 29.3: sum * 2^-places / divisor, rounded once to the element's format.
#[inline(always)]
pub(super) fn decode<F: OneLane>(fixed: Fixed, payload: &[u8], exponent: i32, dst: &mut [u8]) {
    let factor = power_of_two(-fixed.places(exponent)) / f64::from(fixed.divisor);
    fill(dst, read_lanes(payload).map(|lane| F::narrow(f64::from(lane as i32) * factor)));
}

/// [`decode`] to f32. If dividing and multiplying are exact, the sum is rounded only when it
/// becomes an f32.
#[inline(always)]
pub(super) fn decode_f32(fixed: Fixed, payload: &[u8], exponent: i32, dst: &mut [u8]) {
    let factor = power_of_two(-fixed.places(exponent)) / f64::from(fixed.divisor);
    // The factor is a power of two with which no sum of at least 1 in magnitude becomes subnormal.
    // A sum that overflows would do so anyway.
    let is_exact = factor.to_bits() << 12 == 0
        && factor >= f64::from(f32::MIN_POSITIVE)
        && factor <= power_of_two(127);
    if is_exact {
        let factor = factor as f32;
        fill(dst, read_lanes(payload).map(|lane| (lane as i32 as f32 * factor).to_bits()));
    } else {
        decode::<F32>(fixed, payload, exponent, dst);
    }
}

/// Rule 29.2, two lanes per element: v = round(x * 2^places), at most 2^(63-2L) - 1 in
/// magnitude, as hi * 2^(32-L) + lo, hi first. hi is signed and at least -2^(31-L), lo is unsigned
/// and below 2^(32-L), so neither lane's sum over N <= 2^L ranks overflows.
#[inline(always)]
pub(super) fn encode_wide(fixed: Fixed, src: &[u8], exponent: i32, payload: &mut [u8]) -> u32 {
    // Exact, or too small to count.
    let [scale, rest] = halves(fixed.wide_places(exponent));
    // The largest f64 that is not above 2^(63-2L) - 1.
    let limit = (power_of_two(63 - 2 * fixed.growth) * (1.0 - f64::EPSILON / 2.0)).floor();
    let low_bits = 32 - fixed.growth;
    let (to_high, to_low) = (power_of_two(-low_bits), power_of_two(low_bits));
    let mut sum = 0u32;
    let (front, padding) = payload.split_at_mut(src.len());
    for (bytes, x) in front.as_chunks_mut::<8>().0.iter_mut().zip(elements::<f64>(src)) {
        let scaled = within(limit, x * scale * rest);
        // `scaled` has too many bits for one rounding by SHIFT: take the upper ones off first. The
        // difference is exact.
        let upper = rounded(scaled * to_high);
        // `upper` may have been rounded up to 2^63; the rest brings the sum back into range.
        let v = (nearest(upper) << low_bits).wrapping_add(nearest(scaled - upper * to_low));
        let high = (v as u64 >> low_bits) as u32;
        let low = v as u32 & (u32::MAX >> fixed.growth);
        *bytes = ((u64::from(high) << 32) | u64::from(low)).to_be_bytes();
        sum = sum.wrapping_add(high).wrapping_add(low);
    }
    padding.fill(0);
    sum
}

/// Rule 19.4: (hi * 2^(32-L) + lo) rounded to f64, divided by the divisor, times 2^-places. That
/// last product is exact for a sum, also for a subnormal one, whose addends are all multiples of
/// the smallest f64.
#[inline(always)]
pub(super) fn decode_wide(fixed: Fixed, payload: &[u8], exponent: i32, dst: &mut [u8]) {
    let [scale, rest] = halves(-fixed.wide_places(exponent));
    let low_bits = 32 - fixed.growth;
    let values = payload.as_chunks::<8>().0.iter().map(|bytes| {
        let pair = u64::from_be_bytes(*bytes);
        let high = i64::from((pair >> 32) as i32);
        let sum = (high << low_bits).wrapping_add(i64::from(pair as u32));
        sum as f64 / f64::from(fixed.divisor) * scale * rest
    });
    fill(dst, values);
}

/// 2^`exponent` as a product of two numbers, for exponents beyond f64's own range.
#[inline(always)]
fn halves(exponent: i32) -> [f64; 2] {
    [power_of_two(exponent / 2), power_of_two(exponent - exponent / 2)]
}
