//! ncclNet, version 8.

use super::{Code, Logger};
use std::ffi::{c_char, c_int, c_void};

/// The properties of a device that NCCL asks for.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Properties {
    /// The interface's name.
    pub name: *mut c_char,
    /// The interface's PCI device in `/sys`; null if it has none.
    pub pci_path: *mut c_char,
    /// A number that tells NICs apart.
    pub guid: u64,
    /// A set of kinds of memory.
    pub ptr_support: c_int,
    /// Whether a registration holds for all connections.
    pub reg_is_global: c_int,
    /// Speed in Mb/s.
    pub speed: c_int,
    /// The NIC's port.
    pub port: c_int,
    /// Latency in us; 0 leaves it to NCCL.
    pub latency: f32,
    /// Most connections that the device may have.
    pub max_comms: c_int,
    /// Most receives that one call may post.
    pub max_recvs: c_int,
    /// 0: the host does all the work.
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
    /// Called once, before all other functions.
    pub init: unsafe extern "C" fn(Option<Logger>) -> Code,
    /// Writes the number of devices.
    pub devices: unsafe extern "C" fn(*mut c_int) -> Code,
    /// Writes the properties of a device.
    pub get_properties: unsafe extern "C" fn(c_int, *mut Properties) -> Code,
    /// Opens a port, and writes its address into a handle.
    pub listen: Listen,
    /// Connects to a handle; null until it is connected.
    pub connect: Connect,
    /// Accepts a connection; null until there is one.
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
    /// Makes data visible that a GPU's memory has received.
    pub iflush: Flush,
    /// Continues a request, and writes whether it is done.
    pub test: unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> Code,
    /// Closes a sender.
    pub close_send: Close,
    /// Closes a receiver.
    pub close_recv: Close,
    /// Closes a port.
    pub close_listen: Close,
    /// Used by devices that do the networking themselves.
    pub get_device_mr:
        Option<unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> Code>,
    /// Used by devices that do the networking themselves.
    pub irecv_consumed: Option<unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> Code>,
}

// SAFETY: the table is constant, and its name is a literal.
unsafe impl Sync for Net {}
