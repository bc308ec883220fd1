//! The aggregator's data plane: programs for XDP and for tc ingress around
//! [`switchml_protocol::node`]. This file lists the programs: [`xdp`] and [`tc`] hold them.
//!
//! | | XDP | tc ingress |
//! | --- | --- | --- |
//! | program of a root | `switchml` | `switchml_bundle` |
//! | program of a combiner | `switchml_combiner` | `switchml_combiner_bundle` |
//! | sees | a frame | a superpacket of up to 128 packets, or one packet |
//! | payload | in place | copied into a per-CPU map, segment by segment |
//! | answer | the frame, cut to its length | the superpacket, as long as it is, with FILLER |
//! | RESULT to all | DEVMAP broadcast (`GROUPS`) | `bpf_clone_redirect` to each place |
//! | address of a copy | set as the frame leaves (`copies`) | set before each clone |
//! | DONE instead of lanes | made as the frame leaves (`copies`) | one superpacket, after all clones that have lanes |
//! | VLAN tag | the program takes it off, and puts it in again | the kernel does both |
//! | UDP checksum over IPv4 | 0 | left to the device; 0 if it came filled in |
//! | UDP checksum over IPv6 | computed | left to the device; computed if it came filled in |
//! | expected to be best for | NICs; no real NIC was tested | veth and virtio |
//!
//! On veth and virtio, the kernel's path per packet is nearly all of the cost, and a superpacket
//! takes this path once.
//!
//! Maps, with keys and values as in [`switchml_protocol::bpf_types`]:
//!
//! | map | type | key → value |
//! | --- | --- | --- |
//! | `LOCAL` | hash | `Endpoint` → `u8`: what the aggregator answers to, and its addresses |
//! | `JOBS` | array | job number → `JobEntry` |
//! | `MEMBERS` | array | job number * 1024 + rank → `MemberEntry` |
//! | `UPLINKS` | array | job number → `Uplink`, at a combiner |
//! | `CELLS` | array | number → `LockedCell`, at a combiner |
//! | `AVERAGE` | array | 0 → the age at which partial sums are complete, smoothed |
//! | `SLOTS` | array of maps | slot / 512 → array of 512 `LockedSlot`s, made when first needed |
//! | `RECEIVERS` | array | job number → `Receivers`: where the RESULTs to all go |
//! | `GROUPS` | array of maps | job number → DEVMAP of 64: the ports of the `RECEIVERS`, in order |
//! | `PORTS` | DEVMAP hash | interface → itself: the ports of the XDP program |
//! | `TURNS` | per-CPU hash | interface → the broadcast whose copies leave through it |
//! | `LEAVING` | per-CPU array | 0 → the interface that a frame leaves by |
//! | `UNSENT` | per-CPU hash | interface → frames that the kernel could not send by it |
//! | `COUNTERS` | per-CPU array | [`Outcome`] as a number → packets |
//! | `TIMES` | per-CPU array | index in [`switchml_protocol::bpf_types::times::Times`] → its value |
//! | `EVENTS` | ring buffer | `Event`s |
#![no_std]
#![no_main]
// The entry point that the `xdp` macro makes has no documentation.
#![allow(missing_docs)]
// core::sync::atomic is nearly empty on this target.
#![feature(core_intrinsics, asm_experimental_arch)]
#![allow(internal_features)]

mod bounds;
mod lock;
mod payload;
mod tables;
mod tc;
mod trace;
mod xdp;

use aya_ebpf::macros::{classifier, raw_tracepoint, xdp};
use aya_ebpf::programs::{RawTracePointContext, TcContext, XdpContext};

use tc::skb::Skb;
use xdp::frame::Frame;
use xdp::{copies, unsent};

/// A root's program for XDP.
#[xdp]
pub fn switchml(ctx: XdpContext) -> u32 {
    // SAFETY: the kernel called the program with it. The functions that it calls hold no reference
    // into the frame beyond a resize, which they end with.
    xdp::serve_root(&mut unsafe { Frame::new(ctx.ctx) })
}

/// A combiner's program for XDP.
#[xdp]
pub fn switchml_combiner(ctx: XdpContext) -> u32 {
    // SAFETY: as above.
    xdp::serve_combiner(&unsafe { Frame::new(ctx.ctx) })
}

/// The program for frames that the other two send, as they leave.
#[xdp(map = "devmap")]
pub fn switchml_copy(ctx: XdpContext) -> u32 {
    // SAFETY: as above; and the kernel tells a program on the way out by which port.
    copies::serve(&mut unsafe { Frame::new(ctx.ctx) }, unsafe { (*ctx.ctx).egress_ifindex })
}

/// Counts frames that a driver was given and did not take.
#[raw_tracepoint(tracepoint = "xdp_devmap_xmit")]
pub fn switchml_given(ctx: RawTracePointContext) -> i32 {
    unsent::given_to_driver(&ctx);
    0
}

/// Counts frames that were not queued at a port.
#[raw_tracepoint(tracepoint = "xdp_redirect_err")]
pub fn switchml_not_queued(ctx: RawTracePointContext) -> i32 {
    unsent::not_queued(&ctx);
    0
}

/// A root's program for tc ingress.
#[classifier]
pub fn switchml_bundle(ctx: TcContext) -> i32 {
    // SAFETY: the kernel called the program with it.
    tc::serve_root(&unsafe { Skb::new(ctx.skb.skb) })
}

/// A combiner's program for tc ingress.
#[classifier]
pub fn switchml_combiner_bundle(ctx: TcContext) -> i32 {
    // SAFETY: as above.
    tc::serve_combiner(&unsafe { Skb::new(ctx.skb.skb) })
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

// The kernel offers some of its helpers only to GPL-compatible programs.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
