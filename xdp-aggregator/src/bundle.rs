//! Superpackets taken whole at tc ingress: what UDP_SEGMENT, or GRO, made of a run of packets (rule
//! 6.1).
//!
//! Each segment is served by itself, from a copy in a per-CPU map, because most of the payload is
//! in pages that a program cannot reach. Answers are written back into the superpacket, which tc
//! cannot shorten: segments without an answer are sent along as FILLER.

use core::mem::offset_of;

use aya_ebpf::bindings::{__sk_buff, TC_ACT_SHOT, TC_ACT_UNSPEC};
use aya_ebpf::helpers::{bpf_clone_redirect, bpf_redirect};
use switchml_protocol::fanout::MAX_PLACES;
use switchml_protocol::frame::{Checksum, Ipv4, Ipv6, Network, sum_of_done, sum_of_packet};
use switchml_protocol::header::{HEADER_LEN, Header, Kind};
use switchml_protocol::job::Binding;
use switchml_protocol::node::{self, Served, Target};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::shell::{self, Hook};

use crate::payload::Lanes;
use crate::scratch::{self, Answer, MAX_PACKET_LEN, MAX_SEGMENTS, Packet, Scratch};
use crate::skb::Skb;
use crate::tables::{self, Maps};

/// Serves one superpacket, or one packet, and returns the verdict.
#[inline(always)]
pub fn serve(skb: &Skb) -> i32 {
    let is_v6 = skb.is::<Ipv6>();
    let opened = if is_v6 { open::<Ipv6>(skb) } else { open::<Ipv4>(skb) };
    if let Err(outcome) = opened {
        tables::count(outcome);
        return if outcome.action() == Action::Pass { TC_ACT_UNSPEC } else { TC_ACT_SHOT };
    }
    match serve_segments::<Root>(skb) {
        Ok(0) => TC_ACT_SHOT,
        Err(_) => {
            tables::count(Outcome::SendFailed);
            TC_ACT_SHOT
        }
        // SAFETY: the context is that of the running program.
        _ => unsafe { bundle_answer(skb.context()) as i32 },
    }
}

/// The role that serves segments: the root or a combiner.
pub trait Role {
    /// See [`segment`].
    ///
    /// # Safety
    ///
    /// As for [`Skb::new`].
    unsafe fn segment(ctx: *mut __sk_buff, offset: u32, len: u32, index: u32);

    /// Serves the packet at `offset`, `payload_len` bytes behind its header, whose copy is in
    /// `work`.
    fn serve(work: &mut Scratch, offset: u32, payload_len: usize) -> Served;
}

/// An aggregator that has slots.
struct Root;

impl Role for Root {
    #[inline(always)]
    unsafe fn segment(ctx: *mut __sk_buff, offset: u32, len: u32, index: u32) {
        // SAFETY: the caller vouches for the context.
        unsafe { bundle_segment(ctx, offset, len, index) };
    }

    #[inline(always)]
    fn serve(work: &mut Scratch, offset: u32, payload_len: usize) -> Served {
        let origin = work.origin;
        let Some(Packet { header, payload }) = work.packet_mut(offset) else {
            return Served::unanswered(Outcome::BadLength);
        };
        // SAFETY: the payload is not used otherwise.
        let mut payload = unsafe { Lanes::new(&raw mut *payload) };
        node::serve(&Maps, &Maps, &origin, header, &mut payload, payload_len)
    }
}

/// Finds out whether the frame is for the aggregator, and notes its contents in the scratch memory.
#[inline(always)]
fn open<N: Network>(skb: &Skb) -> Result<(), Outcome> {
    let work = scratch::get().ok_or(Outcome::NotOurs)?;
    let envelope = work.envelope.of::<N>();
    skb.load(0, envelope).map_err(|_| Outcome::NotOurs)?;
    let (origin, payload_len) = shell::open(skb, envelope)?;
    work.begin::<N>(origin, payload_len, skb.segment_len());
    Ok(())
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
    Ok(work.to_group + work.to_sender + work.to_parent)
}

