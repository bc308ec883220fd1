//! The worker library for C. `include/switchml.h` is made of this file, and its comments are
//! written for those who read that.

#![allow(unsafe_code)]

mod arguments;
mod errors;
mod given;
mod settings;

use std::ffi::c_void;
use std::time::Duration;

use arguments::{Array, DataType, Operator};
use errors::{Invalid, Status, answer};
use settings::Settings;
use switchml_worker::{Handle, UniqueId};

/// A rank's membership in a job.
pub struct Communicator(switchml_worker::Communicator);

/// A call in flight.
pub struct Request(Handle<Array>);

/// Bytes of a unique id.
pub const SWITCHML_UNIQUE_ID_BYTES: usize = 128;

/// Makes 128 bytes for one job without an aggregator. The process that calls this is one of its
/// ranks, and hands them to all others, which give them as unique_id.
///
/// # Safety
/// id points to 128 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn switchml_unique_id(id: *mut u8) -> Status {
    answer(|| {
        // SAFETY: the caller's promise.
        let id = unsafe { id.cast::<[u8; SWITCHML_UNIQUE_ID_BYTES]>().as_mut() }
            .ok_or(Invalid("id is NULL; give the address of 128 bytes"))?;
        *id = UniqueId::new()?.to_bytes();
        Ok(())
    })
}

/// Joins a job and waits until all its ranks have. May block, for join_timeout at most.
///
/// settings may be null: all from the environment. *communicator is the caller's until
/// switchml_close, and null if this fails.
///
/// # Safety
/// settings is null or points to `size` bytes of settings whose strings are null or end with a zero
/// byte, and whose unique_id is null or points to that many bytes; communicator points to a
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn switchml_connect(
    settings: *const Settings,
    communicator: *mut *mut Communicator,
) -> Status {
    answer(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { communicator.as_mut() }
            .ok_or(Invalid("communicator is NULL; give the address of a pointer"))?;
        *place = std::ptr::null_mut();
        // SAFETY: the caller's promise.
        let builder = unsafe { arguments::builder(arguments::settings(settings)?.as_ref()) }?;
        *place = Box::into_raw(Box::new(Communicator(builder.connect()?)));
        Ok(())
    })
}

/// This process's rank.
///
/// # Safety
/// communicator is one of switchml_connect that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn switchml_rank(communicator: *const Communicator) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { communicator.as_ref() }.map_or(0, |communicator| communicator.0.rank())
}

/// Number of ranks.
///
/// # Safety
/// As switchml_rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn switchml_world_size(communicator: *const Communicator) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { communicator.as_ref() }.map_or(0, |communicator| communicator.0.world_size())
}

/// Replaces count elements at data by their reduction over all ranks, the same bits on every rank.
/// Blocks until it is here.
///
/// # Safety
/// communicator as in switchml_rank; data points to count elements of dtype, aligned as C aligns
/// them, that nobody else touches until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn switchml_all_reduce(
    communicator: *const Communicator,
    data: *mut c_void,
    count: usize,
    dtype: DataType,
    op: Operator,
) -> Status {
    answer(|| {
        // SAFETY: the caller's promise.
        let (communicator, array) =
            unsafe { (open(communicator)?, Array::new(data, count, dtype)?) };
        array.all_reduce(communicator, arguments::operator(op)?)?;
        Ok(())
    })
}

/// Replaces count elements at data by those of rank root, on every rank. Blocks until they are
/// here.
///
/// # Safety
/// As switchml_all_reduce.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn switchml_broadcast(
    communicator: *const Communicator,
    data: *mut c_void,
    count: usize,
    dtype: DataType,
    root: u32,
) -> Status {
    answer(|| {
        // SAFETY: the caller's promise.
        let (communicator, array) =
            unsafe { (open(communicator)?, Array::new(data, count, dtype)?) };
        array.broadcast(communicator, root)?;
        Ok(())
    })
}

/// Replaces this rank's part of count elements at data by its reduction over all ranks; what the
/// other parts hold then is not specified. Rank r's part of n elements is n * r / world_size up to
/// n * (r + 1) / world_size, both rounded down. Blocks until it is here.
///
/// # Safety
/// As switchml_all_reduce.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn switchml_reduce_scatter(
    communicator: *const Communicator,
    data: *mut c_void,
    count: usize,
    dtype: DataType,
    op: Operator,
) -> Status {
    answer(|| {
        // SAFETY: the caller's promise.
        let (communicator, array) =
            unsafe { (open(communicator)?, Array::new(data, count, dtype)?) };
        array.reduce_scatter(communicator, arguments::operator(op)?)?;
        Ok(())
    })
}

/// Replaces each rank's part of count elements at data, as of switchml_reduce_scatter, by what that
/// rank has there. Blocks until all are here.
///
/// # Safety
/// As switchml_all_reduce.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn switchml_all_gather(
    communicator: *const Communicator,
    data: *mut c_void,
    count: usize,
    dtype: DataType,
) -> Status {
    answer(|| {
        // SAFETY: the caller's promise.
        let (communicator, array) =
            unsafe { (open(communicator)?, Array::new(data, count, dtype)?) };
        array.all_gather(communicator)?;
        Ok(())
    })
}

/// Blocks until every rank has called it.
///
/// # Safety
/// As switchml_rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn switchml_barrier(communicator: *const Communicator) -> Status {
    answer(|| {
        // SAFETY: the caller's promise.
        unsafe { open(communicator) }?.barrier()?;
        Ok(())
    })
}

