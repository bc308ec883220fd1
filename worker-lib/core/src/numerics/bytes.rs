//! Tensors and payloads as bytes: any alignment, no `unsafe`.

use bytemuck::Pod;

/// The elements in `src`, in native byte order.
#[inline(always)]
pub(super) fn elements<T: Pod>(src: &[u8]) -> impl Iterator<Item = T> {
    src.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned)
}

/// Writes values into `dst` in native byte order, until either ends.
#[inline(always)]
pub(super) fn fill<T: Pod>(dst: &mut [u8], values: impl Iterator<Item = T>) {
    for (bytes, value) in dst.chunks_exact_mut(size_of::<T>()).zip(values) {
        bytes.copy_from_slice(bytemuck::bytes_of(&value));
    }
}

/// Writes `used` lanes big-endian at the front of `payload` and zeros behind them; returns their
/// wrapping sum.
#[inline(always)]
pub(super) fn write_lanes(
    payload: &mut [u8],
    used: usize,
    lanes: impl Iterator<Item = u32>,
) -> u32 {
    let (front, padding) = payload.split_at_mut(used * 4);
    padding.fill(0);
    put_lanes(front, lanes)
}

/// Writes lanes big-endian, until either ends; returns their wrapping sum.
#[inline(always)]
pub(super) fn put_lanes(payload: &mut [u8], lanes: impl Iterator<Item = u32>) -> u32 {
    let mut sum = 0u32;
    for (bytes, lane) in payload.as_chunks_mut::<4>().0.iter_mut().zip(lanes) {
        *bytes = lane.to_be_bytes();
        sum = sum.wrapping_add(lane);
    }
    sum
}

/// The lanes of a payload.
#[inline(always)]
pub(super) fn read_lanes(payload: &[u8]) -> impl Iterator<Item = u32> {
    payload.as_chunks::<4>().0.iter().map(|bytes| u32::from_be_bytes(*bytes))
}