// The functions below are global functions of BPF: the verifier checks each once, on its own,
// instead of along every path through the loop that calls it.

/// Serves the segment of `len` bytes at `offset`; its answer, if there is one, is written in its
/// place.
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
    unsafe { segment::<Root>(ctx, offset, len, index) }
}

/// [`bundle_segment`] for the role `R`.
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
    work.to_group += u32::from(action == Action::Broadcast);
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
        work.note_result(&result, work.to_group);
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
    if work.is_v6 == 0 {
        note_checksum::<Ipv4>(&skb, work);
    } else {
        note_checksum::<Ipv6>(&skb, work);
    }
    let (segments, to_group, to_sender) = (work.segments, work.to_group, work.to_sender);
    let mut verdict = TC_ACT_SHOT;
    if to_group > 0 {
        if to_group < segments {
            // SAFETY: as above.
            unsafe { bundle_show(ctx, Action::Broadcast as u32) };
        }
        let is_addressed = work.has_done != 0 && to_sender == 0;
        verdict = if is_addressed {
            send_to_audience(&skb)
        } else {
            send_to_all(&skb, work, to_sender > 0)
        };
    }
    if to_sender > 0 {
        if to_sender < segments {
            // SAFETY: as above.
            unsafe { bundle_show(ctx, Action::Reply as u32) };
        }
        verdict = send_back(&skb, work);
    }
    if verdict == TC_ACT_SHOT {
        tables::count(Outcome::SendFailed);
    }
    verdict as u64
}

