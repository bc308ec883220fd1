//! The aggregator's data plane: programs for XDP and for tc ingress around
//! [`switchml_protocol::shell`].
//!
//! Programs: `switchml` and `switchml_bundle`; `switchml_relay` and `switchml_relay_bundle` of a
//! combiner; and `switchml_copy`, which runs on frames that the XDP programs send, as they leave.
//! Maps, with keys and values as in [`switchml_protocol::maps`], [`switchml_protocol::job`] and
//! [`switchml_protocol::relay`]:
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
//! | `COUNTERS` | per-CPU array | [`Outcome`] as a number → packets |
//! | `TIMES` | per-CPU array | index in [`switchml_protocol::times::Times`] → its value |
//! | `EVENTS` | ring buffer | `Event`s |
#![no_std]
#![no_main]
// The entry point that the `xdp` macro makes has no documentation.
#![allow(missing_docs)]
// core::sync::atomic is nearly empty on this target.
#![feature(core_intrinsics, asm_experimental_arch)]
#![allow(internal_features)]

mod copies;
mod lock;
mod packet;
mod payload;
mod relay;
mod scratch;
mod skb;
mod superpacket;
mod tables;
mod tc;
mod trace;

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS};
use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};
use switchml_protocol::frame::{Ipv4, Ipv6, Network, sum_of_packet};
use switchml_protocol::header::Header;
use switchml_protocol::node::{self, Served, Target};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::shell::{self, Hook, Origin};

use packet::Frame;
use payload::Lanes;
use skb::Skb;
use tables::Maps;

/// Serves one superpacket, or one packet, at tc ingress.
#[classifier]
pub fn switchml_bundle(ctx: TcContext) -> i32 {
    // SAFETY: the kernel called the program with it.
    tc::serve_root(&unsafe { Skb::new(ctx.skb.skb) })
}

/// The program for tc ingress, as a combiner.
#[classifier]
pub fn switchml_relay_bundle(ctx: TcContext) -> i32 {
    // SAFETY: as above.
    tc::serve_combiner(&unsafe { Skb::new(ctx.skb.skb) })
}

/// Serves one frame.
#[xdp]
pub fn switchml(ctx: XdpContext) -> u32 {
    // SAFETY: the kernel called the program with it. The functions below hold no reference into the
    // frame beyond a resize, which they end with.
    let mut frame = unsafe { Frame::new(ctx.ctx) };
    if frame.take_tag().is_err() {
        return XDP_DROP;
    }
    let is_v6 = frame.is::<Ipv6>();
    let opened = if is_v6 { open::<Ipv6>(&frame) } else { open::<Ipv4>(&frame) };
    let served = match opened {
        Ok((origin, payload_len)) => serve(&frame, &origin, payload_len),
        Err(outcome) => Served::unanswered(outcome),
    };
    let (outcome, verdict) = match served.target {
        Target::Host => (served.outcome, XDP_PASS),
        Target::Sender | Target::SendersGroup | Target::All if is_v6 => {
            answer::<Ipv6>(&frame, served)
        }
        Target::Sender | Target::SendersGroup | Target::All => answer::<Ipv4>(&frame, served),
        _ => (served.outcome, XDP_DROP),
    };
    tables::count(outcome);
    if verdict != XDP_DROP && frame.put_tag().is_err() { XDP_DROP } else { verdict }
}

/// Serves one frame, as a combiner.
#[xdp]
pub fn switchml_relay(ctx: XdpContext) -> u32 {
    // SAFETY: as above.
    let frame = unsafe { Frame::new(ctx.ctx) };
    if frame.is::<Ipv6>() { relay::serve::<Ipv6>(&frame) } else { relay::serve::<Ipv4>(&frame) }
}

