//! Translates NCCL's types and operators, and holds the elements that NCCL hands over.

use crate::abi::INVALID_ARGUMENT;
use crate::log::Failure;
use std::ffi::c_int;
use switchml_worker::numerics::Codec;
use switchml_worker::{DType, Reduction, Tensor};

/// A number of elements at which a reduction travels as most of NCCL's reductions do.
const MANY: usize = 1 << 20;

/// The library's reduction for one of NCCL's; `None` if there is none.
///
/// NCCL divides averages itself, and calls them sums.
pub fn reduction(dtype: c_int, op: c_int) -> Option<(DType, Reduction)> {
    let op = match op {
        0 => Reduction::SUM,
        2 => Reduction::MAX,
        3 => Reduction::MIN,
        _ => return None,
    };
    let dtype = match dtype {
        2 => DType::I32,
        // Sums wrap around, so that the sign does not matter.
        3 if op == Reduction::SUM => DType::I32,
        4 | 5 => DType::I64,
        6 => DType::F16,
        7 => DType::F32,
        8 => DType::F64,
        9 => DType::Bf16,
        _ => return None,
    };
    Codec::reduction(dtype, op, 2, MANY).is_ok().then_some((dtype, op))
}

/// Elements that belong to NCCL, which does not touch them while a call is open.
pub struct Elements {
    start: *mut u8,
    bytes: usize,
    dtype: DType,
}

// SAFETY: NCCL lends the memory to the call, whichever thread works on it.
unsafe impl Send for Elements {}
// SAFETY: a shared reference gives no access to the elements.
unsafe impl Sync for Elements {}

// SAFETY: the caller of `Elements::copied` promises all of it.
unsafe impl Tensor for Elements {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn bytes(&mut self) -> *mut [u8] {
        std::ptr::slice_from_raw_parts_mut(self.start, self.bytes)
    }
}

impl Elements {
    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// The `count` elements at `to`, with the values of the elements at `from`, which may be the
    /// same address.
    ///
    /// # Safety
    /// Both are `count` initialised elements of `dtype`. Nobody else touches the elements at `to`
    /// until the call is over.
    pub unsafe fn copied(
        from: *const u8,
        to: *mut u8,
        count: c_int,
        dtype: DType,
    ) -> Result<Self, Failure> {
        let wrong = |why: &str| Failure::new(INVALID_ARGUMENT, why);
        let count = usize::try_from(count)
            .map_err(|_| wrong("a negative number of elements; give 0 or more"))?;
        let bytes = count * dtype.size();
        if bytes == 0 {
            let start = std::ptr::without_provenance_mut(align_of::<u64>());
            return Ok(Self { start, bytes, dtype });
        }
        if from.is_null() || to.is_null() || !to.addr().is_multiple_of(dtype.size()) {
            return Err(wrong("elements at a null or misaligned address"));
        }
        if !std::ptr::eq(from, to) {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy(from, to, bytes) };
        }
        Ok(Self { start: to, bytes, dtype })
    }
}

#[cfg(test)]
mod tests {
    use super::reduction;

    /// Rows are NCCL's 12 types from i8 on; columns are sum, product, maximum and minimum.
    #[test]
    fn what_there_is() {
        let has = |dtype, op| u8::from(reduction(dtype, op).is_some());
        let table: Vec<_> = (0..12).map(|dtype| [0, 1, 2, 3].map(|op| has(dtype, op))).collect();
        let (none, sum, exact) = ([0; 4], [1, 0, 0, 0], [1, 0, 1, 1]);
        let expected = [none, none, exact, sum, sum, sum, exact, exact, sum, exact, none, none];
        assert_eq!(table, expected);
        assert!(reduction(7, 4).is_none() && reduction(-1, 0).is_none());
    }
}
