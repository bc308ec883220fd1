//! A combiner at tc ingress: superpackets stay whole on their way up and down. On the way up,
//! segments that do not go on become FILLER. On the way down only the first is read, since all
//! segments to one port go the same way.

use core::mem::offset_of;

use aya_ebpf::bindings::{__sk_buff, TC_ACT_SHOT, TC_ACT_UNSPEC};
use aya_ebpf::helpers::bpf_redirect;
use switchml_protocol::aggregator::Members;
use switchml_protocol::frame::{Envelope, Ipv4, Ipv6, Network};
use switchml_protocol::header::{HEADER_LEN, Header, Kind, flags};
use switchml_protocol::node::{self, Served, Target};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::shell::{self, Heading, Hook};

use crate::bundle::{self, Role};
use crate::payload::Lanes;
use crate::scratch::{self, MAX_PACKET_LEN, MAX_SEGMENTS, Packet, Scratch};
use crate::skb::Skb;
use crate::tables::{self, Maps};

/// Serves one superpacket, or one packet, and returns the verdict.
#[inline(always)]
pub fn serve(skb: &Skb) -> i32 {
    // SAFETY: the context is that of the running program.
    match unsafe { relay_open(skb.context()) } {
        UP => up(skb),
        // SAFETY: as above.
        DOWN => unsafe { relay_down(skb.context()) as i32 },
        number => {
            let outcome = Served::from_word(number).outcome;
            tables::count(outcome);
            if outcome.action() == Action::Pass { TC_ACT_UNSPEC } else { TC_ACT_SHOT }
        }
    }
}

/// Values that [`relay_open`] returns for a frame that is served: no outcome has such a number.
const UP: u64 = 0x100;
const DOWN: u64 = 0x200;

#[inline(always)]
fn up(skb: &Skb) -> i32 {
    match bundle::serve_segments::<Combiner>(skb) {
        Ok(0) => TC_ACT_SHOT,
        Err(_) => {
            tables::count(Outcome::SendFailed);
            TC_ACT_SHOT
        }
        // SAFETY: as above.
        _ => unsafe { relay_up(skb.context()) as i32 },
    }
}

/// Finds out whether the frame is for the combiner, and notes its contents. Returns the direction
/// of the frame, or the number of an outcome.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn relay_open(ctx: *mut __sk_buff) -> u64 {
    // SAFETY: the caller vouches for the context.
    let skb = unsafe { Skb::new(ctx) };
    let opened = if skb.is::<Ipv6>() { open::<Ipv6>(&skb) } else { open::<Ipv4>(&skb) };
    match opened {
        Ok(Heading::Up) => UP,
        Ok(Heading::Down) => DOWN,
        Err(outcome) => outcome as u64,
    }
}

#[inline(always)]
fn open<N: Network>(skb: &Skb) -> Result<Heading, Outcome> {
    let work = scratch::get().ok_or(Outcome::NotOurs)?;
    let envelope = work.envelope.of::<N>();
    skb.load(0, envelope).map_err(|_| Outcome::NotOurs)?;
    let first = first_packet::<N>(skb);
    let (origin, payload_len, heading) =
        shell::open_combiner(&Maps, skb, envelope, first as usize)?;
    work.begin::<N>(origin, payload_len, skb.segment_len());
    work.first = first;
    Ok(heading)
}

/// The offset of the first segment that is no FILLER; of a FILLER, only the field `kind` has a
/// meaning.
#[inline(always)]
fn first_packet<N: Network>(skb: &Skb) -> u32 {
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

/// The role of a combiner.
struct Combiner;

impl Role for Combiner {
    #[inline(always)]
    unsafe fn segment(ctx: *mut __sk_buff, offset: u32, len: u32, index: u32) {
        // SAFETY: the caller vouches for the context.
        unsafe { relay_segment(ctx, offset, len, index) };
    }

    #[inline(always)]
    fn serve(work: &mut Scratch, offset: u32, payload_len: usize) -> Served {
        let (origin, is_first) = (work.origin, work.to_parent == 0);
        let Some(Packet { header, payload }) = work.packet_mut(offset) else {
            return Served::unanswered(Outcome::BadLength);
        };
        let is_partial = header.is_partial();
        // SAFETY: the payload is not used otherwise.
        let lanes = unsafe { Lanes::new(&raw mut *payload) };
        let served = match node::admit(&Maps, &Maps, &origin, header, &lanes, payload_len) {
            Ok(below) => Served::from_word(relay_combine_copied(offset, below)),
            Err(served) => served,
        };
        // Another combiner's partial sums may come from any port, contributions from their rank's.
        if let Target::Parent { from_port, .. } = served.target
            && (is_first || !is_partial)
        {
            work.from_port = from_port;
        }
        served
    }
}

/// Serves the packet at `offset`, which has been admitted, in its copy. Returns a [`Served`].
///
/// A global function of BPF: the verifier checks it once, on its own, not along every path through
/// admission.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn relay_combine_copied(offset: u32, below: u32) -> u64 {
    let Some(Packet { header, payload }) = scratch::get().and_then(|work| work.packet_mut(offset))
    else {
        return Served::unanswered(Outcome::BadLength).to_word();
    };
    // SAFETY: the payload is not used otherwise.
    let mut payload = unsafe { Lanes::new(&raw mut *payload) };
    node::combine(&Maps, &Maps, below, header, &mut payload).to_word()
}

