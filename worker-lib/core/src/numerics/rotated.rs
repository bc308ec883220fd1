//! Chunks in 8 bits, of each float type. They have separate functions for the vector units: their
//! large arrays would cost every other chunk some nanoseconds.

use std::cell::RefCell;

use super::DType;
use super::by_float::by_float;
use super::dithered::{self, Dithered};
use super::rotation::Room;
use super::vectorised::vectorised;

/// How such a chunk is made, and its elements' type.
pub(super) type Rotated<'a> = (&'a Dithered, DType);

/// See [`super::Codec::exponent`]; for a packet of so many lanes.
#[inline(never)]
pub(super) fn exponent_of(by: Rotated<'_>, src: &[u8], lanes: usize) -> i32 {
    with_room(|room| exponent(by, src, lanes, room))
}

/// See [`super::Codec::encode`].
#[inline(never)]
pub(super) fn encode_of(by: Rotated<'_>, src: &[u8], exponent: i32, payload: &mut [u8]) -> u32 {
    with_room(|room| encode(by, src, exponent, payload, room))
}

/// See [`super::Codec::decode`].
#[inline(never)]
pub(super) fn decode_of(by: Rotated<'_>, payload: &[u8], exponent: i32, dst: &mut [u8]) {
    with_room(|room| decode(by, payload, exponent, dst, room));
}

/// See [`super::Codec::residual`]; for a packet of so many lanes.
#[inline(never)]
pub(super) fn residual_of(
    by: Rotated<'_>,
    src: &[u8],
    exponent: i32,
    lanes: usize,
    dst: &mut [u8],
) {
    with_room(|room| residual(by, src, exponent, lanes, dst, room));
}

/// Gives room to rotate a chunk in: kept, as clearing it costs as much as rotating.
fn with_room<T>(work: impl FnOnce(&mut Room) -> T) -> T {
    thread_local! {
        static ROOM: RefCell<Room> = const { RefCell::new(Room::NONE) };
    }
    ROOM.with_borrow_mut(work)
}

vectorised! {
    fn exponent(by: Rotated<'_>, src: &[u8], lanes: usize, room: &mut Room) -> i32 = exponent_with;
    fn encode(
        by: Rotated<'_>, src: &[u8], exponent: i32, payload: &mut [u8], room: &mut Room
    ) -> u32 = encode_with;
    fn decode(
        by: Rotated<'_>, payload: &[u8], exponent: i32, dst: &mut [u8], room: &mut Room
    ) = decode_with;
    fn residual(
        by: Rotated<'_>, src: &[u8], exponent: i32, lanes: usize, dst: &mut [u8], room: &mut Room
    ) = residual_with;
}

#[inline(always)]
pub(super) fn exponent_with(by: Rotated<'_>, src: &[u8], lanes: usize, room: &mut Room) -> i32 {
    let (by, dtype) = by;
    by_float!(dtype, F => dithered::exponent::<F>(*by, src, lanes, room))
}

#[inline(always)]
pub(super) fn encode_with(
    by: Rotated<'_>,
    src: &[u8],
    exponent: i32,
    payload: &mut [u8],
    room: &mut Room,
) -> u32 {
    let (by, dtype) = by;
    by_float!(dtype, F => dithered::encode::<F>(*by, src, exponent, payload, room))
}

#[inline(always)]
pub(super) fn decode_with(
    by: Rotated<'_>,
    payload: &[u8],
    exponent: i32,
    dst: &mut [u8],
    room: &mut Room,
) {
    let (by, dtype) = by;
    by_float!(dtype, F => dithered::decode::<F>(*by, payload, exponent, dst, room))
}

#[inline(always)]
fn residual_with(
    by: Rotated<'_>,
    src: &[u8],
    exponent: i32,
    lanes: usize,
    dst: &mut [u8],
    room: &mut Room,
) {
    let (by, dtype) = by;
    by_float!(dtype, F => dithered::residual::<F>(*by, src, exponent, lanes, dst, room))
}
