//! Chunks in 8 bits, of each float type. They have ways of their own through the vector units: the
//! room that they take would cost every other chunk some nanoseconds.

use std::cell::RefCell;

use super::bytes;
use super::dithered::{self, Dithered};
use super::format::{Bf16, F16, F32, Format};
use super::random::Source;
use super::rotation::Room;
use super::vectorised::vectorised;

/// How such a chunk is made, by its elements' type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rotated {
    F32(Dithered),
    F16(Dithered),
    Bf16(Dithered),
}

impl Rotated {
    /// With the random numbers of a chunk.
    pub(super) fn at(self, source: Source) -> Self {
        match self {
            Self::F32(by) => Self::F32(by.at(source)),
            Self::F16(by) => Self::F16(by.at(source)),
            Self::Bf16(by) => Self::Bf16(by.at(source)),
        }
    }

    /// Bytes of an element.
    pub(super) const fn element(self) -> usize {
        match self {
            Self::F32(_) => 4,
            Self::F16(_) | Self::Bf16(_) => 2,
        }
    }

    /// Makes all elements NaN.
    pub(super) fn fill_nan(self, elements: &mut [u8]) {
        match self {
            Self::F32(_) => bytes::fill(elements, std::iter::repeat(F32::NAN)),
            Self::F16(_) => bytes::fill(elements, std::iter::repeat(F16::NAN)),
            Self::Bf16(_) => bytes::fill(elements, std::iter::repeat(Bf16::NAN)),
        }
    }

    /// See [`super::Codec::exponent`]; for a packet of so many lanes.
    #[inline(never)]
    pub(super) fn exponent(&self, src: &[u8], lanes: usize) -> i32 {
        with_room(|room| exponent(self, src, lanes, room))
    }

    /// See [`super::Codec::encode`].
    #[inline(never)]
    pub(super) fn encode(&self, src: &[u8], exponent: i32, payload: &mut [u8]) -> u32 {
        with_room(|room| encode(self, src, exponent, payload, room))
    }

    /// See [`super::Codec::decode`].
    #[inline(never)]
    pub(super) fn decode(&self, payload: &[u8], exponent: i32, dst: &mut [u8]) {
        with_room(|room| decode(self, payload, exponent, dst, room));
    }

    /// See [`super::Codec::residual`]; for a packet of so many lanes.
    #[inline(never)]
    pub(super) fn residual(&self, src: &[u8], exponent: i32, lanes: usize, dst: &mut [u8]) {
        with_room(|room| residual(self, src, exponent, lanes, dst, room));
    }
}

/// Gives room to rotate a chunk in: kept, as clearing it costs as much as rotating.
fn with_room<T>(work: impl FnOnce(&mut Room) -> T) -> T {
    thread_local! {
        static ROOM: RefCell<Room> = const { RefCell::new(Room::NONE) };
    }
    ROOM.with_borrow_mut(work)
}

vectorised! {
    fn exponent(by: &Rotated, src: &[u8], lanes: usize, room: &mut Room) -> i32 = exponent_with;
    fn encode(
        by: &Rotated, src: &[u8], exponent: i32, payload: &mut [u8], room: &mut Room
    ) -> u32 = encode_with;
    fn decode(
        by: &Rotated, payload: &[u8], exponent: i32, dst: &mut [u8], room: &mut Room
    ) = decode_with;
    fn residual(
        by: &Rotated, src: &[u8], exponent: i32, lanes: usize, dst: &mut [u8], room: &mut Room
    ) = residual_with;
}

#[inline(always)]
pub(super) fn exponent_with(by: &Rotated, src: &[u8], lanes: usize, room: &mut Room) -> i32 {
    match *by {
        Rotated::F32(by) => dithered::exponent::<F32>(by, src, lanes, room),
        Rotated::F16(by) => dithered::exponent::<F16>(by, src, lanes, room),
        Rotated::Bf16(by) => dithered::exponent::<Bf16>(by, src, lanes, room),
    }
}

#[inline(always)]
pub(super) fn encode_with(
    by: &Rotated,
    src: &[u8],
    exponent: i32,
    payload: &mut [u8],
    room: &mut Room,
) -> u32 {
    match *by {
        Rotated::F32(by) => dithered::encode::<F32>(by, src, exponent, payload, room),
        Rotated::F16(by) => dithered::encode::<F16>(by, src, exponent, payload, room),
        Rotated::Bf16(by) => dithered::encode::<Bf16>(by, src, exponent, payload, room),
    }
}

#[inline(always)]
pub(super) fn decode_with(
    by: &Rotated,
    payload: &[u8],
    exponent: i32,
    dst: &mut [u8],
    room: &mut Room,
) {
    match *by {
        Rotated::F32(by) => dithered::decode::<F32>(by, payload, exponent, dst, room),
        Rotated::F16(by) => dithered::decode::<F16>(by, payload, exponent, dst, room),
        Rotated::Bf16(by) => dithered::decode::<Bf16>(by, payload, exponent, dst, room),
    }
}

#[inline(always)]
fn residual_with(
    by: &Rotated,
    src: &[u8],
    exponent: i32,
    lanes: usize,
    dst: &mut [u8],
    room: &mut Room,
) {
    match *by {
        Rotated::F32(by) => dithered::residual::<F32>(by, src, exponent, lanes, dst, room),
        Rotated::F16(by) => dithered::residual::<F16>(by, src, exponent, lanes, dst, room),
        Rotated::Bf16(by) => dithered::residual::<Bf16>(by, src, exponent, lanes, dst, room),
    }
}
