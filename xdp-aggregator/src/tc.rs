//! The node at tc ingress: opens superpackets, has [`crate::superpacket`] serve their segments, and
//! sends what became of them to its [`Target`].
//!
//! A superpacket stays whole. On its way down from a combiner's parent only its first packet is
//! read, since all segments to one port go the same way.

use aya_ebpf::bindings::{__sk_buff, TC_ACT_SHOT, TC_ACT_UNSPEC};
use aya_ebpf::helpers::{bpf_clone_redirect, bpf_redirect};
use switchml_protocol::bpf_types::fanout::MAX_PLACES;
use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::node::frame::{Ipv4, Ipv6, Network};
use switchml_protocol::node::ingress::{self, Direction, Hook};
use switchml_protocol::node::{self, Served, Target};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::root::admission::Members;
use switchml_protocol::wire::header::HEADER_LEN;
use switchml_protocol::wire::ip::Ip;

use crate::payload::Lanes;
use crate::scratch::{self, MAX_PACKET_LEN, Packet, Scratch};
use crate::skb::Skb;
use crate::superpacket::{self, Role};
use crate::tables::{self, Maps};

/// Serves one superpacket, or one packet, as a root. Returns the verdict.
#[inline(always)]
pub fn serve_root(skb: &Skb) -> i32 {
    let opened = if skb.is::<Ipv6>() { open::<Ipv6>(skb) } else { open::<Ipv4>(skb) };
    match opened {
        Ok(()) => serve_segments::<Root>(skb),
        Err(outcome) => leave_alone(outcome),
    }
}

/// Serves one superpacket, or one packet, as a combiner. Returns the verdict.
#[inline(always)]
pub fn serve_combiner(skb: &Skb) -> i32 {
    // SAFETY: the context is that of the running program.
    match unsafe { tc_open(skb.context()) } {
        UP => serve_segments::<Combiner>(skb),
        // SAFETY: as above.
        DOWN => unsafe { tc_down(skb.context()) as i32 },
        word => leave_alone(Served::from_word(word).outcome),
    }
}

/// Counts a superpacket that is not served, and passes it on or drops it.
#[inline(always)]
fn leave_alone(outcome: Outcome) -> i32 {
    tables::count(outcome);
    if outcome.action() == Action::Pass { TC_ACT_UNSPEC } else { TC_ACT_SHOT }
}

#[inline(always)]
fn serve_segments<R: Role>(skb: &Skb) -> i32 {
    match superpacket::serve_segments::<R>(skb) {
        Ok(0) => TC_ACT_SHOT,
        // SAFETY: the context is that of the running program.
        Ok(_) => unsafe { tc_send(skb.context()) as i32 },
        Err(_) => {
            tables::count(Outcome::SendFailed);
            TC_ACT_SHOT
        }
    }
}

/// Finds out whether the frame is for the root, and notes its contents in the scratch memory.
#[inline(always)]
fn open<N: Network>(skb: &Skb) -> Result<(), Outcome> {
    let work = scratch::get().ok_or(Outcome::NotOurs)?;
    let envelope = work.envelope.of::<N>();
    skb.load(0, envelope).map_err(|_| Outcome::NotOurs)?;
    let (origin, payload_len) = ingress::open(skb, envelope)?;
    work.begin::<N>(origin, payload_len, skb.segment_len());
    Ok(())
}

/// An aggregator that has slots.
struct Root;

