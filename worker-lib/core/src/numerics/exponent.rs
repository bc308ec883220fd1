//! The exponent of a chunk: what all ranks must agree on before its floats can be summed as
//! integers.

/// Exponent of a chunk whose elements are all zero: below every other, so MAX over ranks ignores
/// it.
pub const ZERO: i32 = i32::MIN;
/// Exponent of a chunk with an infinity or a NaN: above every other, so MAX over ranks keeps it.
pub const NON_FINITE: i32 = i32::MAX;

/// Whether a chunk with this global exponent is never sent: its result is known to all ranks, zero
/// or NaN.
pub const fn is_skipped(exponent: i32) -> bool {
    exponent == ZERO || exponent == NON_FINITE
}
