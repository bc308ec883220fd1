//! Encodings without a scale: the order map of MAX and MIN, 32-bit integers, and bytes.

use super::bytes::{elements, fill, read_lanes, write_lanes};
use super::format::OneLane;

/// MIN is MAX over inverted integers: !a < !b exactly when a > b.
#[inline(always)]
fn invert_if<const MIN: bool>(lane: i32) -> i32 {
    if MIN { !lane } else { lane }
}

/// Rules 21.2 and 21.3, one lane per float: its place in the order of floats, inverted for MIN; NaN
/// above all either way.
#[inline(always)]
pub(super) fn encode_ordered<F: OneLane, const MIN: bool>(src: &[u8], payload: &mut [u8]) -> u32 {
    let used = src.len() / size_of::<F::Raw>();
    let lanes = elements::<F::Raw>(src).map(|raw| {
        let place = F::order(raw);
        // NaN is not inverted: it must win the MAX that a MIN becomes.
        (if place == i32::MAX { place } else { invert_if::<MIN>(place) }) as u32
    });
    write_lanes(payload, used, lanes)
}

/// The inverse of [`encode_ordered`] (rule 21.4).
#[inline(always)]
pub(super) fn decode_ordered<F: OneLane, const MIN: bool>(payload: &[u8], dst: &mut [u8]) {
    let values = read_lanes(payload).map(|lane| {
        let lane = lane as i32;
        F::at(if lane == i32::MAX { lane } else { invert_if::<MIN>(lane) })
    });
    fill(dst, values);
}

/// One lane per integer, inverted for MIN (rule 21.1).
#[inline(always)]
pub(super) fn encode_integers<const MIN: bool>(src: &[u8], payload: &mut [u8]) -> u32 {
    write_lanes(payload, src.len() / 4, elements::<i32>(src).map(|x| invert_if::<MIN>(x) as u32))
}

/// The inverse of [`encode_integers`].
#[inline(always)]
pub(super) fn decode_integers<const MIN: bool>(payload: &[u8], dst: &mut [u8]) {
    fill(dst, read_lanes(payload).map(|lane| invert_if::<MIN>(lane as i32)));
}

/// The bytes as they are, zeros behind them (rule 21.5).
#[inline(always)]
pub(super) fn encode_bytes(src: &[u8], payload: &mut [u8]) -> u32 {
    let (front, padding) = payload.split_at_mut(src.len());
    front.copy_from_slice(src);
    padding.fill(0);
    lane_sum(payload)
}

/// The inverse of [`encode_bytes`].
#[inline(always)]
pub(super) fn decode_bytes(payload: &[u8], dst: &mut [u8]) {
    dst.copy_from_slice(&payload[..dst.len()]);
}

/// The wrapping sum of a payload's lanes.
#[inline(always)]
pub(super) fn lane_sum(payload: &[u8]) -> u32 {
    read_lanes(payload).fold(0, u32::wrapping_add)
}
