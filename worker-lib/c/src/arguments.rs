//! What C passes: settings, arrays and numbers, looked at before they are used.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use half::{bf16, f16};
use switchml_worker::{
    Builder, CallStats, Communicator, DType, Element, Reduction, Tensor, UniqueId,
};

use crate::errors::{Error, Invalid};
use crate::settings::Settings;

/// Type of elements: SWITCHML_F32 and so on.
pub type DataType = u32;
/// IEEE 754 binary32.
pub const SWITCHML_F32: DataType = 0;
/// IEEE 754 binary64.
pub const SWITCHML_F64: DataType = 1;
/// IEEE 754 binary16.
pub const SWITCHML_F16: DataType = 2;
/// The upper half of a binary32.
pub const SWITCHML_BF16: DataType = 3;
/// Two's complement, 32 bits.
pub const SWITCHML_I32: DataType = 4;
/// Two's complement, 64 bits: sums and broadcasts.
pub const SWITCHML_I64: DataType = 5;

/// What an all-reduce does: SWITCHML_SUM and so on.
pub type Operator = u32;
/// The sum; integers wrap around. Infinities and NaN stay where they are in up to 1024 elements of
/// other types than binary64. Otherwise one makes all elements of its packet NaN.
pub const SWITCHML_SUM: Operator = 0;
/// The sum divided by the number of ranks; not of integers.
pub const SWITCHML_AVG: Operator = 1;
/// The largest; a NaN of any rank wins. Not of binary64.
pub const SWITCHML_MAX: Operator = 2;
/// The smallest; a NaN of any rank wins. Not of binary64.
pub const SWITCHML_MIN: Operator = 3;
/// The sum in 16 bits an element: half the packets, less precise. Of binary32, binary16 and the
/// upper half of a binary32.
pub const SWITCHML_SUM16: Operator = 4;
/// The average in 16 bits an element. Of the same types.
pub const SWITCHML_AVG16: Operator = 5;
/// The sum in 8 bits an element: a quarter of the packets, and errors that are zero on average. Of
/// the same types. Among more than 32 ranks it takes 16 bits.
pub const SWITCHML_SUM8: Operator = 6;
/// The average in 8 bits an element. As SWITCHML_SUM8.
pub const SWITCHML_AVG8: Operator = 7;

pub fn operator(op: Operator) -> Result<Reduction, Invalid> {
    match op {
        SWITCHML_SUM => Ok(Reduction::SUM),
        SWITCHML_AVG => Ok(Reduction::AVG),
        SWITCHML_MAX => Ok(Reduction::MAX),
        SWITCHML_MIN => Ok(Reduction::MIN),
        SWITCHML_SUM16 => Ok(Reduction::SUM16),
        SWITCHML_AVG16 => Ok(Reduction::AVG16),
        SWITCHML_SUM8 => Ok(Reduction::SUM8),
        SWITCHML_AVG8 => Ok(Reduction::AVG8),
        _ => Err(Invalid(
            "there is no such operator; SWITCHML_SUM, _AVG, _MAX, _MIN, _SUM16, _AVG16, _SUM8 and \
             _AVG8 are allowed",
        )),
    }
}

fn element_type(dtype: DataType) -> Result<DType, Invalid> {
    match dtype {
        SWITCHML_F32 => Ok(DType::F32),
        SWITCHML_F64 => Ok(DType::F64),
        SWITCHML_F16 => Ok(DType::F16),
        SWITCHML_BF16 => Ok(DType::Bf16),
        SWITCHML_I32 => Ok(DType::I32),
        SWITCHML_I64 => Ok(DType::I64),
        _ => Err(Invalid(
            "there is no such type; SWITCHML_F32, _F64, _F16, _BF16, _I32 and _I64 are allowed",
        )),
    }
}

/// Elements of the caller's.
pub struct Array {
    start: *mut u8,
    count: usize,
    dtype: DType,
}

// SAFETY: the caller leaves the elements alone until the call is over, whichever thread works on
// them.
unsafe impl Send for Array {}
// SAFETY: a shared reference gives no way to the elements.
unsafe impl Sync for Array {}

// SAFETY: `Array::new` has the caller's promise for all of it.
unsafe impl Tensor for Array {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn bytes(&mut self) -> *mut [u8] {
        std::ptr::slice_from_raw_parts_mut(self.start, self.count * self.dtype.size())
    }
}

