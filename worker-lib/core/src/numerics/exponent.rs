//! The exponent of a chunk, on which all ranks must agree before its floats can be summed as
//! integers.

/// Exponent of a chunk whose elements are all zero: below every other, so MAX over ranks ignores
/// it.
pub const ZERO: i32 = i32::MIN;
/// Exponent of a chunk with an infinity or a NaN: above every other, so MAX over ranks keeps it.
pub const NON_FINITE: i32 = i32::MAX;

/// How a chunk is sent, once all ranks know the exponents of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The chunk is never sent: its result is known to all ranks, zero or NaN.
    Skipped,
    /// The chunk is sent, scaled with its exponent.
    Scaled,
    /// The chunk's elements are sent in more lanes, see [`Codec::wide`](super::Codec::wide).
    Wide,
}

/// Whether this exponent is a marker, which scales nothing: the chunk is skipped, or wide.
pub const fn is_marker(exponent: i32) -> bool {
    exponent == ZERO || exponent == NON_FINITE
}
