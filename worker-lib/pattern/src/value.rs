//! Element types as the benchmark needs them: exact conversions, and the errors that a result may
//! have.

use half::{bf16, f16};
use switchml_worker_core::Element;

/// An element type whose results can be checked.
pub trait Value: Element + Default {
    /// The type's name in nccl-tests' tables.
    const NCCL_NAME: &'static str;
    /// Whether it is a floating-point type.
    const FLOAT: bool;
    /// Every integer of magnitude below 2^BITS, divided by any power of two up to 2^(BITS+7), is a
    /// value of the type; and so are sums of 1024 of them in f64.
    const BITS: u32;
    /// A unit in the last place at 1, as a power of two. For integers 0.
    const UNIT: i32;
    /// Smallest exponent of a normal number.
    const SMALLEST: i32;

    /// k / 2^shift.
    fn exactly(k: i64, shift: u32) -> Self;
    /// The value as f64, exactly.
    fn to_f64(self) -> f64;
    /// k / 2^shift, for a k that is a sum: unchanged for floats, wrapped for integers.
    fn of_sum(k: i64, shift: u32) -> f64;
    /// Half a unit in the last place of a value: the largest error of rounding to the type.
    fn half_unit(value: f64) -> f64 {
        // The exponent's bits alone are the power of two below the value.
        let power = f64::from_bits(value.to_bits() & f64::INFINITY.to_bits());
        power.max(2f64.powi(Self::SMALLEST)) * 2f64.powi(Self::UNIT - 1)
    }
}

/// k / 2^shift for |k| < 2^53 and a shift below 1023.
fn scaled(k: i64, shift: u32) -> f64 {
    k as f64 * f64::from_bits((1023 - u64::from(shift)) << 52)
}

macro_rules! float {
    (
        $type:ty, $name:literal, $bits:literal, $unit:literal, $smallest:literal,
        $from:expr, $to:expr
    ) => {
        impl Value for $type {
            const NCCL_NAME: &'static str = $name;
            const FLOAT: bool = true;
            const BITS: u32 = $bits;
            const UNIT: i32 = $unit;
            const SMALLEST: i32 = $smallest;

            fn exactly(k: i64, shift: u32) -> Self {
                $from(scaled(k, shift))
            }
            fn to_f64(self) -> f64 {
                $to(self)
            }
            fn of_sum(k: i64, shift: u32) -> f64 {
                scaled(k, shift)
            }
        }
    };
}

float!(f32, "float", 24, -23, -126, |x| x as f32, f64::from);
// 43 bits, so that the sum of 1024 fits 53.
float!(f64, "double", 43, -52, -1022, |x| x, |x| x);
float!(f16, "half", 11, -10, -14, f16::from_f64, f64::from);
float!(bf16, "bfloat16", 8, -7, -126, bf16::from_f64, f64::from);

macro_rules! integer {
    ($type:ty, $name:literal, $bits:literal) => {
        impl Value for $type {
            const NCCL_NAME: &'static str = $name;
            const FLOAT: bool = false;
            const BITS: u32 = $bits;
            const UNIT: i32 = 0;
            const SMALLEST: i32 = 0;

            fn exactly(k: i64, _shift: u32) -> Self {
                k as Self
            }
            fn to_f64(self) -> f64 {
                self as f64
            }
            fn of_sum(k: i64, _shift: u32) -> f64 {
                (k as Self) as f64
            }
        }
    };
}

integer!(i32, "int32", 31);
// 43 bits, as f64 has.
integer!(i64, "int64", 43);
