//! Floats as whole multiples of their format's smallest number, in as many lanes as that takes:
//! sums of elements of any magnitude lose nothing, and infinities and NaN stay where they are.
//!
//! Only a few chunks of small calls need more than three lanes an element, so the code is simple
//! rather than fast.

use super::bytes::elements;
use super::fixed::Fixed;
use super::format::OneLane;

/// The summands of an infinity, and of a negative one, in an element's first lane. A NaN has both.
const INFINITY: u32 = 1 << 16;
const NEGATIVE_INFINITY: u32 = 1;

/// Digits of an element among ranks whose lanes have this room for sums, without the lane in front.
const fn digits<F: OneLane>(fixed: Fixed) -> usize {
    // Bits of the largest number's integer, and the sign.
    let bits = 2 * F::BIAS as u32 + F::MANTISSA_BITS + 1;
    bits.div_ceil(32 - fixed.growth as u32) as usize
}

/// Lanes of an element.
pub(super) const fn lanes<F: OneLane>(fixed: Fixed) -> usize {
    1 + digits::<F>(fixed)
}

/// Rule 19.7: an element's lanes. First what it is if it is not finite, then its integer as digits
/// of 32 - L bits, the highest first and signed.
pub(super) fn encode<F: OneLane>(fixed: Fixed, src: &[u8], payload: &mut [u8]) -> u32 {
    let (size, digit_bits) = (4 * lanes::<F>(fixed), 32 - fixed.growth as u32);
    let mut sum = 0u32;
    payload.fill(0);
    for (lanes, raw) in payload.chunks_exact_mut(size).zip(elements::<F::Raw>(src)) {
        let mut put = |place: usize, lane: u32| {
            lanes[4 * place..][..4].copy_from_slice(&lane.to_be_bytes());
            sum = sum.wrapping_add(lane);
        };
        let Some(integer) = Integer::of::<F>(raw) else {
            put(0, not_finite::<F>(raw));
            continue;
        };
        let digits = digits::<F>(fixed);
        for (place, weight) in (1..=digits).zip((0..digits as u32).rev()) {
            let word = integer.word(weight * digit_bits);
            put(place, if place == 1 { word } else { word & (u32::MAX >> fixed.growth) });
        }
    }
    sum
}

/// Rule 19.8: the sum's integer times the smallest number, divided, rounded once; or what is not
/// finite.
pub(super) fn decode<F: OneLane>(fixed: Fixed, payload: &[u8], dst: &mut [u8]) {
    let (size, digit_bits) = (4 * lanes::<F>(fixed), 32 - fixed.growth as u32);
    for (dst, lanes) in dst.chunks_exact_mut(size_of::<F::Raw>()).zip(payload.chunks_exact(size)) {
        let mut lanes = lanes.as_chunks::<4>().0.iter().map(|lane| u32::from_be_bytes(*lane));
        let (special, highest) = (lanes.next().unwrap_or(0), lanes.next().unwrap_or(0));
        let raw = match (special >= INFINITY, special % INFINITY >= NEGATIVE_INFINITY) {
            (true, true) => F::NAN,
            (true, false) => F::from_bits(infinity::<F>()),
            (false, true) => F::from_bits(infinity::<F>() | sign::<F>()),
            (false, false) => {
                let start = Integer::signed(highest as i32);
                lanes
                    .fold(start, |sum, lane| sum.followed_by(digit_bits, lane))
                    .divided::<F>(fixed.divisor)
            }
        };
        dst.copy_from_slice(bytemuck::bytes_of(&raw));
    }
}

const fn infinity<F: OneLane>() -> u64 {
    ((2 * F::BIAS + 1) as u64) << F::MANTISSA_BITS
}

const fn sign<F: OneLane>() -> u64 {
    1 << (8 * size_of::<F::Raw>() - 1)
}

/// The first lane of an element that is not finite.
fn not_finite<F: OneLane>(raw: F::Raw) -> u32 {
    let (bits, magnitude): (u64, u64) = (raw.into(), F::magnitude(raw).into());
    if magnitude > infinity::<F>() {
        INFINITY + NEGATIVE_INFINITY
    } else if bits & sign::<F>() == 0 {
        INFINITY
    } else {
        NEGATIVE_INFINITY
    }
}

