//! Bit layouts of the float types, and exact conversion between them and f64.

use bytemuck::Pod;

use super::bytes::elements;
use super::exponent::{NON_FINITE, ZERO};

/// A binary float format, with its numbers of rule 29.1: 1 sign bit, an exponent field,
/// `MANTISSA_BITS` stored bits of mantissa.
pub(super) trait Format {
    /// An unsigned integer of the format's width.
    type Raw: Pod + Ord + Into<u64>;
    /// Stored bits of the mantissa (without the implicit one).
    const MANTISSA_BITS: u32;
    /// The exponent field of 1.0; also the exponent of the largest finite value.
    const BIAS: i32;
    /// Exponent of the smallest subnormal number.
    const MIN_EXPONENT: i32 = 1 - Self::BIAS - Self::MANTISSA_BITS as i32;
    /// The canonical quiet NaN.
    const NAN: Self::Raw;

    /// The bits without the sign.
    fn magnitude(raw: Self::Raw) -> Self::Raw;

    /// Rule 18.1: E with 2^E <= x < 2^(E+1), where x is the number of that magnitude; a marker for
    /// 0, infinities and NaN.
    #[inline(always)]
    fn exponent(magnitude: Self::Raw) -> i32 {
        let bits: u64 = magnitude.into();
        let field = (bits >> Self::MANTISSA_BITS) as i32;
        if bits == 0 {
            ZERO
        } else if field == 2 * Self::BIAS + 1 {
            NON_FINITE
        } else if field == 0 {
            // Subnormal: the mantissa counts multiples of the smallest number.
            bits.ilog2() as i32 + Self::MIN_EXPONENT
        } else {
            field - Self::BIAS
        }
    }
}

/// E with 2^E <= max|x| < 2^(E+1) over the elements, or a marker. Magnitudes order like their bits.
#[inline(always)]
pub(super) fn largest_exponent<F: Format>(src: &[u8]) -> i32 {
    let zero: F::Raw = bytemuck::Zeroable::zeroed();
    let largest =
        elements::<F::Raw>(src).map(F::magnitude).fold(zero, |a, b| if b > a { b } else { a });
    F::exponent(largest)
}

/// [`largest_exponent`] for the smallest magnitude that is not zero.
#[inline(always)]
pub(super) fn least_exponent<F: Format>(src: &[u8]) -> i32 {
    let zero: F::Raw = bytemuck::Zeroable::zeroed();
    let magnitudes = elements::<F::Raw>(src).map(F::magnitude).filter(|x| *x > zero);
    F::exponent(magnitudes.min().unwrap_or(zero))
}

/// A float format that takes one lane per element: every number is exact in f64, with room for a
/// sum.
pub(super) trait OneLane: Format {
    /// The number, exactly. Infinities and NaN give some number (such chunks are never encoded).
    fn widen(raw: Self::Raw) -> f64;

    /// Rule 19.6: `value` rounded once to the nearest number of the format, ties to even,
    /// subnormals included; infinite beyond the largest. `value` is not NaN.
    fn narrow(value: f64) -> Self::Raw;

    /// Rule 21.2: the number's place in the order -inf < … < -0 < +0 < … < +inf; `i32::MAX` for
    /// every NaN.
    fn order(raw: Self::Raw) -> i32;

    /// The number at a place in that order; the canonical NaN for `i32::MAX` (rule 21.4).
    fn at(place: i32) -> Self::Raw;

    /// The element with these bits, which must fit the format.
    fn from_bits(bits: u64) -> Self::Raw;
}

pub(super) struct F32;
pub(super) struct F64;
pub(super) struct F16;
pub(super) struct Bf16;

impl Format for F32 {
    type Raw = u32;
    const MANTISSA_BITS: u32 = 23;
    const BIAS: i32 = 127;
    const NAN: u32 = 0x7FC0_0000;

    #[inline(always)]
    fn magnitude(raw: u32) -> u32 {
        raw & 0x7FFF_FFFF
    }
}

impl OneLane for F32 {
    #[inline(always)]
    fn widen(raw: u32) -> f64 {
        f64::from(f32::from_bits(raw))
    }

    #[inline(always)]
    fn narrow(value: f64) -> u32 {
        (value as f32).to_bits()
    }

    #[inline(always)]
    fn order(raw: u32) -> i32 {
        const INFINITY: u32 = 0x7F80_0000;
        let signed = raw as i32;
        // A negative float's magnitude falls as its integer rises: invert all but the sign.
        let place = signed ^ ((signed >> 31) & i32::MAX);
        if Self::magnitude(raw) > INFINITY { i32::MAX } else { place }
    }

    #[inline(always)]
    fn at(place: i32) -> u32 {
        let raw = (place ^ ((place >> 31) & i32::MAX)) as u32;
        if place == i32::MAX { Self::NAN } else { raw }
    }

    #[inline(always)]
    fn from_bits(bits: u64) -> u32 {
        bits as u32
    }
}

