//! Integers of 64 bits in three lanes an element, for sums modulo 2^64 (rule 21.1).

use super::bytes::elements;

/// Lanes of an element.
pub(super) const LANES: usize = 3;

/// Bits of a digit: a lane's bits minus the bits by which a sum over 1024 ranks is longer.
const DIGIT_BITS: u32 = 22;

/// An element's lanes: its digits, the highest first, without a sign.
#[inline(always)]
pub(super) fn encode(src: &[u8], payload: &mut [u8]) -> u32 {
    let mut sum = 0u32;
    let used = src.len() / size_of::<u64>() * LANES * 4;
    let (front, padding) = payload.split_at_mut(used);
    for (bytes, x) in front.as_chunks_mut::<{ 4 * LANES }>().0.iter_mut().zip(elements::<u64>(src))
    {
        let digit = |place: u32| (x >> (place * DIGIT_BITS)) as u32 & ((1 << DIGIT_BITS) - 1);
        let lanes = [digit(2), digit(1), digit(0)];
        for (bytes, lane) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(lanes) {
            *bytes = lane.to_be_bytes();
            sum = sum.wrapping_add(lane);
        }
    }
    padding.fill(0);
    sum
}

/// The sum of digits times their weights, modulo 2^64.
#[inline(always)]
pub(super) fn decode(payload: &[u8], dst: &mut [u8]) {
    for (bytes, lanes) in
        dst.as_chunks_mut::<8>().0.iter_mut().zip(payload.as_chunks::<{ 4 * LANES }>().0)
    {
        let lanes = lanes.as_chunks::<4>().0.iter().map(|lane| u32::from_be_bytes(*lane));
        let sum = lanes.fold(0u64, |sum, lane| (sum << DIGIT_BITS).wrapping_add(lane.into()));
        *bytes = sum.to_ne_bytes();
    }
}
