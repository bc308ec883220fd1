//! What tensors hold, how they can be reduced, and what cannot be done.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

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
}

impl DType {
    /// Every element type.
    pub const ALL: [Self; 5] = [Self::F32, Self::F64, Self::F16, Self::Bf16, Self::I32];

    /// Bytes of one element in memory.
    pub const fn size(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 => 8,
        }
    }

    /// 32-bit lanes that one element takes in a reduction; in a sum or average of up to
    /// [`SMALL_COUNT`](super::SMALL_COUNT) elements, f32, f16 and bf16 take three.
    pub const fn lanes(self) -> usize {
        match self {
            Self::F64 => 2,
            Self::F32 | Self::F16 | Self::Bf16 | Self::I32 => 1,
        }
    }

    /// The short name: `f32`, `f64`, `f16`, `bf16`, `i32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
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

    /// The short names, and those of nccl-tests and torch (`float`, `half`, `bfloat16`, `float32`,
    /// `int32`, …).
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "f32" | "float" | "float32" => Ok(Self::F32),
            "f64" | "double" | "float64" => Ok(Self::F64),
            "f16" | "half" | "float16" => Ok(Self::F16),
            "bf16" | "bfloat16" => Ok(Self::Bf16),
            "i32" | "int" | "int32" => Ok(Self::I32),
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
    /// The sum in fixed point of 16 bits: half the packets of [`ReduceOp::Sum`], and coarser, as
    /// the module's documentation says; floats but f64.
    Sum16 = 4,
    /// As [`ReduceOp::Sum16`], divided by the number of ranks.
    Avg16 = 5,
}

impl ReduceOp {
    /// Every operator.
    pub const ALL: [Self; 6] =
        [Self::Sum, Self::Avg, Self::Max, Self::Min, Self::Sum16, Self::Avg16];

    /// The short name: `sum`, `avg`, `max`, `min`, `sum16`, `avg16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Avg => "avg",
            Self::Max => "max",
            Self::Min => "min",
            Self::Sum16 => "sum16",
            Self::Avg16 => "avg16",
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ReduceOp {
    type Err = NumericsError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|op| op.name() == name)
            .ok_or_else(|| NumericsError::UnknownOp(name.to_owned()))
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
element!(f32 => F32, f64 => F64, f16 => F16, bf16 => Bf16, i32 => I32);

/// What the numerics refuse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NumericsError {
    /// A 64-bit element spans two lanes, and the larger pair is not the pair of the larger lanes.
    #[error("{0} of f64 is not available, only sum and avg are; convert to f32 to reduce with {0}")]
    NoF64Extremum(ReduceOp),
    /// An integer average loses its remainder; NCCL truncates, torch refuses. So does this library.
    #[error(
        "avg of i32 is not available, only sum, max and min are; use sum and divide as you see fit"
    )]
    NoIntegerAverage,
    /// Fixed point of 16 bits is for floats that are to be compressed: f64 is not, and integers
    /// would not be exact.
    #[error("{op} of {dtype} is not available, only of f32, f16 and bf16")]
    NotPacked {
        /// What was asked for.
        op: ReduceOp,
        /// Of what.
        dtype: DType,
    },
    /// A job has 1 to [`switchml_protocol::MAX_RANKS`] ranks.
    #[error("{0} ranks given, 1 to {max} are allowed", max = switchml_protocol::MAX_RANKS)]
    Ranks(usize),
    /// Not the name of an element type.
    #[error("unknown element type {0:?}: f32, f64, f16, bf16 and i32 are allowed")]
    UnknownDType(String),
    /// Not the name of an operator.
    #[error("unknown operator {0:?}: sum, avg, max, min, sum16 and avg16 are allowed")]
    UnknownOp(String),
}
