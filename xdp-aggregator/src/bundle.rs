//! Superpackets taken whole at tc ingress: what UDP_SEGMENT, or GRO, made of a run of packets.
//!
//! Each segment is served by itself, from a copy of it in a per-CPU map, for most of the payload
//! lies in pages that a program cannot reach. Answers are written back into the superpacket, which
//! tc cannot shorten: the segments that have no part in an answer are sent along as FILLER.

use core::mem::offset_of;

use aya_ebpf::bindings::{__sk_buff, TC_ACT_SHOT, TC_ACT_UNSPEC};
use aya_ebpf::helpers::{bpf_clone_redirect, bpf_redirect};
use switchml_protocol::frame::{Checksum, ENVELOPE_LEN};
use switchml_protocol::header::{HEADER_LEN, Header, Kind};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::shell::{self, Hook};

use crate::payload::Lanes;
use crate::scratch::{self, Answer, MAX_PACKET_LEN, MAX_SEGMENTS, Packet, Scratch};
use crate::skb::Skb;
use crate::tables::{self, Maps};

/// Serves one superpacket, or one packet, and returns the verdict.
#[inline(always)]
pub fn serve(skb: &Skb) -> i32 {
    if let Err(outcome) = open(skb) {
        tables::count(outcome);
        return if outcome.action() == Action::Pass { TC_ACT_UNSPEC } else { TC_ACT_SHOT };
    }
    match serve_segments(skb) {
        Ok(0) => TC_ACT_SHOT,
        Err(_) => {
            tables::count(Outcome::SendFailed);
            TC_ACT_SHOT
        }
        // SAFETY: the context is that of the running program.
        _ => unsafe { bundle_answer(skb.context()) as i32 },
    }
}

/// Finds out whether the frame is for the aggregator, and notes what is in it.
#[inline(always)]
fn open(skb: &Skb) -> Result<(), Outcome> {
    let work = scratch::get().ok_or(Outcome::NotOurs)?;
    skb.load(0, &mut work.envelope).map_err(|_| Outcome::NotOurs)?;
    let (origin, payload_len) = shell::open(skb, &work.envelope)?;
    work.origin = origin;
    work.len = (payload_len + HEADER_LEN) as u32;
    work.segment_len = match skb.segment_len() {
        0 => work.len,
        segment_len => segment_len,
    };
    (work.has_job, work.to_senders_group) = (0, 0);
    (work.loaded_to, work.unstored) = (0, 0);
    (work.segments, work.to_group, work.to_sender) = (0, 0, 0);
    Ok(())
}

/// Serves one segment after the other, leaving answers in their places. Returns how many there are.
#[inline(always)]
fn serve_segments(skb: &Skb) -> Result<u32, i64> {
    let Some(work) = scratch::get() else { return Ok(0) };
    let (len, segment_len) = (work.len, work.segment_len);
    for index in 0..MAX_SEGMENTS as u32 {
        let offset = index * segment_len;
        if offset >= len {
            break;
        }
        let rest = len - offset;
        // SAFETY: the context is that of the running program. `work` is not used while the function
        // runs. What it counts it counts in the map: for the verifier, sums in registers would make
        // each turn of the loop different.
        unsafe {
            bundle_segment(
                skb.context(),
                ENVELOPE_LEN as u32 + offset,
                segment_len.min(rest),
                index,
            )
        };
    }
    let Some(work) = scratch::get() else { return Ok(0) };
    store_answers(skb, work)?;
    Ok(work.to_group + work.to_sender)
}

// What follows are global functions of BPF: the verifier checks each of them once, on its own,
// instead of along every path through the loop that calls it.

/// Serves the segment of `len` bytes at `offset`; its answer, if there is one, is written there.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn bundle_segment(
    ctx: *mut __sk_buff,
    offset: u32,
    len: u32,
    index: u32,
) -> u64 {
    // SAFETY: the caller vouches for the context.
    let skb = unsafe { Skb::new(ctx) };
    let Some(work) = scratch::get() else { return 0 };
    let mut outcome = serve_segment(&skb, work, offset, len);
    let action = outcome.action();
    let has_answer = matches!(action, Action::Broadcast | Action::Reply);
    if has_answer && write_answer(&skb, work, offset, len).is_err() {
        outcome = Outcome::SendFailed;
    }
    tables::count(outcome);
    let action = outcome.action();
    work.segments += 1;
    work.to_group += u32::from(action == Action::Broadcast);
    work.to_sender += u32::from(action == Action::Reply);
    let kind = work.packet_mut(offset).map_or(0, |packet| packet.header.kind);
    if let Some(answer) = work.answers.get_mut(index as usize) {
        *answer = Answer { action: action as u8, kind };
    }
    0
}

#[inline(always)]
fn serve_segment(skb: &Skb, work: &mut Scratch, offset: u32, len: u32) -> Outcome {
    if (len as usize) < HEADER_LEN {
        return Outcome::Truncated;
    }
    if len as usize > MAX_PACKET_LEN {
        return Outcome::BadLength;
    }
    if offset + len > work.loaded_to {
        if store_answers(skb, work).is_err() {
            return Outcome::SendFailed;
        }
        if load(skb, work, offset).is_err() {
            return Outcome::Truncated;
        }
    }
    let (origin, job, has_job) = (work.origin, work.job, work.has_job != 0);
    let Some(Packet { header, payload }) = work.packet_mut(offset) else {
        return Outcome::BadLength;
    };
    let number = header.job.get();
    // Rule 6.4.
    if has_job && number != job {
        return Outcome::MixedJobs;
    }
    // SAFETY: the payload is not used otherwise.
    let mut payload = unsafe { Lanes::new(&raw mut *payload) };
    let payload_len = len as usize - HEADER_LEN;
    let outcome = shell::serve(&Maps, &origin, header, &mut payload, payload_len, tables::report);
    let goes_to_group = outcome == Outcome::Hello && header.is_for_group();
    if goes_to_group {
        header.aux.set(0);
        work.to_senders_group = 1;
    }
    if goes_to_group || outcome.action() == Action::Broadcast {
        (work.has_job, work.job) = (1, number);
    }
    outcome
}