/// Sees a frame of the other programs' on its way out.
#[xdp(map = "devmap")]
pub fn switchml_copy(ctx: XdpContext) -> u32 {
    // SAFETY: as above; and the kernel tells a program on the way out by which port.
    let (mut frame, port) = unsafe { (Frame::new(ctx.ctx), (*ctx.ctx).egress_ifindex) };
    let addressed = frame.take_tag().ok().and_then(|()| match frame.is::<Ipv6>() {
        true => copies::address::<Ipv6>(&frame, port),
        false => copies::address::<Ipv4>(&frame, port),
    });
    match addressed.and_then(|()| frame.put_tag().ok()) {
        Some(()) => XDP_PASS,
        None => {
            tables::count(Outcome::SendFailed);
            XDP_DROP
        }
    }
}

/// Where the frame's packet comes from and how long its payload is, if it is for the aggregator;
/// the frame is aligned then. Otherwise the outcome.
#[inline(always)]
fn open<N: Network>(frame: &Frame) -> Result<(Origin, usize), Outcome> {
    let envelope = frame.envelope::<N>().ok_or(Outcome::NotOurs)?;
    let opened = shell::open(frame, envelope)?;
    frame.align::<N>().map_err(|_| Outcome::SendFailed)?;
    Ok(opened)
}

/// Serves the packet of an aligned frame, leaving the answer's header and payload in it.
#[inline(always)]
fn serve(frame: &Frame, origin: &Origin, payload_len: usize) -> Served {
    let Some(header) = frame.header() else { return Served::unanswered(Outcome::Truncated) };
    // SAFETY: the headers end where the payload begins.
    let mut payload = unsafe { Lanes::new(frame.context()) };
    node::serve(&Maps, &Maps, origin, header, &mut payload, payload_len)
}

/// The outcome after an attempt to answer.
#[inline(always)]
fn answer<N: Network>(frame: &Frame, served: Served) -> (Outcome, u32) {
    let sent = match served.target {
        Target::All => broadcast::<N>(frame),
        target => reply::<N>(frame, target == Target::SendersGroup),
    };
    match sent {
        Some(verdict) => (served.outcome, verdict),
        None => (Outcome::SendFailed, XDP_DROP),
    }
}

/// Sends the answer back to where the frame came from, or by that port to the job's group.
#[inline(always)]
fn reply<N: Network>(frame: &Frame, to_group: bool) -> Option<u32> {
    let header = frame.header()?;
    let number = header.job.get();
    let (lanes, sum) = finish::<N>(frame, header)?;
    let envelope = frame.envelope::<N>()?;
    if to_group {
        let job = tables::job(number)?;
        envelope.send_to(&job.group_at(frame.ifindex()), job.address, lanes, sum);
    } else {
        envelope.turn_back(lanes, sum);
    }
    // Not XDP_TX: if the other end of a veth has GRO on but no XDP program, such frames get stuck
    // in its queue.
    tables::redirect(frame.ifindex())
}

/// Sends the answer to all places of the job.
#[inline(always)]
fn broadcast<N: Network>(frame: &Frame) -> Option<u32> {
    let header = frame.header()?;
    let number = header.job.get();
    let receivers = tables::receivers(number)?;
    let first = receivers.used().next()?;
    let (lanes, sum) = finish::<N>(frame, header)?;
    let envelope = frame.envelope::<N>()?;
    envelope.send_to(first, tables::job(number)?.address, lanes, sum);
    if receivers.differ != 0 {
        envelope.leave_open();
    }
    tables::redirect_to_all(number)
}

/// Cuts the frame to the length of its answer, and has it begin with its envelope again. Lanes of
/// the answer, with its tag, and the sum of its words where UDP needs a checksum.
#[inline(always)]
fn finish<N: Network>(frame: &Frame, header: &Header) -> Option<(u16, u16)> {
    let lanes = header.payload_lanes();
    let sum = if N::CHECKSUM_IS_OPTIONAL {
        0
    } else {
        // SAFETY: as in `serve`.
        let payload = unsafe { Lanes::new(frame.context()) };
        sum_of_packet(header, &payload, lanes.into()).ok()?
    };
    let lanes = lanes + header.tag_len() as u16 / 4;
    frame.resize(lanes).ok()?;
    frame.align_back::<N>().ok()?;
    Some((lanes, sum))
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

// The kernel offers some of its helpers only to GPL-compatible programs.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
