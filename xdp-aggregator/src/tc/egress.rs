//! From what the segments have become to the superpackets that leave.

use core::mem::offset_of;

use aya_ebpf::bindings::{__sk_buff, TC_ACT_SHOT};
use aya_ebpf::helpers::{bpf_clone_redirect, bpf_redirect};
use switchml_protocol::bpf_types::fanout::MAX_PLACES;
use switchml_protocol::node::egress::{self, Copies, Hop};
use switchml_protocol::node::frame::{Checksum, Ipv4, Ipv6, Network, sum_of_done, sum_of_packet};
use switchml_protocol::node::ingress::Hook;
use switchml_protocol::node::{Served, Target};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::wire::header::{HEADER_LEN, Header, Kind, flags};

use super::scratch::{self, Leaving, MAX_SEGMENTS, Scratch, Segment};
use super::segments::serve_down;
use super::skb::Skb;
use crate::payload::Lanes;
use crate::tables::{self, Maps};

/// Sends the segments that go to all, to the parent, or to the sender. Returns the verdict.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn tc_send(ctx: *mut __sk_buff) -> u64 {
    // SAFETY: the caller vouches for the context.
    let skb = unsafe { Skb::new(ctx) };
    let Some(work) = scratch::get() else { return TC_ACT_SHOT as u64 };
    note_checksum(&skb, work);
    let (to_all, to_parent, to_sender) =
        (work.tally.to_all, work.tally.to_parent, work.tally.to_sender);
    let (job, to_group) = (work.tally.job, work.tally.to_senders_group != 0);
    let mut verdict = TC_ACT_SHOT;
    if to_all > 0 {
        show(&skb, Action::Broadcast, to_all);
        verdict = send(&skb, Target::All, to_sender > 0);
    }
    if to_parent > 0 {
        show(&skb, Action::Up, to_parent);
        verdict = send(&skb, Target::Parent { job, from_port: 0 }, false);
    } else if to_sender > 0 {
        show(&skb, Action::Reply, to_sender);
        let target = if to_group { Target::SendersGroup } else { Target::Sender };
        verdict = send(&skb, target, false);
    }
    count_failure(verdict)
}

/// Sends the parent's superpacket to the ranks below that it is for. Returns the verdict.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn tc_down(ctx: *mut __sk_buff) -> u64 {
    // SAFETY: the caller vouches for the context.
    let skb = unsafe { Skb::new(ctx) };
    let Some(work) = scratch::get() else { return TC_ACT_SHOT as u64 };
    let served = serve_down(&skb, work).unwrap_or_else(Served::unanswered);
    let packets = work.arrived.len.div_ceil(work.arrived.segment_len.max(1));
    let is_marked = work.arrived.origin.congested;
    if served.target == Target::Nobody {
        tables::count(served.outcome);
        return TC_ACT_SHOT as u64;
    }
    tables::count_all(served.outcome, packets);
    note_checksum(&skb, work);
    if is_marked {
        // SAFETY: the caller vouches for the context.
        unsafe { superpacket_mark(ctx) };
    }
    count_failure(send(&skb, served.target, false))
}

#[inline(always)]
fn count_failure(verdict: i32) -> u64 {
    if verdict == TC_ACT_SHOT {
        tables::count(Outcome::SendFailed);
    }
    verdict as u64
}

/// Sends the superpacket to its target; keeps it if more is to be sent. Returns the verdict.
#[inline(always)]
fn send(skb: &Skb, target: Target, keep: bool) -> i32 {
    let Some(work) = scratch::get() else { return TC_ACT_SHOT };
    if let Target::Parent { job, .. } = target
        && let Some(uplink) = tables::uplink(job)
    {
        work.leaving.mac = uplink.mac;
    }
    let (whose, hop) = ((work.tally.job, work.tally.rank), &mut work.leaving.hop);
    match egress::route(&Maps, target, whose, skb.ifindex(), hop) {
        None | Some(Copies::None) => TC_ACT_SHOT,
        Some(Copies::Back) => {
            *hop = Hop { to: work.arrived.origin.binding, from: work.arrived.address };
            send_one(skb)
        }
        Some(Copies::One) => send_one(skb),
        Some(Copies::Each) => {
            // Where more is to be sent, the segments are needed as they are.
            work.told.is_known = u8::from(work.told.is_known != 0 && !keep);
            send_each(skb, keep)
        }
    }
}