/// A call on an array's elements, which have a type of Rust's there.
macro_rules! by_type {
    ($array:ident, $elements:ident => $call:expr) => {{
        macro_rules! call {
            ($type:ty) => {{
                let $elements = $array.elements::<$type>();
                $call
            }};
        }
        let answer = match $array.dtype {
            DType::F32 => call!(f32),
            DType::F64 => call!(f64),
            DType::F16 => call!(f16),
            DType::Bf16 => call!(bf16),
            DType::I32 => call!(i32),
            DType::I64 => call!(i64),
        };
        Ok(answer?)
    }};
}

impl Array {
    /// # Safety
    /// `data` points to `count` elements of `dtype` that nobody else touches until the call is
    /// over; it may be anything if there are none.
    pub unsafe fn new(data: *mut c_void, count: usize, dtype: DataType) -> Result<Self, Invalid> {
        let dtype = element_type(dtype)?;
        let start = if count == 0 {
            std::ptr::without_provenance_mut(align_of::<u64>())
        } else {
            data.cast::<u8>()
        };
        if start.is_null() {
            return Err(Invalid("data is NULL; give the address of the elements"));
        }
        if !start.addr().is_multiple_of(dtype.size()) {
            return Err(Invalid(
                "data is not aligned; give an address that is a multiple of the elements' size",
            ));
        }
        if count.checked_mul(dtype.size()).is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(Invalid("count is larger than memory; give the number of elements"));
        }
        Ok(Self { start, count, dtype })
    }

    /// On the caller's own thread, which is quicker for few elements than a request. So are the
    /// other calls.
    pub fn all_reduce(
        self,
        communicator: &Communicator,
        op: Reduction,
    ) -> Result<CallStats, Error> {
        by_type!(self, elements => communicator.all_reduce(elements, op))
    }

    pub fn broadcast(self, communicator: &Communicator, root: u32) -> Result<CallStats, Error> {
        by_type!(self, elements => communicator.broadcast(elements, root))
    }

    pub fn reduce_scatter(
        self,
        communicator: &Communicator,
        op: Reduction,
    ) -> Result<CallStats, Error> {
        by_type!(self, elements => communicator.reduce_scatter(elements, op))
    }

    pub fn all_gather(self, communicator: &Communicator) -> Result<CallStats, Error> {
        by_type!(self, elements => communicator.all_gather(elements))
    }

    fn elements<T: Element>(self) -> &'static mut [T] {
        // SAFETY: `new` has seen to it that they are aligned and T's, and has the caller's promise
        // that they are there for as long as the call.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.count) }
    }
}

/// The settings of a program that may have been built with an earlier header: it has none behind
/// its `size`.
///
/// # Safety
/// `given` is NULL or points to `size` bytes of settings.
pub unsafe fn settings(given: *const Settings) -> Result<Option<Settings>, Invalid> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise, and the size comes first.
    let size = unsafe { given.cast::<usize>().read() };
    if !(size_of::<usize>()..=size_of::<Settings>()).contains(&size) {
        return Err(Invalid(
            "settings.size is not sizeof(switchml_settings); set it to that, and use a library \
             that is not older than the header",
        ));
    }
    let mut settings = MaybeUninit::<Settings>::zeroed();
    // SAFETY: both have so many bytes.
    unsafe {
        let to = settings.as_mut_ptr().cast::<u8>();
        given.cast::<u8>().copy_to_nonoverlapping(to, size);
    }
    // SAFETY: all zeros, and what C has put there, are pointers and numbers.
    Ok(Some(unsafe { settings.assume_init() }))
}

/// The settings, over those of the environment.
///
/// # Safety
/// The strings of `settings` are NULL or end with a zero byte, and `unique_id` is NULL or points to
/// 128 bytes.
pub unsafe fn builder(settings: Option<&Settings>) -> Result<Builder, Error> {
    let mut builder = Communicator::builder().env()?;
    let Some(settings) = settings else { return Ok(builder) };
    // SAFETY: the caller's promise.
    if let Some(id) = unsafe { settings.unique_id.cast::<[u8; 128]>().as_ref() } {
        builder = builder.unique_id(UniqueId::from_bytes(*id)?);
    }
    let mut given = switchml_worker::Settings::default();
    for (name, value) in settings.given() {
        // SAFETY: the caller's promise.
        let value = unsafe { value.read() };
        let wrong = |(given, allowed)| switchml_worker::Error::Setting { name, given, allowed };
        value.map_err(wrong)?.map(|value| given.put(name, value));
    }
    // Rank 0 is one, too.
    given.rank = given.world_size.map(|_| settings.rank);
    Ok(builder.with(given))
}
