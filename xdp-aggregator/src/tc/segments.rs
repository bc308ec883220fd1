//! The packets of a superpacket, one after the other.
//!
//! Each segment is served by itself, from a copy in a per-CPU map, because most of the payload is
//! in pages that a program cannot reach. Answers are written back into the superpacket, which tc
//! cannot shorten: segments without an answer are sent along as FILLER.

use aya_ebpf::bindings::__sk_buff;
use switchml_protocol::node::{self, Served, Target};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::packet::Packet;
use switchml_protocol::wire::header::HEADER_LEN;

use super::scratch::{self, Answer, MAX_PACKET_LEN, MAX_SEGMENTS, Scratch, Segment};
use super::skb::Skb;
use crate::payload::Lanes;
use crate::tables::{self, Maps};

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

/// An aggregator that has slots.
pub struct Root;

impl Role for Root {
    #[inline(always)]
    unsafe fn segment(ctx: *mut __sk_buff, offset: u32, len: u32, index: u32) {
        // SAFETY: the caller vouches for the context.
        unsafe { tc_segment(ctx, offset, len, index) };
    }

    #[inline(always)]
    fn serve(work: &mut Scratch, offset: u32, payload_len: usize) -> Served {
        let origin = work.arrived.origin;
        let Some(Segment { header, payload }) = work.segment_mut(offset) else {
            return Served::unanswered(Outcome::BadLength);
        };
        // SAFETY: the payload is not used otherwise.
        let mut payload = unsafe { Lanes::new(&raw mut *payload) };
        node::serve(&Maps, &Maps, &origin, &mut Packet::new(header, &mut payload, payload_len))
    }
}

/// An aggregator between ranks and a root.
pub struct Combiner;

impl Role for Combiner {
    #[inline(always)]
    unsafe fn segment(ctx: *mut __sk_buff, offset: u32, len: u32, index: u32) {
        // SAFETY: the caller vouches for the context.
        unsafe { tc_segment_up(ctx, offset, len, index) };
    }

    #[inline(always)]
    fn serve(work: &mut Scratch, offset: u32, payload_len: usize) -> Served {
        let is_first = work.tally.to_parent == 0;
        let is_partial = work.segment_mut(offset).is_some_and(|packet| packet.header.is_partial());
        let served = match Served::or_admitted(tc_admit(offset, payload_len as u32)) {
            Ok(below) => Served::from_word(tc_combine(offset, below)),
            Err(served) => served,
        };
        // Another combiner's partial sums may come from any port, contributions from their rank's.
        if let Target::Parent { from_port, .. } = served.target
            && (is_first || !is_partial)
        {
            work.leaving.port.set(from_port);
        }
        served
    }
}

