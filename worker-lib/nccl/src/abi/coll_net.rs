//! ncclCollNet, version 7.
//!
//! Version 8 has all-gather and reduce-scatter, too. From NCCL 2.24 on, NCCL calls them on a plugin
//! with version 8 even if they are null. With version 7 NCCL does not use them.

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
    /// Speed in Mb/s.
    pub speed: c_int,
    /// The NIC's port.
    pub port: c_int,
    /// Latency in us; 0 leaves it to NCCL.
    pub latency: f32,
    /// Most groups that the device may have.
    pub max_comms: c_int,
    /// Not used.
    pub max_recvs: c_int,
    /// 0: the host does all the work.
    pub device_type: c_int,
    /// 0: none.
    pub device_version: c_int,
}

type Listen = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> Code;
type Connect =
    unsafe extern "C" fn(*mut *mut c_void, c_int, c_int, *mut c_void, *mut *mut c_void) -> Code;
type Register =
    unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, c_int, *mut *mut c_void) -> Code;
type RegisterDmaBuf = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    u64,
    c_int,
    *mut *mut c_void,
) -> Code;
type AllReduce = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    *mut c_void,
    c_int,
    c_int,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut *mut c_void,
) -> Code;
type Flush =
    unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, *mut c_void, *mut *mut c_void) -> Code;
type Close = unsafe extern "C" fn(*mut c_void) -> Code;

/// The table of functions that NCCL calls (`ncclCollNet_v7_t`).
#[repr(C)]
pub struct CollNet {
    /// The network's name, for logs.
    pub name: *const c_char,
    /// Called once, before all other functions.
    pub init: unsafe extern "C" fn(Option<Logger>) -> Code,
    /// Writes the number of devices.
    pub devices: unsafe extern "C" fn(*mut c_int) -> Code,
    /// Writes the properties of a device.
    pub get_properties: unsafe extern "C" fn(c_int, *mut Properties) -> Code,
    /// Writes a handle with what the ranks of a group need to find each other.
    pub listen: Listen,
    /// Makes a group of the ranks with these handles.
    pub connect: Connect,
    /// Writes whether there is a reduction for a type.
    pub reduce_support: unsafe extern "C" fn(c_int, c_int, *mut c_int) -> Code,
    /// Registers memory.
    pub reg_mr: Register,
    /// Registers a DMA buffer.
    pub reg_mr_dma_buf: Option<RegisterDmaBuf>,
    /// Forgets memory.
    pub dereg_mr: unsafe extern "C" fn(*mut c_void, *mut c_void) -> Code,
    /// Begins an all-reduce.
    pub iallreduce: AllReduce,
    /// Makes data visible that a GPU's memory has received.
    pub iflush: Flush,
    /// Writes whether a request is done.
    pub test: unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> Code,
    /// Leaves a group.
    pub close_coll: Close,
    /// Forgets a handle.
    pub close_listen: Close,
}

// SAFETY: the table is constant, and its name is a literal.
unsafe impl Sync for CollNet {}
