//! Element types, reductions, and the combinations that are refused.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

use super::long;

/// Type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DType {
    /// IEEE 754 binary32.
    F32 = 0,
    /// IEEE 754 binary64.
    F64 = 1,
    /// IEEE 754 binary16.
    F16 = 2,
    /// bfloat16 (the upper half of a binary32).
    Bf16 = 3,
    /// Two's complement 32-bit integer.
    I32 = 4,
    /// Two's complement 64-bit integer.
    I64 = 5,
}

impl DType {
    /// Every element type.
    pub const ALL: [Self; 6] = [Self::F32, Self::F64, Self::F16, Self::Bf16, Self::I32, Self::I64];

    /// Bytes of one element in memory.
    pub const fn size(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// 32-bit lanes that one element takes in a reduction; in a sum or average of up to
    /// [`SMALL_COUNT`](super::SMALL_COUNT) elements, f32, f16 and bf16 take three.
    pub const fn lanes(self) -> usize {
        match self {
            Self::F64 => 2,
            Self::I64 => long::LANES,
            Self::F32 | Self::F16 | Self::Bf16 | Self::I32 => 1,
        }
    }

    /// The short name: `f32`, `f64`, `f16`, `bf16`, `i32`, `i64`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::I64 => "i64",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = NumericsError;

    /// Takes the short names, and the names in nccl-tests and torch (`float`, `half`, `bfloat16`,
    /// `float32`, `int32`, `long`, …).
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "f32" | "float" | "float32" => Ok(Self::F32),
            "f64" | "double" | "float64" => Ok(Self::F64),
            "f16" | "half" | "float16" => Ok(Self::F16),
            "bf16" | "bfloat16" => Ok(Self::Bf16),
            "i32" | "int" | "int32" => Ok(Self::I32),
            "i64" | "long" | "int64" => Ok(Self::I64),
            _ => Err(NumericsError::UnknownDType(name.to_owned())),
        }
    }
}

/// How the ranks' elements are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum: rounded as the module's documentation says for floats, wrapping for integers.
    Sum = 0,
    /// The sum divided by the number of ranks; floats only.
    Avg = 1,
    /// The largest; NaN on any rank wins.
    Max = 2,
    /// The smallest; NaN on any rank wins.
    Min = 3,
}

/// The number of bits of an element that travel, in a sum or an average of f32, f16 or bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// Enough bits for a result as good as a sum in the element's own type.
    #[default]
    Exact,
    /// 16, for half the packets.
    Bits16,
    /// 8, for a quarter of the packets, among up to 32 ranks; 16 among more. For gradients.
    Bits8,
}

/// The result of an all-reduce. A [`ReduceOp`] alone is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reduction {
    /// How elements are combined.
    pub op: ReduceOp,
    /// The precision; [`Precision::Exact`] for [`ReduceOp::Max`] and [`ReduceOp::Min`].
    pub precision: Precision,
}

impl Reduction {
    /// The exact sum.
    pub const SUM: Self = Self::new(ReduceOp::Sum, Precision::Exact);
    /// The exact average.
    pub const AVG: Self = Self::new(ReduceOp::Avg, Precision::Exact);
    /// The largest.
    pub const MAX: Self = Self::new(ReduceOp::Max, Precision::Exact);
    /// The smallest.
    pub const MIN: Self = Self::new(ReduceOp::Min, Precision::Exact);
    /// The sum in 16 bits.
    pub const SUM16: Self = Self::new(ReduceOp::Sum, Precision::Bits16);
    /// The average in 16 bits.
    pub const AVG16: Self = Self::new(ReduceOp::Avg, Precision::Bits16);
    /// The sum in 8 bits.
    pub const SUM8: Self = Self::new(ReduceOp::Sum, Precision::Bits8);
    /// The average in 8 bits.
    pub const AVG8: Self = Self::new(ReduceOp::Avg, Precision::Bits8);
    /// Every reduction that is offered of some type, in the order of the protocol's numbers.
    pub const ALL: [Self; 8] = [
        Self::SUM,
        Self::AVG,
        Self::MAX,
        Self::MIN,
        Self::SUM16,
        Self::AVG16,
        Self::SUM8,
        Self::AVG8,
    ];