/// Serves one segment after the other, leaving answers in their places. Returns the number of
/// answers.
#[inline(always)]
pub fn serve_segments<R: Role>(skb: &Skb) -> Result<u32, i64> {
    let Some(work) = scratch::get() else { return Ok(0) };
    let (headers_len, len, segment_len) =
        (work.headers_len(), work.arrived.len, work.arrived.segment_len);
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
    Ok(work.tally.to_all + work.tally.to_sender + work.tally.to_parent)
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
    work.tally.segments += 1;
    work.tally.to_all += u32::from(action == Action::Broadcast);
    work.tally.to_sender += u32::from(action == Action::Reply);
    work.tally.to_parent += u32::from(action == Action::Up);
    let kind = work.segment_mut(offset).map_or(0, |packet| packet.header.kind);
    if let Some(answer) = work.tally.answers.get_mut(index as usize) {
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
    if offset + len > work.loaded.to {
        store_answers(skb, work).map_err(|_| Outcome::SendFailed)?;
        load(skb, work, offset).map_err(|_| Outcome::Truncated)?;
    }
    let (job, has_job) = (work.tally.job, work.tally.has_job != 0);
    let Segment { header, .. } = work.segment_mut(offset).ok_or(Outcome::BadLength)?;
    let number = header.job.get();
    // Rule 6.4.
    if has_job && number != job {
        return Err(Outcome::MixedJobs);
    }
    let served = R::serve(work, offset, len as usize - HEADER_LEN);
    if served.outcome == Outcome::Completed {
        let result = work.segment_mut(offset).ok_or(Outcome::BadLength)?.header;
        work.note_result(&result, work.tally.to_all);
    }
    if served.target == Target::SendersGroup {
        work.tally.to_senders_group = 1;
    }
    if matches!(served.target, Target::SendersGroup | Target::All | Target::Parent { .. }) {
        (work.tally.has_job, work.tally.job) = (1, number);
    }
    Ok(served)
}

/// Copies the segment at `offset`, and as many of the following ones as there is room for.
#[inline(always)]
pub fn load(skb: &Skb, work: &mut Scratch, offset: u32) -> Result<(), i64> {
    let len = work.load_len(work.headers_len() + work.arrived.len - offset);
    skb.load_bytes(offset, &raw mut work.loaded.bytes, len)?;
    (work.loaded.from, work.loaded.to) = (offset, offset + len);
    Ok(())
}

/// Writes header and payload of the answer over its segment in the superpacket; or leaves that to
/// [`store_answers`], which writes several at once.
#[inline(always)]
fn write_answer(skb: &Skb, work: &mut Scratch, offset: u32, len: u32) -> Result<(), i64> {
    // Needed once for all segments: after the first one it has no effect.
    skb.make_writable()?;
    if offset == work.loaded.from + work.loaded.unstored {
        work.loaded.unstored += len;
        return Ok(());
    }
    skb.store_segment(offset, work.segment_mut(offset).ok_or(-1)?, len)
}

/// Writes the answers that the superpacket lacks into it.
#[inline(always)]
fn store_answers(skb: &Skb, work: &mut Scratch) -> Result<(), i64> {
    if work.loaded.unstored > 0 {
        skb.store_bytes(work.loaded.from, &raw const work.loaded.bytes, work.loaded.unstored)?;
        work.loaded.unstored = 0;
    }
    Ok(())
}

/// Serves the superpacket's first packet. It leaves as if it had come to the combiner's data port.
#[inline(always)]
pub fn serve_down(skb: &Skb, work: &mut Scratch) -> Result<Served, Outcome> {
    let first = work.arrived.first;
    let begin = first.wrapping_sub(work.headers_len());
    // A superpacket of FILLER alone has no packet to serve.
    if begin >= work.arrived.len {
        return Err(Outcome::BadKind);
    }
    let len = work.arrived.segment_len.min(work.arrived.len - begin) as usize;
    if len < HEADER_LEN {
        return Err(Outcome::Truncated);
    }
    if len > MAX_PACKET_LEN {
        return Err(Outcome::BadLength);
    }
    load(skb, work, first).map_err(|_| Outcome::Truncated)?;
    let (origin, port) = (work.arrived.origin, work.leaving.port.get());
    let Segment { header, payload } = work.segment_mut(first).ok_or(Outcome::BadLength)?;
    let (job, rank) = (header.job.get(), header.rank.get());
    let mut packet = Packet::new(header, payload, len - HEADER_LEN);
    let served = node::down(&Maps, &Maps, &origin, port, &mut packet);
    work.leaving.port = tables::uplink(job).ok_or(Outcome::UnknownJob)?.port;
    (work.tally.job, work.tally.rank) = (job, rank);
    Ok(served)
}

// Global functions of BPF.

/// Serves the segment of `len` bytes at `offset` as a root.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn tc_segment(ctx: *mut __sk_buff, offset: u32, len: u32, index: u32) -> u64 {
    // SAFETY: the caller vouches for the context.
    unsafe { segment::<Root>(ctx, offset, len, index) }
}

/// Serves the segment of `len` bytes at `offset` as a combiner.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn tc_segment_up(
    ctx: *mut __sk_buff,
    offset: u32,
    len: u32,
    index: u32,
) -> u64 {
    // SAFETY: the caller vouches for the context.
    unsafe { segment::<Combiner>(ctx, offset, len, index) }
}

/// Admits the packet at `offset`, with so many bytes behind its header, in its copy. Returns what
/// [`Served::or_admitted`] reads.
///
/// Apart from [`tc_combine`], in which its stack is free again.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn tc_admit(offset: u32, payload_len: u32) -> u64 {
    let none = Served::unanswered(Outcome::BadLength).to_word();
    let Some(work) = scratch::get() else { return none };
    let origin = work.arrived.origin;
    let Some(Segment { header, payload }) = work.segment_mut(offset) else { return none };
    // SAFETY: the payload is not used otherwise.
    let mut payload = unsafe { Lanes::new(&raw mut *payload) };
    let mut packet = Packet::new(header, &mut payload, payload_len as usize);
    let admitted = node::admit(&Maps, &Maps, &origin, &mut packet);
    Served::word_of(admitted)
}

/// Serves the packet at `offset`, which has been admitted, in its copy. Returns a [`Served`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn tc_combine(offset: u32, below: u32) -> u64 {
    let Some(Segment { header, payload }) =
        scratch::get().and_then(|work| work.segment_mut(offset))
    else {
        return Served::unanswered(Outcome::BadLength).to_word();
    };
    // SAFETY: the payload is not used otherwise.
    let mut payload = unsafe { Lanes::new(&raw mut *payload) };
    node::combine(&Maps, &Maps, below, &mut Packet::new(header, &mut payload, 0)).to_word()
}