impl Role for Root {
    #[inline(always)]
    unsafe fn segment(ctx: *mut __sk_buff, offset: u32, len: u32, index: u32) {
        // SAFETY: the caller vouches for the context.
        unsafe { tc_segment(ctx, offset, len, index) };
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

/// An aggregator between ranks and a root.
struct Combiner;

impl Role for Combiner {
    #[inline(always)]
    unsafe fn segment(ctx: *mut __sk_buff, offset: u32, len: u32, index: u32) {
        // SAFETY: the caller vouches for the context.
        unsafe { tc_segment_up(ctx, offset, len, index) };
    }

    #[inline(always)]
    fn serve(work: &mut Scratch, offset: u32, payload_len: usize) -> Served {
        let is_first = work.to_parent == 0;
        let is_partial = work.packet_mut(offset).is_some_and(|packet| packet.header.is_partial());
        let served = match Served::or_admitted(tc_admit(offset, payload_len as u32)) {
            Ok(below) => Served::from_word(tc_combine(offset, below)),
            Err(served) => served,
        };
        // Another combiner's partial sums may come from any port, contributions from their rank's.
        if let Target::Parent { from_port, .. } = served.target
            && (is_first || !is_partial)
        {
            work.way.port.set(from_port);
        }
        served
    }
}

// The functions below are global functions of BPF: the verifier checks each once, on its own,
// instead of along every path to its call.

/// Serves the segment of `len` bytes at `offset` as a root.
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn tc_segment(ctx: *mut __sk_buff, offset: u32, len: u32, index: u32) -> u64 {
    // SAFETY: the caller vouches for the context.
    unsafe { superpacket::segment::<Root>(ctx, offset, len, index) }
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
    unsafe { superpacket::segment::<Combiner>(ctx, offset, len, index) }
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
    let origin = work.origin;
    let Some(Packet { header, payload }) = work.packet_mut(offset) else { return none };
    // SAFETY: the payload is not used otherwise.
    let lanes = unsafe { Lanes::new(&raw mut *payload) };
    let admitted = node::admit(&Maps, &Maps, &origin, header, &lanes, payload_len as usize);
    Served::word_of(admitted)
}

/// Serves the packet at `offset`, which has been admitted, in its copy. Returns a [`Served`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn tc_combine(offset: u32, below: u32) -> u64 {
    let Some(Packet { header, payload }) = scratch::get().and_then(|work| work.packet_mut(offset))
    else {
        return Served::unanswered(Outcome::BadLength).to_word();
    };
    // SAFETY: the payload is not used otherwise.
    let mut payload = unsafe { Lanes::new(&raw mut *payload) };
    node::combine(&Maps, &Maps, below, header, &mut payload).to_word()
}

/// What [`tc_open`] returns for a frame that is served: no [`Served`] has such a word.
const UP: u64 = 1 << 48;
const DOWN: u64 = 2 << 48;

/// Finds out whether the frame is for the combiner, and notes its contents. Returns the direction
/// of the frame, or a [`Served`].
///
/// # Safety
///
/// As for [`Skb::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn tc_open(ctx: *mut __sk_buff) -> u64 {
    // SAFETY: the caller vouches for the context.
    let skb = unsafe { Skb::new(ctx) };
    let opened = match skb.is::<Ipv6>() {
        true => open_combiner::<Ipv6>(&skb),
        false => open_combiner::<Ipv4>(&skb),
    };
    match opened {
        Ok(Direction::Up) => UP,
        Ok(Direction::Down) => DOWN,
        Err(outcome) => Served::unanswered(outcome).to_word(),
    }
}

#[inline(always)]
fn open_combiner<N: Network>(skb: &Skb) -> Result<Direction, Outcome> {
    let work = scratch::get().ok_or(Outcome::NotOurs)?;
    let envelope = work.envelope.of::<N>();
    skb.load(0, envelope).map_err(|_| Outcome::NotOurs)?;
    let first = superpacket::first_packet::<N>(skb);
    let (origin, payload_len, direction) =
        ingress::open_combiner(&Maps, skb, envelope, first as usize)?;
    work.begin::<N>(origin, payload_len, skb.segment_len());
    work.first = first;
    Ok(direction)
}

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
    superpacket::note_checksum(&skb, work);
    let (to_all, to_parent, to_sender) = (work.to_all, work.to_parent, work.to_sender);
    let (job, is_told) = (work.job, work.has_done != 0 && to_sender == 0);
    let mut verdict = TC_ACT_SHOT;
    if to_all > 0 {
        superpacket::show(&skb, Action::Broadcast, to_all);
        verdict = match is_told {
            true => send_to_audience(&skb),
            false => send_to_all(&skb, job, to_sender > 0),
        };
    }
    if to_parent > 0 {
        superpacket::show(&skb, Action::Up, to_parent);
        verdict = send_up(&skb, job);
    } else if to_sender > 0 {
        superpacket::show(&skb, Action::Reply, to_sender);
        verdict = send_back(&skb);
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
    let (packets, job, rank) = (work.len.div_ceil(work.segment_len.max(1)), work.job, work.rank);
    let is_marked = work.origin.congested;
    if served.target == Target::Nobody {
        tables::count(served.outcome);
        return TC_ACT_SHOT as u64;
    }
    tables::count_all(served.outcome, packets);
    if is_marked {
        // SAFETY: the caller vouches for the context.
        unsafe { superpacket::superpacket_mark(ctx) };
    }
    count_failure(match served.target {
        Target::All => send_to_all(&skb, job, false),
        _ => match (Maps.home(job, rank), tables::job(job)) {
            (Some(home), Some(job)) => send_to(&skb, &home, job.address),
            _ => TC_ACT_SHOT,
        },
    })
}

/// Serves the superpacket's first packet. It leaves as if it had come to the combiner's data port.
#[inline(always)]
fn serve_down(skb: &Skb, work: &mut Scratch) -> Result<Served, Outcome> {
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
    superpacket::load(skb, work, first).map_err(|_| Outcome::Truncated)?;
    let (origin, port) = (work.origin, work.way.port.get());
    let Packet { header, .. } = work.packet_mut(first).ok_or(Outcome::BadLength)?;
    let (job, rank) = (header.job.get(), header.rank.get());
    let served = node::down(&Maps, &Maps, &origin, port, header, len - HEADER_LEN);
    work.way.port = tables::uplink(job).ok_or(Outcome::UnknownJob)?.port;
    (work.job, work.rank) = (job, rank);
    superpacket::note_checksum(skb, work);
    Ok(served)
}