/// Sends the superpacket the way of [`Leaving::hop`].
#[inline(always)]
fn send_one(skb: &Skb) -> i32 {
    match head(skb) {
        // SAFETY: no pointer is passed.
        Some(port) => unsafe { bpf_redirect(port, 0) as i32 },
        None => TC_ACT_SHOT,
    }
}

/// Sends the superpacket to each place of its job, or a DONE to those places that need no lanes
/// (rule 9.4); keeps it if more is to be sent.
#[inline(always)]
fn send_each(skb: &Skb, keep: bool) -> i32 {
    let ctx = skb.context();
    // SAFETY: the context is that of the running program, and nothing of this CPU's memory is in
    // use here.
    let last = unsafe {
        // The last place gets the superpacket itself, unless it is needed for others.
        match tc_clone(ctx, 0) {
            last if last >> 32 == 0 => last,
            last => {
                if last as u32 != 0 {
                    clone_to(skb, last as u32);
                }
                if superpacket_shorten(ctx) != 0 {
                    return TC_ACT_SHOT;
                }
                tc_clone(ctx, 1)
            }
        }
    };
    match last as u32 {
        0 => TC_ACT_SHOT,
        last if keep => clone_to(skb, last),
        // SAFETY: no pointer is passed.
        last => unsafe { bpf_redirect(last, 0) as i32 },
    }
}

/// Sends the superpacket to each place that needs its lanes, or to each that does not if `by_done`
/// is 1, except the last. The headers are then those for the last place. Returns the last place's
/// port, and in the upper half 1 if there are places of the other kind.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn tc_clone(ctx: *mut __sk_buff, by_done: u32) -> u64 {
    // SAFETY: the caller vouches for the context.
    let skb = unsafe { Skb::new(ctx) };
    let Some(work) = scratch::get() else { return 0 };
    let Some(receivers) = tables::receivers(work.tally.job) else { return 0 };
    let (mut last, mut others) = (0, 0);
    for index in 0..MAX_PLACES {
        let Some(place) = receivers.places.get(index) else { break };
        if place.ifindex == 0 {
            break;
        }
        let ranks = receivers.ranks.get(index).copied().unwrap_or(0);
        let Some(work) = scratch::get() else { return 0 };
        let is_told = work.told.is_known != 0 && work.told.done.is_for(ranks);
        if u32::from(is_told) != by_done {
            others = 1;
            continue;
        }
        if last != 0 {
            clone_to(&skb, last);
        }
        // Change the headers only after the clone, which needs the old ones.
        work.leaving.hop.to = *place;
        let Some(port) = head(&skb) else { return 0 };
        last = port;
    }
    others << 32 | u64::from(last)
}

#[inline(always)]
fn clone_to(skb: &Skb, port: u32) -> i32 {
    // SAFETY: the context is that of the running program; no reference into the packet is held.
    unsafe { bpf_clone_redirect(skb.context(), port, 0) as i32 }
}

/// Gives the superpacket the headers of [`Leaving`]. The port by which it is to leave.
#[inline(always)]
fn head(skb: &Skb) -> Option<u32> {
    let port = scratch::get()?.leaving.hop.to.ifindex;
    // SAFETY: the context is that of the running program; no scratch memory is in use here.
    (unsafe { tc_address(skb.context()) } == 0).then_some(port)
}

/// Gives the superpacket the headers of [`Leaving`]; 0 if that is done.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn tc_address(ctx: *mut __sk_buff) -> u64 {
    // SAFETY: the caller vouches for the context.
    let skb = unsafe { Skb::new(ctx) };
    let Some(work) = scratch::get() else { return 1 };
    let addressed = if work.arrived.is_v6 == 0 {
        address::<Ipv4>(&skb, work)
    } else {
        address::<Ipv6>(&skb, work)
    };
    u64::from(addressed.is_err())
}

#[inline(always)]
fn address<N: Network>(skb: &Skb, work: &mut Scratch) -> Result<(), i64> {
    work.leaving.headers = work.arrived.headers;
    let Leaving { hop: Hop { to, from }, mac, port, headers, checksum, sum, .. } =
        &mut work.leaving;
    let answer = headers.of::<N>();
    (answer.mac_destination, answer.destination_port) = (*mac, *port);
    if work.told.is_made == 0 {
        answer.send_bundle_to(to, *from, *checksum, *sum);
    } else {
        let lanes = work.told.done.rounds();
        answer.send_instead(to, *from, lanes, *checksum, *sum);
    }
    skb.store(0, answer)
}
/// Finds out who fills in the UDP checksum of what leaves, and the sum that is needed for it.
#[inline(always)]
fn note_checksum(skb: &Skb, work: &mut Scratch) {
    if work.arrived.is_v6 == 0 {
        note_checksum_over::<Ipv4>(skb, work);
    } else {
        note_checksum_over::<Ipv6>(skb, work);
    }
}

