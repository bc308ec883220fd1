//! Floats as exact rational numbers, and correct rounding.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{Signed, Zero};
use switchml_worker_core::numerics::DType;

/// A float format, from IEEE 754 (bfloat16: the same with 8 exponent and 7 mantissa bits).
#[derive(Clone, Copy, Debug)]
pub struct Float {
    pub dtype: DType,
    pub mantissa: u32,
    pub bias: i32,
}

pub const F32: Float = Float { dtype: DType::F32, mantissa: 23, bias: 127 };
pub const F64: Float = Float { dtype: DType::F64, mantissa: 52, bias: 1023 };
pub const F16: Float = Float { dtype: DType::F16, mantissa: 10, bias: 15 };
pub const BF16: Float = Float { dtype: DType::Bf16, mantissa: 7, bias: 127 };
pub const FLOATS: [Float; 4] = [F32, F64, F16, BF16];

impl Float {
    pub fn sign(self) -> u64 {
        1 << (8 * self.dtype.size() - 1)
    }

    pub fn infinity(self) -> u64 {
        ((2 * self.bias + 1) as u64) << self.mantissa
    }

    pub fn is_finite(self, bits: u64) -> bool {
        bits & (self.sign() - 1) < self.infinity()
    }

    pub fn is_nan(self, bits: u64) -> bool {
        bits & (self.sign() - 1) > self.infinity()
    }

    /// The number; for infinity the number that it stands for in rounding, 2^(bias+1).
    pub fn value(self, bits: u64) -> BigRational {
        let magnitude = bits & (self.sign() - 1);
        let field = (magnitude >> self.mantissa) as i32;
        let fraction = magnitude & ((1 << self.mantissa) - 1);
        let whole = if field == 0 { fraction } else { fraction | (1 << self.mantissa) };
        let number = integer(whole as i128) * pow2(field.max(1) - self.bias - self.mantissa as i32);
        if bits & self.sign() != 0 { -number } else { number }
    }

    /// Whether `bits` is `exact` rounded to nearest, ties to even.
    pub fn is_rounded(self, bits: u64, exact: &BigRational) -> bool {
        let magnitude = bits & (self.sign() - 1);
        let even = magnitude.is_multiple_of(2);
        let sign_fits = magnitude == 0 || (bits & self.sign() != 0) == exact.is_negative();
        let between = |a, b| (self.value(a) + self.value(b)) / integer(2);
        let within = |inside: std::cmp::Ordering| inside.is_lt() || (even && inside.is_eq());
        let above = magnitude == 0 || within(between(magnitude - 1, magnitude).cmp(&exact.abs()));
        let below = magnitude == self.infinity()
            || within(exact.abs().cmp(&between(magnitude, magnitude + 1)));
        sign_fits && magnitude <= self.infinity() && above && below
    }

    pub fn to_bytes(self, bits: u64) -> Vec<u8> {
        match self.dtype.size() {
            2 => (bits as u16).to_ne_bytes().to_vec(),
            4 => (bits as u32).to_ne_bytes().to_vec(),
            _ => bits.to_ne_bytes().to_vec(),
        }
    }

    pub fn pack(self, elements: &[u64]) -> Vec<u8> {
        elements.iter().flat_map(|bits| self.to_bytes(*bits)).collect()
    }

    pub fn unpack(self, bytes: &[u8]) -> Vec<u64> {
        let one = |b: &[u8]| match b.len() {
            2 => u16::from_ne_bytes([b[0], b[1]]).into(),
            4 => u32::from_ne_bytes([b[0], b[1], b[2], b[3]]).into(),
            _ => u64::from_ne_bytes(b.try_into().expect("eight bytes")),
        };
        bytes.chunks(self.dtype.size()).map(one).collect()
    }
}

pub fn integer(x: i128) -> BigRational {
    BigRational::from_integer(BigInt::from(x))
}

pub fn pow2(exponent: i32) -> BigRational {
    integer(2).pow(exponent)
}

/// E with 2^E <= |x| < 2^(E+1), by trying; none for zero.
pub fn exponent_of(x: &BigRational) -> Option<i32> {
    if x.is_zero() {
        return None;
    }
    let bits = |n: &BigInt| n.bits() as i32;
    let guess = bits(x.numer()) - bits(x.denom());
    [guess - 1, guess, guess + 1].into_iter().find(|e| pow2(*e) <= x.abs() && x.abs() < pow2(e + 1))
}

/// The nearest integer, ties to even.
pub fn nearest_even(x: &BigRational) -> BigInt {
    let up = (x + BigRational::new(1.into(), 2.into())).floor().to_integer();
    let tie = (x * integer(2)).is_integer() && !x.is_integer();
    if tie && up.bit(0) { up - 1 } else { up }
}