#[inline(always)]
fn count_failure(verdict: i32) -> u64 {
    if verdict == TC_ACT_SHOT {
        tables::count(Outcome::SendFailed);
    }
    verdict as u64
}

/// Sends the superpacket to the job's parent.
#[inline(always)]
fn send_up(skb: &Skb, job: u16) -> i32 {
    let (Some(work), Some(uplink)) = (scratch::get(), tables::uplink(job)) else {
        return TC_ACT_SHOT;
    };
    work.way.mac = uplink.mac;
    send_to(skb, &uplink.parent, uplink.address)
}

/// Sends the superpacket back to where it came from, or by that port to the job's group.
#[inline(always)]
fn send_back(skb: &Skb) -> i32 {
    let Some(work) = scratch::get() else { return TC_ACT_SHOT };
    if work.to_senders_group == 0 {
        let (binding, address) = (work.origin.binding, work.address);
        return send_to(skb, &binding, address);
    }
    let Some(job) = tables::job(work.job) else { return TC_ACT_SHOT };
    send_to(skb, &job.group_at(skb.ifindex()), job.address)
}

/// Sends the superpacket to one place, from this address.
#[inline(always)]
fn send_to(skb: &Skb, place: &Binding, source: Ip) -> i32 {
    match head_for(skb, place, source) {
        // SAFETY: no pointer is passed.
        Some(port) => unsafe { bpf_redirect(port, 0) as i32 },
        None => TC_ACT_SHOT,
    }
}

/// Sends the superpacket to all places of the job; keeps it if more is to be sent.
#[inline(always)]
fn send_to_all(skb: &Skb, number: u16, keep: bool) -> i32 {
    let (Some(receivers), Some(job)) = (tables::receivers(number), tables::job(number)) else {
        return TC_ACT_SHOT;
    };
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
        // Change the headers only after the clone, which needs the old ones.
        let Some(port) = head_for(skb, place, job.address) else { return TC_ACT_SHOT };
        last = port;
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
        match tc_clone(ctx, 1) {
            last if last >> 32 == 0 => last,
            last => {
                if last as u32 != 0 {
                    clone_to(skb, last as u32);
                }
                if superpacket::superpacket_shorten(ctx) != 0 {
                    return TC_ACT_SHOT;
                }
                tc_clone(ctx, 0)
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
pub unsafe extern "C" fn tc_clone(ctx: *mut __sk_buff, wanted: u32) -> u64 {
    // SAFETY: the caller vouches for the context.
    let skb = unsafe { Skb::new(ctx) };
    let Some(work) = scratch::get() else { return 0 };
    let (number, audience) = (work.job, work.done.audience());
    let (Some(receivers), Some(job)) = (tables::receivers(number), tables::job(number)) else {
        return 0;
    };
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
        let Some(port) = head_for(&skb, place, job.address) else { return 0 };
        last = port;
    }
    others << 32 | u64::from(last)
}

#[inline(always)]
fn clone_to(skb: &Skb, port: u32) -> i32 {
    // SAFETY: the context is that of the running program; no reference into the packet is held.
    unsafe { bpf_clone_redirect(skb.context(), port, 0) as i32 }
}

/// Gives the superpacket the headers of what goes to this place, from this address. The port by
/// which it is to leave.
#[inline(always)]
fn head_for(skb: &Skb, place: &Binding, source: Ip) -> Option<u32> {
    let work = scratch::get()?;
    (work.way.place, work.way.source) = (*place, source);
    // SAFETY: the context is that of the running program; `work` is not used any more.
    (unsafe { tc_address(skb.context()) } == 0).then_some(place.ifindex)
}

/// Gives the superpacket the headers of [`Scratch::way`]; 0 if that is done.
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
    let addressed =
        if work.is_v6 == 0 { address::<Ipv4>(&skb, work) } else { address::<Ipv6>(&skb, work) };
    u64::from(addressed.is_err())
}

#[inline(always)]
fn address<N: Network>(skb: &Skb, work: &mut Scratch) -> Result<(), i64> {
    work.answer = work.envelope;
    let (way, answer) = (&work.way, work.answer.of::<N>());
    (answer.mac_destination, answer.destination_port) = (way.mac, way.port);
    if work.is_done == 0 {
        answer.send_bundle_to(&way.place, way.source, work.checksum, work.sum);
    } else {
        let lanes = work.done.rounds();
        answer.send_instead(&way.place, way.source, lanes, work.checksum, work.sum);
    }
    skb.store(0, answer)
}