impl Format for F64 {
    type Raw = u64;
    const MANTISSA_BITS: u32 = 52;
    const BIAS: i32 = 1023;
    const NAN: u64 = 0x7FF8_0000_0000_0000;

    #[inline(always)]
    fn magnitude(raw: u64) -> u64 {
        raw & (u64::MAX >> 1)
    }
}

macro_rules! sixteen_bits {
    ($format:ident, $mantissa:literal, $bias:literal, $nan:literal, $widen:path, $narrow:path) => {
        impl Format for $format {
            type Raw = u16;
            const MANTISSA_BITS: u32 = $mantissa;
            const BIAS: i32 = $bias;
            const NAN: u16 = $nan;

            #[inline(always)]
            fn magnitude(raw: u16) -> u16 {
                raw & 0x7FFF
            }
        }

        impl OneLane for $format {
            #[inline(always)]
            fn widen(raw: u16) -> f64 {
                $widen(raw)
            }

            #[inline(always)]
            fn narrow(value: f64) -> u16 {
                $narrow(round_to_odd(value))
            }

            #[inline(always)]
            fn order(raw: u16) -> i32 {
                const INFINITY: u16 = (2 * $bias + 1) << $mantissa;
                let signed = i32::from(raw as i16);
                let place = signed ^ ((signed >> 31) & 0x7FFF);
                if Self::magnitude(raw) > INFINITY { i32::MAX } else { place }
            }

            #[inline(always)]
            fn at(place: i32) -> u16 {
                let raw = (place ^ ((place >> 31) & 0x7FFF)) as u16;
                if place == i32::MAX { Self::NAN } else { raw }
            }

            #[inline(always)]
            fn from_bits(bits: u64) -> u16 {
                bits as u16
            }
        }
    };
}
sixteen_bits!(F16, 10, 15, 0x7E00, widen_f16, narrow_f16);
sixteen_bits!(Bf16, 7, 127, 0x7FC0, widen_bf16, narrow_bf16);

/// A bf16 is the upper half of an f32.
#[inline(always)]
fn widen_bf16(raw: u16) -> f64 {
    F32::widen(u32::from(raw) << 16)
}

/// Free of branches and of checks for processor features, unlike the `half` crate's: loops over it
/// vectorise.
#[inline(always)]
fn widen_f16(raw: u16) -> f64 {
    const REBIAS: u32 = (F32::BIAS - F16::BIAS) as u32;
    let magnitude = u32::from(F16::magnitude(raw));
    let normal = f32::from_bits((magnitude << 13) + (REBIAS << 23));
    let subnormal = magnitude as f32 * power_of_two(F16::MIN_EXPONENT) as f32;
    let value = if magnitude < SMALLEST_NORMAL_F16 { subnormal } else { normal };
    F32::widen(value.to_bits() | (u32::from(raw >> 15) << 31))
}

/// The bits of the smallest f16 that is not subnormal.
const SMALLEST_NORMAL_F16: u32 = 1 << F16::MANTISSA_BITS;

/// The f32 next to `value` towards zero, with its last bit set if it is not `value` itself.
///
/// Rounding this to a format with at least two bits less gives the same as rounding `value`,
/// because no tie can appear or vanish. Plain rounding to f32 first, as in the `half` crate and in
/// processors, rounds twice. (Boldo, Melquiond: "When double rounding is odd", 2005.)
#[inline(always)]
fn round_to_odd(value: f64) -> u32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    let truncated = nearest.to_bits() - u32::from(back.abs() > value.abs());
    truncated | u32::from(back != value)
}

/// An f32, given as its bits, to the nearest bf16: half a unit less one, and one more if the last
/// kept bit is odd. A carry runs into the exponent as it should, up to infinity.
#[inline(always)]
fn narrow_bf16(bits: u32) -> u16 {
    ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) as u16
}

/// An f32, given as its bits, to the nearest f16.
#[inline(always)]
fn narrow_f16(bits: u32) -> u16 {
    const REBIAS: u32 = (F32::BIAS - F16::BIAS) as u32;
    const INFINITY: u32 = 0x7C00;
    let magnitude = F32::magnitude(bits);
    // Rounds as for bf16. Below 2^-14 the result is meaningless, and not used.
    let rounded = (magnitude + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
    let normal = rounded.wrapping_sub(REBIAS << F16::MANTISSA_BITS).min(INFINITY);
    // The unit of 0.5 is the smallest f16: the sum's last bits count such units.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits() & 0xFFFF;
    let number = if magnitude >> 13 < (REBIAS << F16::MANTISSA_BITS) + SMALLEST_NORMAL_F16 {
        subnormal
    } else {
        normal
    };
    number as u16 | ((bits >> 16) as u16 & 0x8000)
}

/// 2^`exponent`, for the exponents of normal f64: -1022 to 1023.
#[inline(always)]
pub(super) const fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}
