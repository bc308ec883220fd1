//! The exponent of a chunk: what all ranks must agree on before its floats can be summed as
//! integers.

/// Exponent of a chunk whose elements are all zero: below every other, so MAX over ranks ignores
/// it.
pub const ZERO: i32 = i32::MIN;
/// Exponent of a chunk with an infinity or a NaN: above every other, so MAX over ranks keeps it.
pub const NON_FINITE: i32 = i32::MAX;

/// What becomes of a chunk, once all ranks know the exponents of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is never sent: its result is known to all ranks, zero or NaN.
    Skipped,
    /// It is sent, scaled with its exponent.
    Scaled,
    /// Its elements are sent in more lanes, as [`Codec::wide`](super::Codec::wide) says.
    Wide,
}

/// Whether this exponent says that nothing is to be scaled: the chunk is skipped, or wide.
pub const fn is_marker(exponent: i32) -> bool {
    exponent == ZERO || exponent == NON_FINITE
}
