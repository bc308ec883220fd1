//! Floats in half a lane: fields so wide that no sum over all ranks carries from one into the next.
//! To an aggregator they are lanes of i32 like all others.

use super::bytes::{elements, fill, put_lanes, read_lanes};
use super::fixed::{Fixed, nearest, within};
use super::format::{OneLane, power_of_two};

/// Bits of a field.
const WIDTH: u32 = 16;
/// Most ranks (rule 26.9): with more, each rank's levels of a field would be less than 8 bits.
pub(super) const MOST_RANKS: usize = 128;

impl Fixed {
    /// Binary places of a field's integer: 14 - E - L.
    #[inline(always)]
    fn packed_places(self, exponent: i32) -> i32 {
        self.places(exponent) - WIDTH as i32
    }

    /// The middle of a rank's share of a field, which encodes 0: 2^(15-L) - 1.
    #[inline(always)]
    fn middle(self) -> i32 {
        (1 << (WIDTH as i32 - 1 - self.growth)) - 1
    }
}

/// Two elements per lane, half a chunk from each other, the first in the lower half: round(x *
/// 2^places), ties to even, plus the middle. Missing elements are zeros.
#[inline(always)]
pub(super) fn encode<F: OneLane>(
    fixed: Fixed,
    src: &[u8],
    exponent: i32,
    payload: &mut [u8],
) -> u32 {
    // The product is exact: 24 bits times a power of two within f64's range.
    let scale = power_of_two(fixed.packed_places(exponent));
    let middle = fixed.middle();
    let zero = middle as u32 * 0x1_0001;

    let size = size_of::<F::Raw>();
    let (lower, upper) = src.split_at((payload.len() / 4 * size).min(src.len()));
    let (paired, single) = lower.split_at(upper.len());
    let (pairs, rest) = payload.split_at_mut(upper.len() / size * 4);
    let (singles, empty) = rest.split_at_mut(single.len() / size * 4);

    // Plain loops: closures of this length are not inlined, and so not compiled for the vector
    // unit.
    let mut sum = 0u32;
    let both = elements::<F::Raw>(paired).zip(elements::<F::Raw>(upper));
    for (bytes, (low, high)) in pairs.as_chunks_mut::<4>().0.iter_mut().zip(both) {
        let word = field::<F>(low, scale, middle) | field::<F>(high, scale, middle) << WIDTH;
        *bytes = word.to_be_bytes();
        sum = sum.wrapping_add(word);
    }
    for (bytes, low) in singles.as_chunks_mut::<4>().0.iter_mut().zip(elements::<F::Raw>(single)) {
        let word = field::<F>(low, scale, middle) | (middle as u32) << WIDTH;
        *bytes = word.to_be_bytes();
        sum = sum.wrapping_add(word);
    }
    sum.wrapping_add(put_lanes(empty, std::iter::repeat(zero)))
}

/// An element's field.
#[inline(always)]
fn field<F: OneLane>(raw: F::Raw, scale: f64, middle: i32) -> u32 {
    (nearest(within(f64::from(middle), F::widen(raw) * scale)) as i32 + middle) as u32
}

/// The residuals of a rank's elements after [`encode`]: each minus the value of its field.
#[inline(always)]
pub(super) fn residual<F: OneLane>(fixed: Fixed, src: &[u8], exponent: i32, dst: &mut [u8]) {
    let places = fixed.packed_places(exponent);
    let (scale, step) = (power_of_two(places), power_of_two(-places));
    let middle = f64::from(fixed.middle());
    let residuals = elements::<F::Raw>(src).map(|raw| {
        let x = F::widen(raw);
        F::narrow(x - f64::from(nearest(within(middle, x * scale)) as i32) * step)
    });
    fill(dst, residuals);
}

/// (sum - N * middle) * 2^-places / divisor, rounded once to the element's format.
#[inline(always)]
pub(super) fn decode<F: OneLane>(fixed: Fixed, payload: &[u8], exponent: i32, dst: &mut [u8]) {
    let factor = power_of_two(-fixed.packed_places(exponent)) / f64::from(fixed.divisor);
    let middle = fixed.ranks as i32 * fixed.middle();
    let value = |field: u32| F::narrow(f64::from(field as i32 - middle) * factor);
    let half = (payload.len() / 4 * size_of::<F::Raw>()).min(dst.len());
    let (lower, upper) = dst.split_at_mut(half);
    fill(lower, read_lanes(payload).map(|lane| value(lane & 0xFFFF)));
    fill(upper, read_lanes(payload).map(|lane| value(lane >> WIDTH)));
}