/// Serves the segment of `len` bytes at `offset`; a packet that goes on is written in its place.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn relay_segment(
    ctx: *mut __sk_buff,
    offset: u32,
    len: u32,
    index: u32,
) -> u64 {
    // SAFETY: the caller vouches for the context.
    unsafe { bundle::segment::<Combiner>(ctx, offset, len, index) }
}

/// Sends segments that go on to the parent, or HELLOs to the group. Returns the verdict.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn relay_up(ctx: *mut __sk_buff) -> u64 {
    // SAFETY: the caller vouches for the context.
    let skb = unsafe { Skb::new(ctx) };
    let Some(work) = scratch::get() else { return TC_ACT_SHOT as u64 };
    if work.is_v6 == 0 {
        bundle::note_checksum::<Ipv4>(&skb, work);
    } else {
        bundle::note_checksum::<Ipv6>(&skb, work);
    }
    let (segments, to_parent) = (work.segments, work.to_parent);
    if to_parent > 0 && to_parent < segments {
        // SAFETY: as above.
        unsafe { bundle::bundle_show(ctx, Action::Up as u32) };
    }
    let verdict = if to_parent == 0 {
        bundle::send_back(&skb, work)
    } else if work.is_v6 == 0 {
        send_up::<Ipv4>(&skb, work)
    } else {
        send_up::<Ipv6>(&skb, work)
    };
    if verdict == TC_ACT_SHOT {
        tables::count(Outcome::SendFailed);
    }
    verdict as u64
}

#[inline(always)]
fn send_up<N: Network>(skb: &Skb, work: &mut Scratch) -> i32 {
    let Some(uplink) = tables::uplink(work.job) else { return TC_ACT_SHOT };
    work.answer = work.envelope;
    let answer = work.answer.of::<N>();
    answer.mac_destination = uplink.mac;
    answer.destination_port.set(work.from_port);
    answer.send_bundle_to(&uplink.parent, uplink.address, work.checksum, work.sum);
    send(skb, answer, uplink.parent.ifindex)
}

#[inline(always)]
fn send<N: Network>(skb: &Skb, answer: &Envelope<N>, port: u32) -> i32 {
    if skb.store(0, answer).is_err() {
        return TC_ACT_SHOT;
    }
    // SAFETY: no pointer is passed.
    unsafe { bpf_redirect(port, 0) as i32 }
}

/// Sends the parent's superpacket to the ranks below that it is for. Returns the verdict.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn relay_down(ctx: *mut __sk_buff) -> u64 {
    // SAFETY: the caller vouches for the context.
    let skb = unsafe { Skb::new(ctx) };
    let Some(work) = scratch::get() else { return TC_ACT_SHOT as u64 };
    let served = if work.is_v6 == 0 {
        serve_down::<Ipv4>(&skb, work)
    } else {
        serve_down::<Ipv6>(&skb, work)
    };
    let Served { outcome, target } = served.unwrap_or_else(Served::unanswered);
    if target == Target::Nobody {
        tables::count(outcome);
        return TC_ACT_SHOT as u64;
    }
    let packets = work.len.div_ceil(work.segment_len.max(1));
    tables::count_all(outcome, packets);
    if work.origin.congested {
        // SAFETY: as above.
        unsafe { relay_mark(ctx) };
    }
    let verdict = match target {
        Target::All => bundle::send_to_all(&skb, work, false),
        _ if work.is_v6 == 0 => send_down::<Ipv4>(&skb, work),
        _ => send_down::<Ipv6>(&skb, work),
    };
    if verdict == TC_ACT_SHOT {
        tables::count(Outcome::SendFailed);
    }
    verdict as u64
}

/// Serves the superpacket's first packet. Its headers are then set as if it had come to the
/// combiner's data port.
#[inline(always)]
fn serve_down<N: Network>(skb: &Skb, work: &mut Scratch) -> Result<Served, Outcome> {
    let first = work.first;
    let begin = first.wrapping_sub(work.headers_len());
    // A superpacket of FILLER alone has no packet to serve.
    if begin >= work.len {
        return Err(Outcome::BadKind);
    }
    let len = work.segment_len.min(work.len - begin) as usize;
    if len < HEADER_LEN {
        return Err(Outcome::Truncated);
    }
    if len > MAX_PACKET_LEN {
        return Err(Outcome::BadLength);
    }
    bundle::load(skb, work, first).map_err(|_| Outcome::Truncated)?;
    let (origin, port) = (work.origin, work.envelope.of::<N>().destination_port.get());
    let Packet { header, .. } = work.packet_mut(first).ok_or(Outcome::BadLength)?;
    let (number, rank) = (header.job.get(), header.rank.get());
    let served = node::down(&Maps, &Maps, &origin, port, header, len - HEADER_LEN);
    let base = tables::uplink(number).ok_or(Outcome::UnknownJob)?.port;
    work.envelope.of::<N>().destination_port = base;
    (work.job, work.rank) = (number, rank);
    bundle::note_checksum::<N>(skb, work);
    Ok(served)
}

#[inline(always)]
fn send_down<N: Network>(skb: &Skb, work: &mut Scratch) -> i32 {
    let Some(job) = tables::job(work.job) else { return TC_ACT_SHOT };
    let Some(place) = Maps.home(work.job, work.rank) else { return TC_ACT_SHOT };
    work.answer = work.envelope;
    let answer = work.answer.of::<N>();
    answer.send_bundle_to(&place, job.address, work.checksum, work.sum);
    send(skb, answer, place.ifindex)
}

/// Rule 5.5, of each segment.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn relay_mark(ctx: *mut __sk_buff) -> u64 {
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