/// A whole number in two's complement, the lowest word first: the 288 bits of a sum of 1024 f32,
/// with room to divide by 1024.
#[derive(Clone, Copy)]
struct Integer([u32; WORDS]);

const WORDS: usize = 11;

impl Integer {
    /// The element as a multiple of the format's smallest number; `None` if it is not finite.
    fn of<F: OneLane>(raw: F::Raw) -> Option<Self> {
        let magnitude: u64 = F::magnitude(raw).into();
        if magnitude >= infinity::<F>() {
            return None;
        }
        let (field, mantissa) =
            (magnitude >> F::MANTISSA_BITS, magnitude & ((1 << F::MANTISSA_BITS) - 1));
        // Subnormal numbers have the places of the smallest normal ones, without the leading bit.
        let places = field.saturating_sub(1) as usize;
        let whole = mantissa | u64::from(field > 0) << F::MANTISSA_BITS;
        let shifted = whole << (places % 32);
        let mut words = [0; WORDS];
        words[places / 32] = shifted as u32;
        words[places / 32 + 1] = (shifted >> 32) as u32;
        let bits: u64 = raw.into();
        Some(if bits & sign::<F>() == 0 { Self(words) } else { Self(words).negated() })
    }

    const fn signed(number: i32) -> Self {
        let mut words = [(number >> 31) as u32; WORDS];
        words[0] = number as u32;
        Self(words)
    }

    /// This number times 2^`bits`, where `bits` is up to 32, plus `digit`.
    fn followed_by(self, bits: u32, digit: u32) -> Self {
        let mut carry = u64::from(digit);
        Self(self.0.map(|word| {
            let product = (u64::from(word) << bits) + carry;
            carry = product >> 32;
            product as u32
        }))
    }

    fn negated(self) -> Self {
        let mut carry = true;
        Self(self.0.map(|word| {
            let (word, overflows) = (!word).overflowing_add(carry.into());
            carry = overflows;
            word
        }))
    }

    const fn is_negative(&self) -> bool {
        (self.0[WORDS - 1] as i32) < 0
    }

    /// The 32 bits from bit `bit` on.
    fn word(&self, bit: u32) -> u32 {
        let place = (bit / 32) as usize;
        let at = |place: usize| u64::from(self.0.get(place).copied().unwrap_or(0));
        ((at(place + 1) << 32 | at(place)) >> (bit % 32)) as u32
    }

    /// Number of bits up to the highest that is set.
    fn length(&self) -> u32 {
        let highest = self.0.iter().rposition(|word| *word > 0);
        highest.map_or(0, |place| 32 * place as u32 + 32 - self.0[place].leading_zeros())
    }

    fn is_zero_below(&self, bit: u32) -> bool {
        let whole = (bit / 32) as usize;
        self.0[..whole].iter().all(|word| *word == 0)
            && (bit.is_multiple_of(32) || self.word(32 * whole as u32) << (32 - bit % 32) == 0)
    }

    /// This multiple of the format's smallest number, divided by `divisor`, rounded once to the
    /// nearest element, ties to even.
    fn divided<F: OneLane>(self, divisor: u32) -> F::Raw {
        let sign = if self.is_negative() { sign::<F>() } else { 0 };
        let magnitude = if self.is_negative() { self.negated() } else { self };
        // Divide with 32 binary places, for rounding, and keep the remainder.
        let (mut quotient, mut remainder) = (magnitude.followed_by(32, 0), 0);
        for word in quotient.0.iter_mut().rev() {
            let dividend = remainder << 32 | u64::from(*word);
            *word = (dividend / u64::from(divisor)) as u32;
            remainder = dividend % u64::from(divisor);
        }
        // Bits that do not fit into a mantissa are dropped.
        let dropped = quotient.length().saturating_sub(F::MANTISSA_BITS + 1).max(32);
        let kept = u64::from(quotient.word(dropped));
        let is_half = quotient.word(dropped - 1) & 1 == 1;
        let is_more = remainder > 0 || !quotient.is_zero_below(dropped - 1);
        let rounded = kept + u64::from(is_half && (is_more || kept & 1 == 1));
        // A carry of the mantissa runs into the exponent, as it should.
        let bits = rounded + (u64::from(dropped - 32) << F::MANTISSA_BITS);
        F::from_bits(sign | bits.min(infinity::<F>()))
    }
}
