//! The functions that NCCL calls for point-to-point messages.
//!
//! Pointers come from NCCL: it gives back each one that it got from here once, and pointers to
//! results are valid.

use crate::abi::net::{Net, Properties};
use crate::abi::{Code, HANDLE_BYTES, HOST_MEMORY, INVALID_ARGUMENT, Logger};
use crate::devices::{self, MAX_CONNECTIONS, check_memory, device};
use crate::link::{Buffer, Direction, Link, Request};
use crate::log::{Failure, guarded};
use crate::meeting::{self, Handle, Port};
use std::ffi::{c_int, c_void};
use std::net::TcpStream;
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, PoisonError};

/// NCCL's table, by the name that it looks for.
#[unsafe(export_name = "ncclNetPlugin_v8")]
pub static PLUGIN: Net = Net {
    name: c"switchml".as_ptr(),
    init,
    devices,
    get_properties,
    listen,
    connect,
    accept,
    reg_mr,
    reg_mr_dma_buf: None,
    dereg_mr,
    isend,
    irecv,
    iflush,
    test,
    close_send: close_link,
    close_recv: close_link,
    close_listen,
    get_device_mr: None,
    irecv_consumed: None,
};

type SharedLink = Arc<Mutex<Link>>;

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
            reg_is_global: 0,
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
        let (port, written) = Port::open(device(number)?.address)?;
        // SAFETY: a handle of NCCL's has this size, and any bytes are valid.
        written.write(unsafe { &mut *handle.cast::<[u8; HANDLE_BYTES]>() });
        // SAFETY: NCCL's place for the result.
        unsafe { *listener = Box::into_raw(Box::new(port)).cast() };
        Ok(())
    })
}

unsafe extern "C" fn connect(
    number: c_int,
    handle: *mut c_void,
    sender: *mut *mut c_void,
    _: *mut *mut c_void,
) -> Code {
    guarded(|| {
        device(number)?;
        // SAFETY: a handle of NCCL's has this size, and any bytes are valid.
        let handle = Handle::read(unsafe { &*handle.cast::<[u8; HANDLE_BYTES]>() })?;
        let link = meeting::connect(&handle)?.map_or(null_mut(), |at| share(at, Direction::Out));
        // SAFETY: NCCL's place for the result.
        unsafe { *sender = link };
        Ok(())
    })
}

unsafe extern "C" fn accept(
    listener: *mut c_void,
    receiver: *mut *mut c_void,
    _: *mut *mut c_void,
) -> Code {
    guarded(|| {
        // SAFETY: from `listen`, and NCCL calls one after the other.
        let port = unsafe { &mut *listener.cast::<Port>() };
        let link = port.accept()?.map_or(null_mut(), |stream| share(stream, Direction::In));
        // SAFETY: NCCL's place for the result.
        unsafe { *receiver = link };
        Ok(())
    })
}

/// A link as NCCL holds it.
fn share(stream: TcpStream, direction: Direction) -> *mut c_void {
    let link: SharedLink = Arc::new(Mutex::new(Link::new(stream, direction)));
    Box::into_raw(Box::new(link)).cast()
}

unsafe extern "C" fn reg_mr(
    _: *mut c_void,
    _: *mut c_void,
    _: usize,
    kind: c_int,
    registration: *mut *mut c_void,
) -> Code {
    guarded(|| {
        check_memory(kind)?;
        // SAFETY: NCCL's place for the result.
        unsafe { *registration = null_mut() };
        Ok(())
    })
}

unsafe extern "C" fn dereg_mr(_: *mut c_void, _: *mut c_void) -> Code {
    guarded(|| Ok(()))
}

/// Opens a message and gives NCCL its request.
///
/// # Safety
///
/// `link` is from `share` and `request` a place for the result.
unsafe fn post(
    link: *mut c_void,
    data: *mut c_void,
    bytes: c_int,
    tag: c_int,
    request: *mut *mut c_void,
) -> Result<(), Failure> {
    let bytes = usize::try_from(bytes).map_err(|_| {
        Failure::new(INVALID_ARGUMENT, format!("a message cannot have {bytes} bytes"))
    })?;
    // SAFETY: the caller's promise.
    let link = unsafe { &*link.cast::<SharedLink>() };
    let posted = Link::post(link, Buffer { data: data.cast(), bytes }, tag)?;
    // SAFETY: the caller's promise.
    unsafe { *request = posted.cast_mut().cast() };
    Ok(())
}

unsafe extern "C" fn isend(
    link: *mut c_void,
    data: *mut c_void,
    bytes: c_int,
    tag: c_int,
    _: *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    // SAFETY: `link` is from `connect`, and `request` NCCL's place for the result.
    guarded(|| unsafe { post(link, data, bytes, tag, request) })
}

unsafe extern "C" fn irecv(
    link: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    bytes: *mut c_int,
    tags: *mut c_int,
    _: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    guarded(|| {
        if count != 1 {
            let why = format!("{count} receives in one call; only 1 is allowed");
            return Err(Failure::new(INVALID_ARGUMENT, why));
        }
        // SAFETY: arrays of one element each; the rest as for `isend`.
        unsafe { post(link, *data, *bytes, *tags, request) }
    })
}

unsafe extern "C" fn iflush(
    _: *mut c_void,
    _: c_int,
    _: *mut *mut c_void,
    _: *mut c_int,
    _: *mut *mut c_void,
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
        // SAFETY: from `post`; NCCL asks no more once it is done.
        let request = unsafe { &*request.cast::<Request>() };
        let Some(length) = request.test()? else { return Ok(()) };
        Request::end(request.place());
        // SAFETY: NCCL's place for the result.
        unsafe { *done = 1 };
        if !bytes.is_null() {
            // SAFETY: NCCL's place for the result.
            unsafe { *bytes = c_int::try_from(length).unwrap_or(c_int::MAX) };
        }
        Ok(())
    })
}

unsafe extern "C" fn close_link(link: *mut c_void) -> Code {
    guarded(|| {
        // SAFETY: from `share`, and NCCL forgets it.
        let link = unsafe { Box::from_raw(link.cast::<SharedLink>()) };
        link.lock().unwrap_or_else(PoisonError::into_inner).close();
        Ok(())
    })
}

unsafe extern "C" fn close_listen(listener: *mut c_void) -> Code {
    guarded(|| {
        // SAFETY: from `listen`, and NCCL forgets it.
        drop(unsafe { Box::from_raw(listener.cast::<Port>()) });
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A link as NCCL holds it, and the other end of its connection.
    fn link(direction: Direction) -> (*mut c_void, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (here, _) = listener.accept().unwrap();
        here.set_nonblocking(true).unwrap();
        (share(here, direction), there)
    }

    #[test]
    fn requests_that_fail_or_are_never_asked_for_end_with_their_link() {
        let (link, there) = link(Direction::In);
        // SAFETY: from `share`.
        let held = Arc::downgrade(unsafe { &*link.cast::<SharedLink>() });
        let mut bytes = [0u8; 4];
        let mut requests = [null_mut(); 2];
        for request in &mut requests {
            let data = bytes.as_mut_ptr().cast();
            // SAFETY: the memory is there until the link is closed.
            assert!(unsafe { post(link, data, 4, 0, request) }.is_ok());
        }
        drop(there);
        let mut done = 0;
        // SAFETY: from `post`, and a place for the result.
        while unsafe { test(requests[0], &raw mut done, null_mut()) } == 0 {
            assert_eq!(done, 0);
        }
        // SAFETY: from `share`.
        assert_eq!(unsafe { close_link(link) }, 0);
        assert!(held.upgrade().is_none(), "a request holds the link");
    }
}
