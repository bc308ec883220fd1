//! Superpackets taken whole at tc ingress: what UDP_SEGMENT, or GRO, made of a run of packets (rule
//! 6.1).
//!
//! Each segment is served by itself, from a copy in a per-CPU map, because most of the payload is
//! in pages that a program cannot reach. Answers are written back into the superpacket, which tc
//! cannot shorten: segments without an answer are sent along as FILLER.

use core::mem::offset_of;

use aya_ebpf::bindings::__sk_buff;
use switchml_protocol::node::frame::{
    Checksum, Envelope, Ipv4, Ipv6, Network, sum_of_done, sum_of_packet,
};
use switchml_protocol::node::ingress::Hook;
use switchml_protocol::node::{Served, Target};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::wire::header::{HEADER_LEN, Header, Kind, flags};

use crate::payload::Lanes;
use crate::scratch::{self, Answer, MAX_PACKET_LEN, MAX_SEGMENTS, Packet, Scratch};
use crate::skb::Skb;
use crate::tables;

/// The role that serves segments: the root or a combiner.
pub trait Role {
    /// Calls [`segment`] as a global function of BPF: the verifier checks it once, on its own,
    /// instead of along every path through the loop over segments.
    ///
    /// # Safety
    ///
    /// As for [`Skb::new`].
    unsafe fn segment(ctx: *mut __sk_buff, offset: u32, len: u32, index: u32);

    /// Serves the packet at `offset`, `payload_len` bytes behind its header, whose copy is in
    /// `work`.
    fn serve(work: &mut Scratch, offset: u32, payload_len: usize) -> Served;
}

/// The offset of the first segment that is no FILLER; of a FILLER, only the field `kind` has a
/// meaning.
#[inline(always)]
pub fn first_packet<N: Network>(skb: &Skb) -> u32 {
    let segment_len = skb.segment_len();
    let mut offset = Envelope::<N>::LEN as u32;
    for _ in 0..MAX_SEGMENTS {
        match skb.word(offset as usize) {
            Some([_, kind, ..]) if kind == Kind::Filler as u8 && segment_len != 0 => {
                offset += segment_len;
            }
            _ => break,
        }
    }
    offset
}

/// Serves one segment after the other, leaving answers in their places. Returns the number of
/// answers.
#[inline(always)]
pub fn serve_segments<R: Role>(skb: &Skb) -> Result<u32, i64> {
    let Some(work) = scratch::get() else { return Ok(0) };
    let (headers_len, len, segment_len) = (work.headers_len(), work.len, work.segment_len);
    for index in 0..MAX_SEGMENTS as u32 {
        let offset = index * segment_len;
        if offset >= len {
            break;
        }
        let rest = len - offset;
        // SAFETY: the context is that of the running program. `work` is not used while the function
        // runs. It counts in the map: sums in registers would make each turn of the loop different
        // for the verifier.
        unsafe {
            R::segment(skb.context(), headers_len + offset, segment_len.min(rest), index);
        }
    }
    let Some(work) = scratch::get() else { return Ok(0) };
    store_answers(skb, work)?;
    Ok(work.to_all + work.to_sender + work.to_parent)
}

/// Serves the segment of `len` bytes at `offset`; its answer, if there is one, is written in its
/// place.
///
/// # Safety
///
/// As for [`Skb::new`].
#[inline(always)]
pub unsafe fn segment<R: Role>(ctx: *mut __sk_buff, offset: u32, len: u32, index: u32) -> u64 {
    // SAFETY: the caller vouches for the context.
    let skb = unsafe { Skb::new(ctx) };
    let Some(work) = scratch::get() else { return 0 };
    let served = serve_segment::<R>(&skb, work, offset, len);
    let mut served = served.unwrap_or_else(Served::unanswered);
    let has_answer = !matches!(served.target, Target::Nobody | Target::Host);
    if has_answer && write_answer(&skb, work, offset, len).is_err() {
        served = Served::unanswered(Outcome::SendFailed);
    }
    tables::count(served.outcome);
    let action = served.outcome.action();
    work.segments += 1;
    work.to_all += u32::from(action == Action::Broadcast);
    work.to_sender += u32::from(action == Action::Reply);
    work.to_parent += u32::from(action == Action::Up);
    let kind = work.packet_mut(offset).map_or(0, |packet| packet.header.kind);
    if let Some(answer) = work.answers.get_mut(index as usize) {
        *answer = Answer { action: action as u8, kind };
    }
    0
}