/// Finds out who fills in the answer's UDP checksum, and the sum that is needed for it.
#[inline(always)]
pub fn note_checksum<N: Network>(skb: &Skb, work: &mut Scratch) {
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

/// Sends the superpacket to all places of the job; keeps it if more is to be sent.
#[inline(always)]
pub fn send_to_all(skb: &Skb, work: &Scratch, keep: bool) -> i32 {
    let Some(receivers) = tables::receivers(work.job) else { return TC_ACT_SHOT };
    // The last place gets the superpacket itself, unless it is kept.
    let mut last = 0;
    for index in 0..MAX_PLACES {
        let Some(place) = receivers.places.get(index) else { break };
        if place.ifindex == 0 {
            break;
        }
        if last != 0 {
            clone_to(skb, last);
        }
        // Change the headers only after the clone, which needs the old ones. SAFETY: the context is
        // that of the running program; `work` is not used meanwhile.
        if unsafe { bundle_address(skb.context(), index as u32) } != 0 {
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

/// Rule 9.4: sends the superpacket to the places in its audience, and a DONE to the others.
#[inline(always)]
fn send_to_audience(skb: &Skb) -> i32 {
    let ctx = skb.context();
    // SAFETY: the context is that of the running program, and nothing of this CPU's memory is in
    // use here.
    let last = unsafe {
        // Without other places, the last place gets the superpacket itself.
        match bundle_clone(ctx, 1) {
            last if last >> 32 == 0 => last,
            last => {
                if last as u32 != 0 {
                    clone_to(skb, last as u32);
                }
                if bundle_shorten(ctx) != 0 {
                    return TC_ACT_SHOT;
                }
                bundle_clone(ctx, 0)
            }
        }
    };
    match last as u32 {
        0 => TC_ACT_SHOT,
        // SAFETY: no pointer is passed.
        last => unsafe { bpf_redirect(last, 0) as i32 },
    }
}

/// Sends the superpacket to each place in its audience, or outside of it if `wanted` is 0, except
/// the last. The headers are then those for the last place. Returns the last place's port, and in
/// the upper half 1 if there are places on the other side.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn bundle_clone(ctx: *mut __sk_buff, wanted: u32) -> u64 {
    // SAFETY: the caller vouches for the context.
    let skb = unsafe { Skb::new(ctx) };
    let Some(work) = scratch::get() else { return 0 };
    let Some(receivers) = tables::receivers(work.job) else { return 0 };
    let audience = work.done.audience();
    let (mut last, mut others) = (0, 0);
    for index in 0..MAX_PLACES {
        let Some(place) = receivers.places.get(index) else { break };
        if place.ifindex == 0 {
            break;
        }
        let ranks = receivers.ranks.get(index).copied().unwrap_or(0);
        if u32::from(audience.has_any(ranks)) != wanted {
            others = 1;
            continue;
        }
        if last != 0 {
            clone_to(&skb, last);
        }
        // SAFETY: as above; `work` is not used meanwhile.
        if unsafe { bundle_address(ctx, index as u32) } != 0 {
            return 0;
        }
        last = place.ifindex;
    }
    others << 32 | u64::from(last)
}

/// Makes the superpacket a DONE of its RESULTs, without the headers around it; 0 if that is done.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn bundle_shorten(ctx: *mut __sk_buff) -> u64 {
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

/// Gives the superpacket the headers of a copy for the job's place `index`; 0 if that is done.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn bundle_address(ctx: *mut __sk_buff, index: u32) -> u64 {
    // SAFETY: the caller vouches for the context.
    let skb = unsafe { Skb::new(ctx) };
    let Some(work) = scratch::get() else { return 1 };
    let Some(receivers) = tables::receivers(work.job) else { return 1 };
    let Some(place) = receivers.places.get(index as usize) else { return 1 };
    let is_sent = if work.is_v6 == 0 {
        send_to::<Ipv4>(&skb, work, place)
    } else {
        send_to::<Ipv6>(&skb, work, place)
    };
    u64::from(is_sent.is_none())
}

#[inline(always)]
fn send_to<N: Network>(skb: &Skb, work: &mut Scratch, place: &Binding) -> Option<()> {
    let job = tables::job(work.job)?;
    work.answer = work.envelope;
    let answer = work.answer.of::<N>();
    if work.is_done == 0 {
        answer.send_bundle_to(place, job.address, work.checksum, work.sum);
    } else {
        let lanes = work.done.rounds();
        answer.send_instead(place, job.address, lanes, work.checksum, work.sum);
    }
    skb.store(0, answer).ok()
}

#[inline(always)]
fn clone_to(skb: &Skb, port: u32) -> i32 {
    // SAFETY: the context is that of the running program; no reference into the packet is held.
    unsafe { bpf_clone_redirect(skb.context(), port, 0) as i32 }
}

/// Sends the superpacket back to where it came from, or by that port to the job's group.
#[inline(always)]
pub fn send_back(skb: &Skb, work: &mut Scratch) -> i32 {
    let is_addressed = if work.is_v6 != 0 {
        turn_back::<Ipv6>(skb, work)
    } else if work.to_senders_group == 0 {
        turn_back::<Ipv4>(skb, work)
    } else {
        tables::job(work.job)
            .and_then(|job| send_to::<Ipv4>(skb, work, &job.group_at(skb.ifindex())))
    };
    if is_addressed.is_none() {
        return TC_ACT_SHOT;
    }
    // SAFETY: no pointer is passed.
    unsafe { bpf_redirect(skb.ifindex(), 0) as i32 }
}

#[inline(always)]
fn turn_back<N: Network>(skb: &Skb, work: &mut Scratch) -> Option<()> {
    work.answer = work.envelope;
    let answer = work.answer.of::<N>();
    answer.turn_bundle_back(work.checksum, work.sum);
    skb.store(0, answer).ok()
}

/// Rules 6.2 and 6.3: sets the kind of each segment: its answer's kind if the answer's action is
/// `action`, else FILLER.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn bundle_show(ctx: *mut __sk_buff, action: u32) -> u64 {
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
