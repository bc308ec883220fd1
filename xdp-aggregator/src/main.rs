//! The aggregator's data plane: programs for XDP and for tc ingress around
//! [`switchml_protocol::shell`].
//!
//! Programs: `switchml` and `switchml_bundle`, and `switchml_copy` for what the first one sends, on
//! its way out. Maps, with keys and values as in
//! [`switchml_protocol::maps`] and [`switchml_protocol::job`]:
//!
//! | map | type | key → value |
//! | --- | --- | --- |
//! | `LOCAL` | hash | `Endpoint` → `u8`: what the aggregator answers to, and its addresses |
//! | `JOBS` | array | job number → `JobEntry` |
//! | `MEMBERS` | array | job number * 64 + rank → `MemberEntry` |
//! | `SLOTS` | array of maps | slot / 512 → array of 512 `LockedSlot`s, made when first needed |
//! | `RECEIVERS` | array | job number → `Receivers`: where the RESULTs to all go |
//! | `GROUPS` | array of maps | job number → DEVMAP of 64: the ports of those places, in order |
//! | `PORTS` | DEVMAP hash | interface → itself: the ports of the XDP program |
//! | `TURNS` | per-CPU hash | interface → whose copies leave by it |
//! | `COUNTERS` | per-CPU array | [`Outcome`] as a number → packets |
//! | `EVENTS` | ring buffer | `Event`s |
#![no_std]
#![no_main]
// The entry point that the `xdp` macro makes has no documentation.
#![allow(missing_docs)]
// core::sync::atomic is nearly empty on this target.
#![feature(core_intrinsics, asm_experimental_arch)]
#![allow(internal_features)]

mod bundle;
mod copies;
mod lock;
mod packet;
mod payload;
mod scratch;
mod skb;
mod tables;

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS};
use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::shell::{self, Hook};

use packet::Frame;
use payload::Lanes;
use skb::Skb;
use tables::Maps;

/// Serves one superpacket, or one packet, at tc ingress.
#[classifier]
pub fn switchml_bundle(ctx: TcContext) -> i32 {
    // SAFETY: the kernel called the program with it.
    bundle::serve(&unsafe { Skb::new(ctx.skb.skb) })
}

/// Serves one frame.
#[xdp]
pub fn switchml(ctx: XdpContext) -> u32 {
    // SAFETY: the kernel called the program with it. The functions below hold no reference into the
    // frame beyond a resize, which they end with.
    let frame = unsafe { Frame::new(ctx.ctx) };
    let outcome = serve(&frame).unwrap_or_else(|outcome| outcome);
    let (outcome, verdict) = match outcome.action() {
        Action::Pass => (outcome, XDP_PASS),
        Action::Drop => (outcome, XDP_DROP),
        Action::Reply => answer(reply(&frame), outcome),
        Action::Broadcast => answer(broadcast(&frame), outcome),
    };
    tables::count(outcome);
    verdict
}

/// Sees a frame of the other program's on its way out.
#[xdp(map = "devmap")]
pub fn switchml_copy(ctx: XdpContext) -> u32 {
    // SAFETY: as above; and the kernel tells a program on the way out by which port.
    let (frame, port) = unsafe { (Frame::new(ctx.ctx), (*ctx.ctx).egress_ifindex) };
    match copies::address(&frame, port) {
        Some(()) => XDP_PASS,
        None => {
            tables::count(Outcome::SendFailed);
            XDP_DROP
        }
    }
}

/// Serves the frame if it is for the aggregator, leaving the answer's header and payload in it.
#[inline(always)]
fn serve(frame: &Frame) -> Result<Outcome, Outcome> {
    let envelope = frame.envelope().ok_or(Outcome::NotOurs)?;
    let (origin, payload_len) = shell::open(frame, envelope)?;
    let (_, header) = frame.headers().ok_or(Outcome::Truncated)?;
    // SAFETY: the headers end where the payload begins.
    let mut payload = unsafe { Lanes::new(frame.context()) };
    Ok(shell::serve(&Maps, &origin, header, &mut payload, payload_len, tables::report))
}

/// The outcome after an attempt to answer.
#[inline(always)]
fn answer(sent: Option<u32>, outcome: Outcome) -> (Outcome, u32) {
    match sent {
        Some(verdict) => (outcome, verdict),
        None => (Outcome::SendFailed, XDP_DROP),
    }
}

/// Sends the answer back to where the frame came from, or by that port to the job's group.
#[inline(always)]
fn reply(frame: &Frame) -> Option<u32> {
    let (envelope, header) = frame.headers()?;
    let lanes = header.payload_lanes();
    if header.is_for_group() {
        let job = tables::job(header.job.get())?;
        header.aux.set(0);
        envelope.send_to(&job.group_at(frame.ifindex()), job.address, lanes);
    } else {
        envelope.turn_back(lanes);
    }
    frame.resize(lanes).ok()?;
    // Not XDP_TX: a veth whose other end has GRO on but no XDP program leaves such frames lying in
    // its queue.
    tables::redirect(frame.ifindex())
}

/// Sends the answer to all places of the job.
#[inline(always)]
fn broadcast(frame: &Frame) -> Option<u32> {
    let (envelope, header) = frame.headers()?;
    let (number, lanes) = (header.job.get(), header.payload_lanes());
    let receivers = tables::receivers(number)?;
    let first = receivers.used().next()?;
    envelope.send_to(first, tables::job(number)?.address, lanes);
    if receivers.differ != 0 {
        envelope.leave_open();
    }
    frame.resize(lanes).ok()?;
    tables::redirect_to_all(number)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

// The kernel lends some of its helpers to GPL-compatible programs alone.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
