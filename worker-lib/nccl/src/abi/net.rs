//! ncclNet, version 8.

use super::{Code, Logger};
use std::ffi::{c_char, c_int, c_void};

/// What NCCL asks of a device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Properties {
    /// The interface's name.
    pub name: *mut c_char,
    /// Its PCI device in `/sys`; null for one without.
    pub pci_path: *mut c_char,
    /// A number that tells NICs apart.
    pub guid: u64,
    /// A set of kinds of memory.
    pub ptr_support: c_int,
    /// Whether a registration holds for all connections.
    pub reg_is_global: c_int,
    /// In Mb/s.
    pub speed: c_int,
    /// The NIC's port.
    pub port: c_int,
    /// In us; 0 leaves it to NCCL.
    pub latency: f32,
    /// How many connections it may have.
    pub max_comms: c_int,
    /// How many receives one call may post.
    pub max_recvs: c_int,
    /// 0: the host does all.
    pub device_type: c_int,
    /// 0: none.
    pub device_version: c_int,
}

type Listen = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> Code;
type Connect = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void, *mut *mut c_void) -> Code;
type Accept = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut *mut c_void) -> Code;
type Register =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void) -> Code;
type RegisterDmaBuf = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    u64,
    c_int,
    *mut *mut c_void,
) -> Code;
type Send = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    c_int,
    c_int,
    *mut c_void,
    *mut *mut c_void,
) -> Code;
type Receive = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut c_int,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Code;
type Flush = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Code;
type Close = unsafe extern "C" fn(*mut c_void) -> Code;

/// The table of functions that NCCL calls (`ncclNet_v8_t`).
#[repr(C)]
pub struct Net {
    /// The network's name, for logs.
    pub name: *const c_char,
    /// Once, before all others.
    pub init: unsafe extern "C" fn(Option<Logger>) -> Code,
    /// How many devices there are.
    pub devices: unsafe extern "C" fn(*mut c_int) -> Code,
    /// What a device is like.
    pub get_properties: unsafe extern "C" fn(c_int, *mut Properties) -> Code,
    /// Opens a port, and writes where it is into a handle.
    pub listen: Listen,
    /// Connects to a handle; null until it is connected.
    pub connect: Connect,
    /// Takes a connection; null until one is there.
    pub accept: Accept,
    /// Registers memory.
    pub reg_mr: Register,
    /// Registers a DMA buffer.
    pub reg_mr_dma_buf: Option<RegisterDmaBuf>,
    /// Forgets memory.
    pub dereg_mr: unsafe extern "C" fn(*mut c_void, *mut c_void) -> Code,
    /// Begins to send.
    pub isend: Send,
    /// Begins to receive.
    pub irecv: Receive,
    /// Makes what a GPU's memory received visible.
    pub iflush: Flush,
    /// Goes on with a request, and says whether it is done.
    pub test: unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> Code,
    /// Closes a sender.
    pub close_send: Close,
    /// Closes a receiver.
    pub close_recv: Close,
    /// Closes a port.
    pub close_listen: Close,
    /// For devices that do the network themselves.
    pub get_device_mr:
        Option<unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> Code>,
    /// For devices that do the network themselves.
    pub irecv_consumed: Option<unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> Code>,
}

// SAFETY: the table is constant, and its name is a literal.
unsafe impl Sync for Net {}
