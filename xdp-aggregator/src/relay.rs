//! A combiner in XDP: applies the decisions of [`switchml_protocol::relay`] to frames.
//!
//! The combiner forwards a frame with the code that sends answers: before, it sets the envelope's
//! destination to the port and the MAC from which the frame will leave.

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS};
use aya_ebpf::bindings::xdp_md;
use switchml_protocol::LANES_PER_BLOCK;
use switchml_protocol::aggregator::Members;
use switchml_protocol::frame::{Envelope, Ipv4, Ipv6, Network};
use switchml_protocol::node::{self, Served, Target};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::shell::{self, Heading, Hook};

use crate::packet::Frame;
use crate::payload::Lanes;
use crate::tables::{self, Maps};
use crate::{broadcast, finish, reply};

/// Serves one frame, and returns the verdict.
#[inline(always)]
pub fn serve<N: Network>(frame: &Frame) -> u32 {
    // SAFETY: the context is that of the running program.
    let admission = unsafe { relay_admit(frame.context()) };
    let Served { outcome, target } = match admission >> 48 {
        ADMITTED => {
            // SAFETY: as above.
            Served::from_word(unsafe { relay_combine(frame.context(), admission as u32) })
        }
        _ => Served::from_word(admission),
    };
    let sent = match target {
        Target::Host => Some(XDP_PASS),
        Target::Nobody => Some(XDP_DROP),
        Target::Sender => reply::<N>(frame, false),
        Target::SendersGroup => reply::<N>(frame, true),
        Target::All => broadcast::<N>(frame),
        Target::Parent { job, from_port } => send_up::<N>(frame, job, from_port),
        Target::Rank => send_down::<N>(frame),
    };
    let (outcome, verdict) =
        sent.map_or((Outcome::SendFailed, XDP_DROP), |verdict| (outcome, verdict));
    tables::count(outcome);
    verdict
}

/// In the upper bits of what [`relay_admit`] returns: a packet from below has been admitted.
const ADMITTED: u64 = 1;

/// Finds out whether a frame is for the combiner, aligns it, and admits its packet or serves it.
/// Returns [`ADMITTED`] with the ranks of the packet's group that are below, or a [`Served`].
///
/// A global function of BPF: the verifier checks it once, on its own, and its stack is free again
/// when the packet is combined.
///
/// # Safety
///
/// As for [`Frame::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn relay_admit(ctx: *mut xdp_md) -> u64 {
    // SAFETY: the caller vouches for the context.
    let frame = unsafe { Frame::new(ctx) };
    let admitted = if frame.is::<Ipv6>() { admit::<Ipv6>(&frame) } else { admit::<Ipv4>(&frame) };
    admitted.unwrap_or_else(|outcome| Served::unanswered(outcome).to_word())
}

#[inline(always)]
fn admit<N: Network>(frame: &Frame) -> Result<u64, Outcome> {
    let envelope = frame.envelope::<N>().ok_or(Outcome::NotOurs)?;
    let port = envelope.destination_port.get();
    let (origin, len, heading) = shell::open_combiner(&Maps, frame, envelope, Envelope::<N>::LEN)?;
    if heading == Heading::Down {
        // Serve the frame as if it had come to the data port, from which it goes down.
        let job =
            frame.word(Envelope::<N>::LEN).map_or(0, |[_, _, a, b]| u16::from_be_bytes([a, b]));
        envelope.destination_port = tables::uplink(job).ok_or(Outcome::UnknownJob)?.port;
    }
    frame.align::<N>().map_err(|_| Outcome::SendFailed)?;
    let header = frame.header().ok_or(Outcome::Truncated)?;
    if heading == Heading::Down {
        return Ok(node::down(&Maps, &Maps, &origin, port, header, len).to_word());
    }
    // SAFETY: as in `serve` of the root.
    let payload = unsafe { Lanes::new(frame.context()) };
    Ok(match node::admit(&Maps, &Maps, &origin, header, &payload, len) {
        Ok(below) => ADMITTED << 48 | u64::from(below),
        Err(served) => served.to_word(),
    })
}

/// Serves the packet of an aligned frame, which has been admitted. The outcome, as a number.
///
/// A global function of BPF: the verifier checks it once, on its own, not along every path through
/// admission.
///
/// # Safety
///
/// As for [`Frame::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn relay_combine(ctx: *mut xdp_md, below: u32) -> u64 {
    // SAFETY: the caller vouches for the context.
    let frame = unsafe { Frame::new(ctx) };
    let Some(header) = frame.header() else {
        return Served::unanswered(Outcome::Truncated).to_word();
    };
    // SAFETY: as in `serve` of the root.
    let mut payload = unsafe { Lanes::new(ctx) };
    node::combine(&Maps, &Maps, below, header, &mut payload).to_word()
}

/// Sends the packet of an aligned frame to the parent of this job, from that port.
#[inline(always)]
fn send_up<N: Network>(frame: &Frame, job: u16, from_port: u16) -> Option<u32> {
    let uplink = tables::uplink(job)?;
    let (lanes, sum) = finish::<N>(frame, frame.header()?)?;
    let envelope = frame.envelope::<N>()?;
    envelope.mac_destination = uplink.mac;
    envelope.destination_port.set(from_port);
    envelope.send_to(&uplink.parent, uplink.address, lanes, sum);
    tables::redirect(uplink.parent.ifindex)
}

/// Sends the packet of an aligned frame to the rank below that it is for.
#[inline(always)]
fn send_down<N: Network>(frame: &Frame) -> Option<u32> {
    let header = frame.header()?;
    let number = header.job.get();
    let place = Maps.home(number, header.rank.get())?;
    if !N::CHECKSUM_IS_OPTIONAL && usize::from(header.payload_lanes()) < LANES_PER_BLOCK {
        // Payloads are summed up by blocks.
        frame.resize(LANES_PER_BLOCK as u16).ok()?;
    }
    let (lanes, sum) = finish::<N>(frame, frame.header()?)?;
    frame.envelope::<N>()?.send_to(&place, tables::job(number)?.address, lanes, sum);
    tables::redirect(place.ifindex)
}