#[inline(always)]
fn serve_segment<R: Role>(
    skb: &Skb,
    work: &mut Scratch,
    offset: u32,
    len: u32,
) -> Result<Served, Outcome> {
    if (len as usize) < HEADER_LEN {
        return Err(Outcome::Truncated);
    }
    if len as usize > MAX_PACKET_LEN {
        return Err(Outcome::BadLength);
    }
    if offset + len > work.loaded_to {
        store_answers(skb, work).map_err(|_| Outcome::SendFailed)?;
        load(skb, work, offset).map_err(|_| Outcome::Truncated)?;
    }
    let (job, has_job) = (work.job, work.has_job != 0);
    let Packet { header, .. } = work.packet_mut(offset).ok_or(Outcome::BadLength)?;
    let number = header.job.get();
    // Rule 6.4.
    if has_job && number != job {
        return Err(Outcome::MixedJobs);
    }
    let served = R::serve(work, offset, len as usize - HEADER_LEN);
    if served.outcome == Outcome::Completed {
        let result = work.packet_mut(offset).ok_or(Outcome::BadLength)?.header;
        work.note_result(&result, work.to_all);
    }
    if served.target == Target::SendersGroup {
        work.to_senders_group = 1;
    }
    if matches!(served.target, Target::SendersGroup | Target::All | Target::Parent { .. }) {
        (work.has_job, work.job) = (1, number);
    }
    Ok(served)
}

/// Copies the segment at `offset`, and as many of the following ones as there is room for.
#[inline(always)]
pub fn load(skb: &Skb, work: &mut Scratch, offset: u32) -> Result<(), i64> {
    let len = work.load_len(work.headers_len() + work.len - offset);
    skb.load_bytes(offset, &raw mut work.loaded, len)?;
    (work.loaded_from, work.loaded_to) = (offset, offset + len);
    Ok(())
}

/// Writes header and payload of the answer over its segment in the superpacket; or leaves that to
/// [`store_answers`], which writes several at once.
#[inline(always)]
fn write_answer(skb: &Skb, work: &mut Scratch, offset: u32, len: u32) -> Result<(), i64> {
    // Needed once for all segments: after the first one it has no effect.
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

/// Finds out who fills in the UDP checksum of what leaves, and the sum that is needed for it.
#[inline(always)]
pub fn note_checksum(skb: &Skb, work: &mut Scratch) {
    if work.is_v6 == 0 {
        note_checksum_over::<Ipv4>(skb, work);
    } else {
        note_checksum_over::<Ipv6>(skb, work);
    }
}

#[inline(always)]
fn note_checksum_over<N: Network>(skb: &Skb, work: &mut Scratch) {
    work.checksum = skb.checksum(work.envelope.of::<N>());
    if N::CHECKSUM_IS_OPTIONAL || work.checksum == Checksum::Offloaded {
        return;
    }
    // The frame is one packet, whose copy is still there.
    let payload_len = (work.len as usize).saturating_sub(HEADER_LEN);
    let Some(Packet { header, payload }) = work.packet_mut(work.headers_len()) else { return };
    // SAFETY: the payload is not used otherwise.
    let payload = unsafe { Lanes::new(&raw mut *payload) };
    let lanes = payload_len.saturating_sub(header.tag_len()) / 4;
    work.sum = sum_of_packet(header, &payload, lanes).unwrap_or(0);
}

/// Rules 6.2 and 6.3: shows the segments of this action, which are so many; the others become
/// FILLER.
#[inline(always)]
pub fn show(skb: &Skb, action: Action, segments: u32) {
    if scratch::get().is_some_and(|work| segments < work.segments) {
        // SAFETY: the context is that of the running program; no scratch memory is in use here.
        unsafe { superpacket_show(skb.context(), action as u32) };
    }
}

// The functions below are global functions of BPF, too.

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
    for (index, answer) in (0..work.segments).zip(&work.answers) {
        work.shown =
            if u32::from(answer.action) == action { answer.kind } else { Kind::Filler as u8 };
        let _ = skb.store(kind + index * work.segment_len, &work.shown);
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
        let offset = index * work.segment_len;
        if offset >= work.len {
            break;
        }
        let Some([flags, ..]) = skb.word((at + offset) as usize) else { break };
        work.shown = flags | flags::CE;
        let _ = skb.store(at + offset, &work.shown);
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
    work.done_header = work.done.header();
    let (at, lanes) = (work.headers_len(), u32::from(work.done.rounds()));
    let behind = at + HEADER_LEN as u32;
    let mut sum = 0;
    for (_, lane) in (0..lanes).zip(&work.done_lanes) {
        sum += lane.get() >> 16;
        sum += lane.get() & 0xFFFF;
    }
    work.sum = sum_of_done(&work.done_header, sum);
    work.is_done = 1;
    let stored = skb
        .store(at, &work.done_header)
        .and_then(|()| skb.store_lanes(behind, &raw const work.done_lanes, 4 * lanes))
        .and_then(|()| skb.cut(behind + 4 * lanes));
    u64::from(stored.is_err())
}
