//! From a type at run time to a format at compile time.

/// An expression in which a name stands for the format of f32, f16 or bf16, by a `DType`, where
/// there are no other types.
macro_rules! by_float {
    ($dtype:expr, $format:ident => $call:expr) => {
        match $dtype {
            $crate::numerics::DType::F32 => {
                type $format = $crate::numerics::format::F32;
                $call
            }
            $crate::numerics::DType::F16 => {
                type $format = $crate::numerics::format::F16;
                $call
            }
            _ => {
                type $format = $crate::numerics::format::Bf16;
                $call
            }
        }
    };
}
pub(super) use by_float;
