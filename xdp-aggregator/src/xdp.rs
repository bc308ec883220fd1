//! The node in XDP: opens frames, serves the packet in each, and sends it to its [`Target`].
//!
//! One frame cannot become two. So if a combiner would send a held cell together with the packet
//! that it serves, it forgets the cell instead: the ranks send their contributions again.

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS};
use aya_ebpf::bindings::xdp_md;
use switchml_protocol::LANES_PER_BLOCK;
use switchml_protocol::combiner::admission::Cells;
use switchml_protocol::node::frame::{Envelope, Ipv4, Ipv6, Network, sum_of_packet};
use switchml_protocol::node::ingress::{self, Direction, Hook, Origin};
use switchml_protocol::node::{self, Served, Target};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::root::admission::Members;
use switchml_protocol::wire::header::Header;

use crate::packet::Frame;
use crate::payload::Lanes;
use crate::roce;
use crate::tables::{self, Maps};

/// Serves one frame as a root. Returns the verdict.
#[inline(always)]
pub fn serve_root(frame: &mut Frame) -> u32 {
    if frame.take_tag().is_err() {
        return XDP_DROP;
    }
    let is_v6 = frame.is::<Ipv6>();
    let opened = if is_v6 { open::<Ipv6>(frame) } else { open::<Ipv4>(frame) };
    let served = match opened {
        Ok((origin, payload_len)) => serve(frame, &origin, payload_len),
        Err(outcome) => Served::unanswered(outcome),
    };
    // Not by the functions below: the stack has no room for another one's.
    let verdict = if is_v6 { leave::<Ipv6>(frame, served) } else { leave::<Ipv4>(frame, served) };
    if verdict != XDP_DROP && frame.put_tag().is_err() { XDP_DROP } else { verdict }
}

/// Serves one frame as a combiner. Returns the verdict.
#[inline(always)]
pub fn serve_combiner(frame: &Frame) -> u32 {
    let is_v6 = frame.is::<Ipv6>();
    // SAFETY: the context is that of the running program.
    let word = unsafe { xdp_admit(frame.context()) };
    let word = match Served::or_admitted(word) {
        // SAFETY: as above.
        Ok(below) => unsafe { xdp_combine(frame.context(), below) },
        Err(_) => word,
    };
    // SAFETY: as above.
    unsafe {
        let verdict = match is_v6 {
            true => xdp_send_v6(frame.context(), word),
            false => xdp_send_v4(frame.context(), word),
        };
        verdict as u32
    }
}

/// Where the frame's packet comes from and how long its payload is, if it is for the root; the
/// frame is aligned then. Otherwise the outcome.
#[inline(always)]
fn open<N: Network>(frame: &mut Frame) -> Result<(Origin, usize), Outcome> {
    roce::unwrap::<N>(frame)?;
    let envelope = frame.envelope::<N>().ok_or(Outcome::NotOurs)?;
    let (mut origin, payload_len) = ingress::open(frame, envelope)?;
    origin.binding.roce = frame.roce;
    frame.align::<N>().map_err(|_| Outcome::SendFailed)?;
    Ok((origin, payload_len))
}

/// Serves the packet of an aligned frame as a root.
#[inline(always)]
fn serve(frame: &Frame, origin: &Origin, payload_len: usize) -> Served {
    let Some(header) = frame.header() else { return Served::unanswered(Outcome::Truncated) };
    // SAFETY: the headers end where the payload begins.
    let mut payload = unsafe { Lanes::new(frame.context()) };
    node::serve(&Maps, &Maps, origin, header, &mut payload, payload_len)
}

// A combiner's packets are served in three global functions of BPF: the verifier checks each once,
// on its own, and the stack of one is free again in the next.

/// Finds out whether a frame is for the combiner, aligns it, and admits its packet or serves it.
/// Returns what [`Served::or_admitted`] reads.
///
/// # Safety
///
/// As for [`Frame::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn xdp_admit(ctx: *mut xdp_md) -> u64 {
    // SAFETY: the caller vouches for the context.
    let frame = unsafe { Frame::new(ctx) };
    let admitted = if frame.is::<Ipv6>() { admit::<Ipv6>(&frame) } else { admit::<Ipv4>(&frame) };
    Served::word_of(admitted.unwrap_or_else(|outcome| Err(Served::unanswered(outcome))))
}

#[inline(always)]
fn admit<N: Network>(frame: &Frame) -> Result<Result<u32, Served>, Outcome> {
    let envelope = frame.envelope::<N>().ok_or(Outcome::NotOurs)?;
    let port = envelope.destination_port.get();
    let (origin, len, direction) =
        ingress::open_combiner(&Maps, frame, envelope, Envelope::<N>::LEN)?;
    if direction == Direction::Down {
        // The packet leaves as if it had come to the data port.
        let job =
            frame.word(Envelope::<N>::LEN).map_or(0, |[_, _, a, b]| u16::from_be_bytes([a, b]));
        envelope.destination_port.set(Maps.data_port(job));
    }
    frame.align::<N>().map_err(|_| Outcome::SendFailed)?;
    let header = frame.header().ok_or(Outcome::Truncated)?;
    if direction == Direction::Down {
        return Ok(Err(node::down(&Maps, &Maps, &origin, port, header, len)));
    }
    // SAFETY: as in `serve`.
    let payload = unsafe { Lanes::new(frame.context()) };
    Ok(node::admit(&Maps, &Maps, &origin, header, &payload, len))
}

