//! Frames that the kernel could not send after XDP had sent them on, for each port. No verdict
//! tells of them, and most drivers do not count them. Tracepoints do
//! (include/trace/events/xdp.h).
//!
//! A tracepoint's program sees the frames of all XDP programs of the machine. So the aggregator's
//! programs note by which port a frame leaves. What the kernel then says on the same CPU is about
//! that frame, because it sends all that a turn of the driver has brought before the next turn.

use aya_ebpf::bindings::bpf_map_type::BPF_MAP_TYPE_DEVMAP_HASH;
use aya_ebpf::btf_maps::{PerCpuArray, PerCpuHashMap};
use aya_ebpf::macros::btf_map;
use aya_ebpf::programs::RawTracePointContext;
use switchml_protocol::bpf_types::maps::MAX_PORTS;

/// The port by which this CPU's last frame leaves; 0 if the kernel has said what became of it.
#[btf_map]
static LEAVING: PerCpuArray<u32, 1> = PerCpuArray::new();
#[btf_map]
static UNSENT: PerCpuHashMap<u32, u64, MAX_PORTS> = PerCpuHashMap::new();

/// Notes that a frame leaves by `port`.
#[inline(always)]
pub fn leaves_by(port: u32) {
    if let Some(leaving) = LEAVING.get_ptr_mut(0) {
        // SAFETY: the entry is this CPU's own, and XDP programs do not interrupt each other on one
        // CPU.
        unsafe { *leaving = port };
    }
}

/// `xdp_devmap_xmit`: a driver was given frames of one port. Its fourth argument says how many it
/// did not take.
#[inline(always)]
pub fn given_to_driver(ctx: &RawTracePointContext) {
    count(take(), ctx.arg(3));
}

/// `xdp_redirect_err`: a frame was not queued at a port. The fifth and seventh argument are the
/// map's type, and the key, which is the port.
#[inline(always)]
pub fn not_queued(ctx: &RawTracePointContext) {
    let port = take();
    // A broadcast has no key.
    if ctx.arg::<u32>(4) == BPF_MAP_TYPE_DEVMAP_HASH && ctx.arg::<u32>(6) == port {
        count(port, 1);
    }
}

/// The port that the last frame left by, once.
#[inline(always)]
fn take() -> u32 {
    let Some(leaving) = LEAVING.get_ptr_mut(0) else { return 0 };
    // SAFETY: as in `leaves_by`.
    unsafe { core::ptr::replace(leaving, 0) }
}

#[inline(always)]
fn count(port: u32, frames: i32) {
    if port == 0 || frames <= 0 {
        return;
    }
    match UNSENT.get_ptr_mut(port) {
        // SAFETY: as in `leaves_by`.
        Some(unsent) => unsafe { *unsent += frames as u64 },
        // The map has room for each port.
        None => drop(UNSENT.insert(port, frames as u64, 0)),
    }
}