    /// An operator with a precision.
    pub const fn new(op: ReduceOp, precision: Precision) -> Self {
        Self { op, precision }
    }

    /// The short name: `sum`, `avg`, `max`, `min`, `sum16`, `avg16`, `sum8`, `avg8`.
    pub const fn name(self) -> &'static str {
        use Precision::{Bits8, Bits16, Exact};
        match (self.op, self.precision) {
            (ReduceOp::Sum, Exact) => "sum",
            (ReduceOp::Avg, Exact) => "avg",
            (ReduceOp::Max, Exact) => "max",
            (ReduceOp::Min, Exact) => "min",
            (ReduceOp::Sum, Bits16) => "sum16",
            (ReduceOp::Avg, Bits16) => "avg16",
            (ReduceOp::Max, Bits16) => "max16",
            (ReduceOp::Min, Bits16) => "min16",
            (ReduceOp::Sum, Bits8) => "sum8",
            (ReduceOp::Avg, Bits8) => "avg8",
            (ReduceOp::Max, Bits8) => "max8",
            (ReduceOp::Min, Bits8) => "min8",
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Reduction::from(*self).name())
    }
}

impl From<ReduceOp> for Reduction {
    fn from(op: ReduceOp) -> Self {
        Self::new(op, Precision::Exact)
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ReduceOp {
    type Err = NumericsError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "sum" => Ok(Self::Sum),
            "avg" => Ok(Self::Avg),
            "max" => Ok(Self::Max),
            "min" => Ok(Self::Min),
            _ => Err(NumericsError::UnknownOp(name.to_owned())),
        }
    }
}

impl FromStr for Precision {
    type Err = NumericsError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "exact" => Ok(Self::Exact),
            "16" => Ok(Self::Bits16),
            "8" => Ok(Self::Bits8),
            _ => Err(NumericsError::UnknownPrecision(name.to_owned())),
        }
    }
}

/// A Rust type that tensors may hold. Sealed: the wire knows these types and no others.
pub trait Element: bytemuck::Pod + Send + Sync + sealed::Sealed {
    /// The type's number in collectives.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}
element!(f32 => F32, f64 => F64, f16 => F16, bf16 => Bf16, i32 => I32, i64 => I64);

/// The reductions and names that the numerics refuse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum NumericsError {
    #[error(
        "{op} of {dtype} is not available; convert to {} to reduce with {op}",
        if *dtype == DType::I64 { "i32" } else { "f32" }
    )]
    NoWideExtremum { op: ReduceOp, dtype: DType },
    #[error("avg of {0} is not available; use sum and divide as you see fit")]
    NoIntegerAverage(DType),
    #[error("{reduction} of {dtype} is not available, only sums and averages of f32, f16 and bf16")]
    NotPacked { reduction: Reduction, dtype: DType },
    #[error(
        "{reduction} among {ranks} ranks is not available, only among up to {max}; use the sum or \
         average without fewer bits", max = super::packed::MOST_RANKS
    )]
    TooManyRanks { reduction: Reduction, ranks: usize },
    #[error("{0} ranks given, 1 to {max} are allowed", max = switchml_protocol::MAX_RANKS)]
    Ranks(usize),
    #[error("unknown element type {0:?}: f32, f64, f16, bf16, i32 and i64 are allowed")]
    UnknownDType(String),
    #[error("unknown operator {0:?}: sum, avg, max and min are allowed")]
    UnknownOp(String),
    #[error("unknown precision {0:?}: exact, 16 and 8 (bits an element) are allowed")]
    UnknownPrecision(String),
}