/// Serves the packet of an aligned frame, which has been admitted. Returns a [`Served`].
///
/// # Safety
///
/// As for [`Frame::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn xdp_combine(ctx: *mut xdp_md, below: u32) -> u64 {
    // SAFETY: the caller vouches for the context.
    let frame = unsafe { Frame::new(ctx) };
    let Some(header) = frame.header() else {
        return Served::unanswered(Outcome::Truncated).to_word();
    };
    // SAFETY: as in `serve`.
    let mut payload = unsafe { Lanes::new(ctx) };
    node::combine(&Maps, &Maps, below, header, &mut payload).to_word()
}

/// Sends the packet of an aligned frame over IPv4, given its [`Served`]. The verdict.
///
/// # Safety
///
/// As for [`Frame::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn xdp_send_v4(ctx: *mut xdp_md, word: u64) -> u64 {
    // SAFETY: the caller vouches for the context.
    leave::<Ipv4>(&unsafe { Frame::new(ctx) }, Served::from_word(word)).into()
}

/// Sends the packet of an aligned frame over IPv6, given its [`Served`]. The verdict.
///
/// # Safety
///
/// As for [`Frame::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn xdp_send_v6(ctx: *mut xdp_md, word: u64) -> u64 {
    // SAFETY: the caller vouches for the context.
    leave::<Ipv6>(&unsafe { Frame::new(ctx) }, Served::from_word(word)).into()
}

/// Sends what became of the frame, and counts it. Returns the verdict.
#[inline(always)]
fn leave<N: Network>(frame: &Frame, Served { outcome, target }: Served) -> u32 {
    let sent = match target {
        Target::Host => Some(XDP_PASS),
        Target::Nobody => Some(XDP_DROP),
        target => send::<N>(frame, target),
    };
    tables::count(if sent.is_some() { outcome } else { Outcome::SendFailed });
    sent.unwrap_or(XDP_DROP)
}

/// Sends the packet of an aligned frame to its target, and returns the verdict for that.
///
/// Not by `XDP_TX` where it came in: if the other end of a veth has GRO on but no XDP program, such
/// frames get stuck in its queue.
#[inline(always)]
fn send<N: Network>(frame: &Frame, target: Target) -> Option<u32> {
    let header = frame.header()?;
    let (number, rank) = (header.job.get(), header.rank.get());
    let is_short = usize::from(header.payload_lanes()) < LANES_PER_BLOCK;
    if target == Target::Rank && !N::CHECKSUM_IS_OPTIONAL && is_short {
        // Payloads are summed up by blocks.
        frame.resize(LANES_PER_BLOCK as u16).ok()?;
    }
    let by_roce = roce::is_served()
        && match target {
            Target::All => tables::receivers(number)?.by_roce != 0,
            _ => roce::is_message(frame),
        };
    let (lanes, sum) = finish::<N>(frame, frame.header()?, by_roce)?;
    let envelope = frame.envelope::<N>()?;
    let (place, source) = match target {
        Target::Nobody | Target::Host => return None,
        Target::Sender => {
            envelope.turn_back(lanes, sum);
            if by_roce {
                roce::wrap(frame, frame.roce)?;
            }
            return tables::redirect(frame.ifindex());
        }
        Target::SendersGroup => {
            let job = tables::job(number)?;
            (job.group_at(frame.ifindex()), job.address)
        }
        Target::All => {
            let receivers = tables::receivers(number)?;
            envelope.send_to(receivers.used().next()?, tables::job(number)?.address, lanes, sum);
            if receivers.differ != 0 {
                envelope.leave_open();
            }
            return tables::redirect_to_all(number);
        }
        Target::Parent { job, from_port } => {
            let uplink = tables::uplink(job)?;
            envelope.mac_destination = uplink.mac;
            envelope.destination_port.set(from_port);
            (uplink.parent, uplink.address)
        }
        Target::Rank => (Maps.home(number, rank)?, tables::job(number)?.address),
    };
    envelope.send_to(&place, source, lanes, sum);
    tables::redirect(place.ifindex)
}

/// Cuts the frame to the length of its packet, and has it begin with its envelope again. Lanes of
/// the packet, with its tag, and the sum of its words where UDP needs a checksum. A frame that
/// leaves by RoCEv2 is sealed.
#[inline(always)]
fn finish<N: Network>(frame: &Frame, header: &Header, by_roce: bool) -> Option<(u16, u16)> {
    let lanes = header.payload_lanes();
    let sum = if N::CHECKSUM_IS_OPTIONAL {
        0
    } else {
        // SAFETY: as in `serve`.
        let payload = unsafe { Lanes::new(frame.context()) };
        sum_of_packet(header, &payload, lanes.into()).ok()?
    };
    let lanes = lanes + header.tag_len() as u16 / 4;
    if by_roce {
        roce::seal(frame, lanes)?;
    } else {
        frame.resize(lanes).ok()?;
    }
    frame.align_back::<N>().ok()?;
    Some((lanes, sum))
}