/// Copies the segment at `offset`, and those behind it that there is room for.
#[inline(always)]
fn load(skb: &Skb, work: &mut Scratch, offset: u32) -> Result<(), i64> {
    let len = work.load_len(ENVELOPE_LEN as u32 + work.len - offset);
    skb.load_bytes(offset, &raw mut work.loaded, len)?;
    (work.loaded_from, work.loaded_to) = (offset, offset + len);
    Ok(())
}

/// Writes header and payload of the answer into the superpacket, in the place of what they answer;
/// or leaves that to [`store_answers`], which does it for several at once.
#[inline(always)]
fn write_answer(skb: &Skb, work: &mut Scratch, offset: u32, len: u32) -> Result<(), i64> {
    // Once for all segments: what is done for the first one stays.
    skb.make_writable()?;
    if offset == work.loaded_from + work.unstored {
        work.unstored += len;
        return Ok(());
    }
    skb.store_packet(offset, work.packet_mut(offset).ok_or(-1)?, len)
}

/// Writes the answers that the superpacket lacks into it.
#[inline(always)]
fn store_answers(skb: &Skb, work: &mut Scratch) -> Result<(), i64> {
    if work.unstored > 0 {
        skb.store_bytes(work.loaded_from, &raw const work.loaded, work.unstored)?;
        work.unstored = 0;
    }
    Ok(())
}

/// Sends the RESULTs to the group, and the other answers to the sender. Returns the verdict.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn bundle_answer(ctx: *mut __sk_buff) -> u64 {
    // SAFETY: the caller vouches for the context.
    let skb = unsafe { Skb::new(ctx) };
    let Some(work) = scratch::get() else { return TC_ACT_SHOT as u64 };
    let checksum = skb.checksum(&work.envelope);
    let (segments, to_group, to_sender) = (work.segments, work.to_group, work.to_sender);
    let mut verdict = TC_ACT_SHOT;
    if to_group > 0 {
        if to_group < segments {
            // SAFETY: as above.
            unsafe { bundle_show(ctx, Action::Broadcast as u32) };
        }
        verdict = send_to_all(&skb, work, checksum, to_sender > 0);
    }
    if to_sender > 0 {
        if to_sender < segments {
            // SAFETY: as above.
            unsafe { bundle_show(ctx, Action::Reply as u32) };
        }
        verdict = send_back(&skb, work, checksum);
    }
    if verdict == TC_ACT_SHOT {
        tables::count(Outcome::SendFailed);
    }
    verdict as u64
}

/// Sends the superpacket to all places of the job; keeps it if there is more to be sent.
#[inline(always)]
fn send_to_all(skb: &Skb, work: &mut Scratch, checksum: Checksum, keep: bool) -> i32 {
    let (Some(job), Some(receivers)) = (tables::job(work.job), tables::receivers(work.job)) else {
        return TC_ACT_SHOT;
    };
    // The last one gets the superpacket itself, unless it is kept.
    let mut last = 0;
    for place in &receivers.places {
        if place.ifindex == 0 {
            break;
        }
        if last != 0 {
            clone_to(skb, last);
        }
        // After the clone, which has the headers as they were.
        work.answer = work.envelope;
        work.answer.send_bundle_to(place, job.address, checksum);
        if skb.store(0, &work.answer).is_err() {
            return TC_ACT_SHOT;
        }
        last = place.ifindex;
    }
    match last {
        0 => TC_ACT_SHOT,
        last if keep => clone_to(skb, last),
        // SAFETY: no pointer is passed.
        last => unsafe { bpf_redirect(last, 0) as i32 },
    }
}

#[inline(always)]
fn clone_to(skb: &Skb, port: u32) -> i32 {
    // SAFETY: the context is that of the running program; no reference into the packet is held.
    unsafe { bpf_clone_redirect(skb.context(), port, 0) as i32 }
}

/// Sends the superpacket back to where it came from, or by that port to the job's group.
#[inline(always)]
fn send_back(skb: &Skb, work: &mut Scratch, checksum: Checksum) -> i32 {
    work.answer = work.envelope;
    if work.to_senders_group == 0 {
        work.answer.turn_bundle_back(checksum);
    } else {
        let Some(job) = tables::job(work.job) else { return TC_ACT_SHOT };
        work.answer.send_bundle_to(&job.group_at(skb.ifindex()), job.address, checksum);
    }
    if skb.store(0, &work.answer).is_err() {
        return TC_ACT_SHOT;
    }
    // SAFETY: no pointer is passed.
    unsafe { bpf_redirect(skb.ifindex(), 0) as i32 }
}

/// Rules 6.2 and 6.3: gives each segment its kind, that of its answer if it takes part in `action`,
/// else FILLER.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn bundle_show(ctx: *mut __sk_buff, action: u32) -> u64 {
    const KIND: u32 = (ENVELOPE_LEN + offset_of!(Header, kind)) as u32;
    // SAFETY: the caller vouches for the context.
    let skb = unsafe { Skb::new(ctx) };
    let Some(work) = scratch::get() else { return 0 };
    for (index, answer) in (0..work.segments).zip(&work.answers) {
        work.shown =
            if u32::from(answer.action) == action { answer.kind } else { Kind::Filler as u8 };
        let _ = skb.store(KIND + index * work.segment_len, &work.shown);
    }
    0
}
