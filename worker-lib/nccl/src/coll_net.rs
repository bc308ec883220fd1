//! The functions that NCCL calls for collectives.
//!
//! Of each host one rank of each group takes part: the others hand their parts to it within the
//! host. NCCL makes a group's calls in the same order on all ranks, each from the thread of one
//! proxy, and tests each until it is done. Pointers are NCCL's, as in `net`.

use crate::abi::coll_net::{CollNet, Properties};
use crate::abi::{Code, HANDLE_BYTES, HOST_MEMORY, INVALID_ARGUMENT, Logger};
use crate::devices::{self, MAX_CONNECTIONS, check_memory, device};
use crate::elements::{self, Elements};
use crate::group::{self, Group, Request};
use crate::log::{Failure, guarded};
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

/// NCCL's table, by the name that it looks for.
#[unsafe(export_name = "ncclCollNetPlugin_v7")]
pub static PLUGIN: CollNet = CollNet {
    name: c"switchml".as_ptr(),
    init,
    devices,
    get_properties,
    listen,
    connect,
    reduce_support,
    reg_mr,
    reg_mr_dma_buf: None,
    dereg_mr,
    iallreduce,
    iflush,
    test,
    close_coll,
    close_listen,
};

/// The port that NCCL gets: there is none, because all ranks meet at the aggregator, but null would
/// mean that it was not opened.
static NO_PORT: u8 = 0;
/// The registration that NCCL gets for memory. With null, NCCL would not tell when it takes the
/// memory back.
static REGISTERED: u8 = 0;

unsafe extern "C" fn init(logger: Option<Logger>) -> Code {
    guarded(|| devices::init(logger))
}

unsafe extern "C" fn devices(count: *mut c_int) -> Code {
    guarded(|| {
        // SAFETY: NCCL's place for the result.
        unsafe { *count = devices::count() };
        Ok(())
    })
}

unsafe extern "C" fn get_properties(number: c_int, properties: *mut Properties) -> Code {
    guarded(|| {
        let device = device(number)?;
        let pci_path = device.pci_path.as_ref().map_or(null(), |path| path.as_ptr());
        let result = Properties {
            name: device.name.as_ptr().cast_mut(),
            pci_path: pci_path.cast_mut(),
            guid: u64::from(number.unsigned_abs()),
            ptr_support: HOST_MEMORY,
            speed: device.speed,
            port: 0,
            latency: 0.0,
            max_comms: MAX_CONNECTIONS,
            max_recvs: 1,
            device_type: 0,
            device_version: 0,
        };
        // SAFETY: NCCL's place for the result.
        unsafe { *properties = result };
        Ok(())
    })
}

unsafe extern "C" fn listen(
    number: c_int,
    handle: *mut c_void,
    listener: *mut *mut c_void,
) -> Code {
    guarded(|| {
        device(number)?;
        // SAFETY: a handle of NCCL's has this size, and any bytes are valid.
        group::write_handle(unsafe { &mut *handle.cast::<[u8; HANDLE_BYTES]>() });
        // SAFETY: NCCL's place for the result.
        unsafe { *listener = (&raw const NO_PORT).cast_mut().cast() };
        Ok(())
    })
}

unsafe extern "C" fn connect(
    handles: *mut *mut c_void,
    ranks: c_int,
    rank: c_int,
    _: *mut c_void,
    group: *mut *mut c_void,
) -> Code {
    guarded(|| {
        // SAFETY: NCCL's place for the result.
        unsafe { *group = null_mut() };
        let number = |given: c_int| {
            u32::try_from(given).map_err(|_| {
                Failure::new(
                    INVALID_ARGUMENT,
                    format!("rank {rank} of {ranks} is not possible; give both as 0 or more"),
                )
            })
        };
        let (rank, ranks) = (number(rank)?, number(ranks)?);
        // SAFETY: handles of all ranks, of this size each, and any bytes are valid.
        let first = unsafe { &*(*handles).cast::<[u8; HANDLE_BYTES]>() };
        let joined = Group::join(first, rank, ranks)?;
        // SAFETY: NCCL's place for the result.
        unsafe { *group = Box::into_raw(Box::new(joined)).cast() };
        Ok(())
    })
}

unsafe extern "C" fn reduce_support(dtype: c_int, op: c_int, supported: *mut c_int) -> Code {
    guarded(|| {
        // SAFETY: NCCL's place for the result.
        unsafe { *supported = elements::reduction(dtype, op).is_some().into() };
        Ok(())
    })
}

unsafe extern "C" fn reg_mr(
    _: *mut c_void,
    _: *mut c_void,
    _: c_int,
    kind: c_int,
    registration: *mut *mut c_void,
) -> Code {
    guarded(|| {
        check_memory(kind)?;
        // SAFETY: NCCL's place for the result.
        unsafe { *registration = (&raw const REGISTERED).cast_mut().cast() };
        Ok(())
    })
}

/// NCCL frees the memory next, also if it has given calls up that use it.
unsafe extern "C" fn dereg_mr(group: *mut c_void, _: *mut c_void) -> Code {
    guarded(|| {
        // SAFETY: from `connect`.
        unsafe { &*group.cast::<Group>() }.take_back_memory();
        Ok(())
    })
}

unsafe extern "C" fn iallreduce(
    group: *mut c_void,
    from: *mut c_void,
    to: *mut c_void,
    count: c_int,
    dtype: c_int,
    op: c_int,
    _: *mut c_void,
    _: *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    guarded(|| {
        let (dtype, op) = elements::reduction(dtype, op).ok_or_else(|| {
            let why = format!("reduction {op} of type {dtype} (NCCL's numbers) is not supported");
            Failure::new(INVALID_ARGUMENT, why)
        })?;
        // SAFETY: NCCL lends both until the request is done, or the memory deregistered.
        let elements = unsafe { Elements::copied(from.cast(), to.cast(), count, dtype) }?;
        // SAFETY: from `connect`.
        let begun = unsafe { &*group.cast::<Group>() }.all_reduce(elements, op)?;
        // SAFETY: NCCL's place for the result.
        unsafe { *request = Box::into_raw(Box::new(begun)).cast() };
        Ok(())
    })
}

unsafe extern "C" fn iflush(
    _: *mut c_void,
    _: *mut c_void,
    _: c_int,
    _: *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    guarded(|| {
        // SAFETY: NCCL's place for the result.
        unsafe { *request = null_mut() };
        Ok(())
    })
}

unsafe extern "C" fn test(request: *mut c_void, done: *mut c_int, bytes: *mut c_int) -> Code {
    guarded(|| {
        // SAFETY: NCCL's place for the result.
        unsafe { *done = 0 };
        // SAFETY: from `iallreduce`; NCCL asks no more once it is done.
        let Some(sum) = unsafe { &mut *request.cast::<Request>() }.test()? else { return Ok(()) };
        // SAFETY: from `iallreduce`, and this is the last look at it.
        drop(unsafe { Box::from_raw(request.cast::<Request>()) });
        // SAFETY: NCCL's place for the result.
        unsafe { *done = 1 };
        if !bytes.is_null() {
            // SAFETY: NCCL's place for the result.
            unsafe { *bytes = c_int::try_from(sum).unwrap_or(c_int::MAX) };
        }
        Ok(())
    })
}

unsafe extern "C" fn close_coll(group: *mut c_void) -> Code {
    guarded(|| {
        // SAFETY: from `connect`, and NCCL forgets it.
        unsafe { Box::from_raw(group.cast::<Group>()) }.leave();
        Ok(())
    })
}

unsafe extern "C" fn close_listen(_: *mut c_void) -> Code {
    guarded(|| Ok(()))
}
