//! Floats in three lanes an element, for small sums: enough bits that tensors of very different
//! magnitudes lose none.

use super::bytes::elements;
use super::fixed::{Fixed, nearest, rounded, within};
use super::format::{F32, Format, OneLane, power_of_two};

/// Lanes of an element.
pub(super) const LANES: usize = 3;

impl Fixed {
    /// Binary places of a three-lane integer: 94 - E - 3L. Exponents that no f32 has (from a
    /// foreign packet) are replaced by the nearest.
    #[inline(always)]
    fn triple_places(self, exponent: i32) -> i32 {
        94 - exponent.clamp(F32::MIN_EXPONENT, F32::BIAS) - 3 * self.growth
    }

    /// Rule 18.4: whether elements may lose bits in three lanes, as the last place of one with the
    /// exponent `least` is less than 2^-places of the chunk's exponent `largest`.
    pub(super) fn is_too_wide<F: Format>(self, largest: i32, least: i32) -> bool {
        // Subnormal numbers have the last place of the smallest normal one.
        let last_place = least.max(1 - F::BIAS) - F::MANTISSA_BITS as i32;
        last_place < largest.saturating_add(3 * self.growth - 94)
    }

    /// Bits of a digit: a lane's bits minus the bits that a sum over all ranks needs.
    #[inline(always)]
    fn digit_bits(self) -> i32 {
        32 - self.growth
    }
}

/// Rules 19.1 and 19.2, three lanes per element: round(x * 2^places), ties to even, as three digits
/// of 32 - L bits, the first one signed.
#[inline(always)]
pub(super) fn encode<F: OneLane>(
    fixed: Fixed,
    src: &[u8],
    exponent: i32,
    payload: &mut [u8],
) -> u32 {
    let scale = power_of_two(fixed.triple_places(exponent));
    let bits = fixed.digit_bits();
    let (digit, below) = (power_of_two(bits), power_of_two(-bits));
    let mask = u32::MAX >> fixed.growth;
    // An element within its exponent stays below this; one that exceeds a wrong prediction must not
    // leave the range of `nearest`.
    let limit = power_of_two(95 - 3 * fixed.growth) * (1.0 - f64::EPSILON / 2.0);
    let mut sum = 0u32;
    let used = src.len() / size_of::<F::Raw>() * LANES * 4;
    let (front, padding) = payload.split_at_mut(used);
    for (bytes, raw) in
        front.as_chunks_mut::<{ 4 * LANES }>().0.iter_mut().zip(elements::<F::Raw>(src))
    {
        // All of this is exact except the last rounding: 24 bits times powers of two, minus
        // multiples of them.
        let scaled = within(limit, F::widen(raw) * scale);
        let first = rounded(scaled * below * below);
        let rest = scaled - first * digit * digit;
        let second = rounded(rest * below);
        let third = nearest(rest - second * digit);
        // The second and the third digit may be negative: borrow from the digit above.
        let second = nearest(second) + (third >> bits);
        let first = nearest(first) + (second >> bits);
        let lanes = [first as u32, second as u32 & mask, third as u32 & mask];
        for (bytes, lane) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(lanes) {
            *bytes = lane.to_be_bytes();
            sum = sum.wrapping_add(lane);
        }
    }
    padding.fill(0);
    sum
}

/// Rule 19.5: sum * 2^-places / divisor, an exact number, rounded once to the element's format.
#[inline(always)]
pub(super) fn decode<F: OneLane>(fixed: Fixed, payload: &[u8], exponent: i32, dst: &mut [u8]) {
    let (digit, divisor) = (power_of_two(fixed.digit_bits()), f64::from(fixed.divisor));
    let scale = power_of_two(-fixed.triple_places(exponent));
    // Not an iterator: closures of this length are not inlined, and then not compiled for the
    // vector unit.
    for (bytes, lanes) in
        dst.chunks_exact_mut(size_of::<F::Raw>()).zip(payload.as_chunks::<{ 4 * LANES }>().0)
    {
        let [a, b, c] = *lanes.as_chunks::<4>().0 else { continue };
        let sum = added(i32::from_be_bytes(a), u32::from_be_bytes(b), u32::from_be_bytes(c), digit);
        bytes.copy_from_slice(bytemuck::bytes_of(&F::narrow(divided(sum, divisor) * scale)));
    }
}

/// The integer that the lanes of a sum encode, rounded to odd.
#[inline(always)]
fn added(a: i32, b: u32, c: u32, digit: f64) -> f64 {
    let (upper, rest) = exact_sum(f64::from(a) * digit * digit, f64::from(b) * digit);
    // `rest` is a multiple of `digit`, and below 2^43: together with the lowest lane it is exact.
    let (sum, rest) = exact_sum(upper, rest + f64::from(c));
    to_odd(sum, rest)
}

/// `dividend` / `divisor`, rounded to odd, where that matters: for a divisor of up to 11 bits.
#[inline(always)]
fn divided(dividend: f64, divisor: f64) -> f64 {
    let quotient = dividend / divisor;
    // In two parts whose products with the divisor are exact if the divisor has 8 bits at most. If
    // it has more, a product of more than 53 bits is rounded. Then the quotient has more than 42
    // bits, so it is on no boundary of a narrower format, and nothing hangs on its last bit.
    let front = f64::from_bits(quotient.to_bits() & !0xFF);
    let remainder = dividend - front * divisor - (quotient - front) * divisor;
    to_odd(quotient, remainder)
}

/// The nearest f64 to `a` + `b`, and its error (Knuth's TwoSum).
#[inline(always)]
fn exact_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let of_b = sum - a;
    (sum, (a - (sum - of_b)) + (b - of_b))
}

/// The sum of `nearest` and `rest`, which is too small to change `nearest`, rounded to odd: towards
/// zero, with the last bit set if it is not exact. The result is no tie, and on no boundary, of any
/// narrower format, so it rounds to that format as the exact sum does. (Boldo, Melquiond: "When
/// double rounding is odd", 2005.)
#[inline(always)]
fn to_odd(nearest: f64, rest: f64) -> f64 {
    let is_too_far = (rest < 0.0 && nearest > 0.0) || (rest > 0.0 && nearest < 0.0);
    let truncated = nearest.to_bits() - u64::from(is_too_far);
    f64::from_bits(truncated | u64::from(rest != 0.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::divided;

    /// The f32 nearest to a quotient, by integers: 50 bits of it, and whether anything is behind.
    fn nearest_quotient(dividend: u64, divisor: u64) -> f32 {
        let bits = |number: u64| 64 - number.leading_zeros() as i32;
        let shift = 50 + bits(divisor) - bits(dividend);
        let (dividend, divisor) = (u128::from(dividend), u128::from(divisor));
        let (up, down) = (dividend << shift.max(0), divisor << (-shift).max(0));
        let odd = (up / down) as u64 | u64::from(up % down != 0);
        (odd as f64 * 2f64.powi(-shift)) as f32
    }

    proptest! {
        /// For as many ranks as there may be, also beside where f32 rounds the other way.
        #[test]
        fn quotients_are_rounded_once(
            any in 1u64..1 << 53,
            upper in 1u64 << 23..1 << 24,
            beside in -2i64..=2,
            divisor in 1u64..=1024,
        ) {
            let tie = (2 * upper + 1) * divisor;
            for dividend in [any, tie.saturating_add_signed(beside)] {
                let found = divided(dividend as f64, divisor as f64) as f32;
                prop_assert_eq!(found, nearest_quotient(dividend, divisor));
            }
        }
    }
}
