//! Bit layouts of the float types, and exact conversion between them and f64.

use bytemuck::Pod;

use super::exponent::{NON_FINITE, ZERO};

/// A binary float format: 1 sign bit, an exponent field, `MANTISSA_BITS` stored bits of mantissa.
pub(super) trait Format {
    /// An unsigned integer of the format's width.
    type Raw: Pod + Ord + Into<u64>;
    /// Stored bits of the mantissa (without the implicit one).
    const MANTISSA_BITS: u32;
    /// What the exponent field of 1.0 holds; also the exponent of the largest finite value.
    const BIAS: i32;
    /// Exponent of the smallest subnormal number.
    const MIN_EXPONENT: i32 = 1 - Self::BIAS - Self::MANTISSA_BITS as i32;
    /// The canonical quiet NaN.
    const NAN: Self::Raw;

    /// The bits without the sign.
    fn magnitude(raw: Self::Raw) -> Self::Raw;

    /// E with 2^E <= x < 2^(E+1), where x is the number of that magnitude; a marker for 0, infinities and NaN.
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

/// A float format that takes one lane per element: every number is exact in f64, with room for a sum.
pub(super) trait OneLane: Format {
    /// The number, exactly. Infinities and NaN give some number (such chunks are never encoded).
    fn widen(raw: Self::Raw) -> f64;

    /// `value` rounded once to the nearest number of the format, ties to even, subnormals included; infinite beyond the
    /// largest. `value` is not NaN.
    fn narrow(value: f64) -> Self::Raw;

    /// The number's place in the order -inf < … < -0 < +0 < … < +inf; `i32::MAX` for every NaN.
    fn order(raw: Self::Raw) -> i32;

    /// The number at a place in that order; the canonical NaN for `i32::MAX`.
    fn at(place: i32) -> Self::Raw;
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
    ($format:ident, $mantissa:literal, $bias:literal, $nan:literal, $widen:path) => {
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
                narrow16::<$mantissa, $bias>(value)
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
        }
    };
}
sixteen_bits!(F16, 10, 15, 0x7E00, widen_f16);
sixteen_bits!(Bf16, 7, 127, 0x7FC0, widen_bf16);

/// A bf16 is the upper half of an f32.
#[inline(always)]
fn widen_bf16(raw: u16) -> f64 {
    F32::widen(u32::from(raw) << 16)
}

/// Free of branches and of checks for processor features, unlike the `half` crate's: loops over it vectorise.
#[inline(always)]
fn widen_f16(raw: u16) -> f64 {
    const REBIAS: u64 = (1023 - F16::BIAS as u64) << 52;
    let magnitude = u64::from(F16::magnitude(raw));
    let normal = f64::from_bits((magnitude << (52 - F16::MANTISSA_BITS)) + REBIAS);
    let subnormal = f64::from(F16::magnitude(raw)) * power_of_two(F16::MIN_EXPONENT);
    let value = if magnitude >> F16::MANTISSA_BITS == 0 { subnormal } else { normal };
    f64::from_bits(value.to_bits() | (u64::from(raw >> 15) << 63))
}

/// One rounding, whereas `half` (and the processor's own instruction) go through f32 and so round twice.
#[inline(always)]
fn narrow16<const MANTISSA: u32, const BIAS: i32>(value: f64) -> u16 {
    let dropped = 52 - MANTISSA;
    let magnitude = value.abs();
    let bits = magnitude.to_bits();
    // Normal: half a unit less one, and one more if the last kept bit is odd; a carry runs into the exponent as it should.
    let rounded = bits + ((1 << (dropped - 1)) - 1) + ((bits >> dropped) & 1);
    let normal = ((rounded >> dropped) as u32).wrapping_sub(((1023 - BIAS) as u32) << MANTISSA);
    // Subnormal: adding 2^52 units leaves the count of units, rounded, in the low bits.
    let units = power_of_two(52 + 1 - BIAS - MANTISSA as i32);
    let subnormal = (magnitude + units).to_bits() as u32;
    let infinity = ((2 * BIAS + 1) as u32) << MANTISSA;
    let number = if magnitude < power_of_two(1 - BIAS) { subnormal } else { normal.min(infinity) };
    number as u16 | ((value.to_bits() >> 48) as u16 & 0x8000)
}

/// 2^`exponent`, for the exponents of normal f64: -1022 to 1023.
#[inline(always)]
pub(super) const fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}