/// Starts an all-reduce and returns at once. Any number may be in flight; they run in the order of
/// their calls, overlapping. *request is the caller's until switchml_wait, and null if this fails.
///
/// # Safety
/// As switchml_all_reduce, but nobody else touches the elements until switchml_wait has returned;
/// request points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn switchml_all_reduce_start(
    communicator: *const Communicator,
    data: *mut c_void,
    count: usize,
    dtype: DataType,
    op: Operator,
    request: *mut *mut Request,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe {
        start(communicator, data, count, dtype, request, |communicator, array| {
            Ok(communicator.all_reduce_start(array, arguments::operator(op)?)?)
        })
    }
}

/// Starts a broadcast and returns at once, as switchml_all_reduce_start.
///
/// # Safety
/// As switchml_all_reduce_start.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn switchml_broadcast_start(
    communicator: *const Communicator,
    data: *mut c_void,
    count: usize,
    dtype: DataType,
    root: u32,
    request: *mut *mut Request,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe {
        start(communicator, data, count, dtype, request, |communicator, array| {
            Ok(communicator.broadcast_start(array, root)?)
        })
    }
}

/// Starts a reduce-scatter and returns at once, as switchml_all_reduce_start.
///
/// # Safety
/// As switchml_all_reduce_start.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn switchml_reduce_scatter_start(
    communicator: *const Communicator,
    data: *mut c_void,
    count: usize,
    dtype: DataType,
    op: Operator,
    request: *mut *mut Request,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe {
        start(communicator, data, count, dtype, request, |communicator, array| {
            Ok(communicator.reduce_scatter_start(array, arguments::operator(op)?)?)
        })
    }
}

/// Starts an all-gather and returns at once, as switchml_all_reduce_start.
///
/// # Safety
/// As switchml_all_reduce_start.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn switchml_all_gather_start(
    communicator: *const Communicator,
    data: *mut c_void,
    count: usize,
    dtype: DataType,
    request: *mut *mut Request,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe {
        start(communicator, data, count, dtype, request, |communicator, array| {
            Ok(communicator.all_gather_start(array)?)
        })
    }
}

/// Whether switchml_wait would return at once.
///
/// # Safety
/// request is one of a start that was not waited for; no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn switchml_is_done(request: *mut Request) -> bool {
    // SAFETY: the caller's promise.
    unsafe { request.as_mut() }.is_none_or(|request| request.0.is_done())
}

/// Blocks until the call is over, but no longer than so many seconds; whether it is over, so that
/// switchml_wait would return at once. Less than 0, and what is no number, counts as 0.
///
/// # Safety
/// As switchml_is_done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn switchml_wait_for(request: *mut Request, seconds: f64) -> bool {
    let time = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
    // SAFETY: the caller's promise.
    unsafe { request.as_mut() }.is_none_or(|request| request.0.wait_for(time))
}

/// Blocks until the call is over, and ends the request, whether or not the call succeeded.
///
/// # Safety
/// As switchml_is_done; the request is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn switchml_wait(request: *mut Request) -> Status {
    answer(|| {
        let request =
            owned(request, "request is NULL; give one from a function that starts a call")?;
        request.0.wait()?;
        Ok(())
    })
}

/// Waits for the calls in flight, leaves the job, and ends the communicator, whether or not it
/// succeeds. Blocks until then. Requests may be waited for later.
///
/// # Safety
/// As switchml_rank; nobody uses the communicator meanwhile or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn switchml_close(communicator: *mut Communicator) -> Status {
    answer(|| {
        let communicator = owned(communicator, NO_COMMUNICATOR)?;
        communicator.0.close()?;
        Ok(())
    })
}

const NO_COMMUNICATOR: &str = "communicator is NULL; give one from switchml_connect";

/// # Safety
/// `communicator` is NULL or one of `switchml_connect`.
unsafe fn open<'a>(
    communicator: *const Communicator,
) -> Result<&'a switchml_worker::Communicator, Invalid> {
    // SAFETY: the caller's promise.
    unsafe { communicator.as_ref() }
        .map(|communicator| &communicator.0)
        .ok_or(Invalid(NO_COMMUNICATOR))
}

/// Takes back what was given out as a pointer.
fn owned<T>(pointer: *mut T, null: &'static str) -> Result<Box<T>, Invalid> {
    if pointer.is_null() {
        return Err(Invalid(null));
    }
    // SAFETY: it came from `Box::into_raw`, and is not used again, as the callers of both functions
    // promise.
    Ok(unsafe { Box::from_raw(pointer) })
}

/// A call in flight, or why it was not made.
type Started = Result<Handle<Array>, errors::Error>;

/// # Safety
/// As [`switchml_all_reduce_start`].
unsafe fn start(
    communicator: *const Communicator,
    data: *mut c_void,
    count: usize,
    dtype: DataType,
    request: *mut *mut Request,
    call: impl FnOnce(&switchml_worker::Communicator, Array) -> Started,
) -> Status {
    answer(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { request.as_mut() }
            .ok_or(Invalid("request is NULL; give the address of a pointer"))?;
        *place = std::ptr::null_mut();
        // SAFETY: the caller's promise.
        let (communicator, array) =
            unsafe { (open(communicator)?, Array::new(data, count, dtype)?) };
        *place = Box::into_raw(Box::new(Request(call(communicator, array)?)));
        Ok(())
    })
}