#[inline(always)]
fn note_checksum_over<N: Network>(skb: &Skb, work: &mut Scratch) {
    work.leaving.checksum = skb.checksum(work.arrived.headers.of::<N>());
    if N::CHECKSUM_IS_OPTIONAL || work.leaving.checksum == Checksum::Offloaded {
        return;
    }
    // The frame is one packet, whose copy is still there.
    let payload_len = (work.arrived.len as usize).saturating_sub(HEADER_LEN);
    let Some(Segment { header, payload }) = work.segment_mut(work.headers_len()) else { return };
    // SAFETY: the payload is not used otherwise.
    let payload = unsafe { Lanes::new(&raw mut *payload) };
    let lanes = payload_len.saturating_sub(header.tag_len()) / 4;
    work.leaving.sum = sum_of_packet(header, &payload, lanes).unwrap_or(0);
}

/// Rules 6.2 and 6.3: shows the segments of this action, which are so many; the others become
/// FILLER.
#[inline(always)]
fn show(skb: &Skb, action: Action, segments: u32) {
    if scratch::get().is_some_and(|work| segments < work.tally.segments) {
        // SAFETY: the context is that of the running program; no scratch memory is in use here.
        unsafe { superpacket_show(skb.context(), action as u32) };
    }
}

/// Sets the kind of each segment: its answer's kind if the answer's action is `action`, else
/// FILLER.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn superpacket_show(ctx: *mut __sk_buff, action: u32) -> u64 {
    // SAFETY: the caller vouches for the context.
    let skb = unsafe { Skb::new(ctx) };
    let Some(work) = scratch::get() else { return 0 };
    let kind = work.headers_len() + offset_of!(Header, kind) as u32;
    for (index, answer) in (0..work.tally.segments).zip(&work.tally.answers) {
        work.leaving.shown =
            if u32::from(answer.action) == action { answer.kind } else { Kind::Filler as u8 };
        let _ = skb.store(kind + index * work.arrived.segment_len, &work.leaving.shown);
    }
    0
}

/// Rule 5.5, of each segment of a superpacket that goes down.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn superpacket_mark(ctx: *mut __sk_buff) -> u64 {
    // SAFETY: the caller vouches for the context.
    let skb = unsafe { Skb::new(ctx) };
    let Some(work) = scratch::get() else { return 0 };
    let at = work.headers_len() + offset_of!(Header, flags) as u32;
    for index in 0..MAX_SEGMENTS as u32 {
        let offset = index * work.arrived.segment_len;
        if offset >= work.arrived.len {
            break;
        }
        let Some([flags, ..]) = skb.word((at + offset) as usize) else { break };
        work.leaving.shown = flags | flags::CE;
        let _ = skb.store(at + offset, &work.leaving.shown);
    }
    0
}

/// Makes the superpacket a DONE of its RESULTs, without the headers around it; 0 if that is done.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn superpacket_shorten(ctx: *mut __sk_buff) -> u64 {
    // SAFETY: the caller vouches for the context.
    let skb = unsafe { Skb::new(ctx) };
    let Some(work) = scratch::get() else { return 1 };
    work.told.header = work.told.done.header();
    let (at, lanes) = (work.headers_len(), u32::from(work.told.done.rounds()));
    let behind = at + HEADER_LEN as u32;
    let mut sum = 0;
    for (_, lane) in (0..lanes).zip(&work.told.lanes) {
        sum += lane.get() >> 16;
        sum += lane.get() & 0xFFFF;
    }
    work.leaving.sum = sum_of_done(&work.told.header, sum);
    work.told.is_made = 1;
    let stored = skb
        .store(at, &work.told.header)
        .and_then(|()| skb.store_lanes(behind, &raw const work.told.lanes, 4 * lanes))
        .and_then(|()| skb.cut(behind + 4 * lanes));
    u64::from(stored.is_err())
}
