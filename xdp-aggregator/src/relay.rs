//! A combiner in XDP: applies the decisions of [`switchml_protocol::relay`] to frames.
//!
//! The combiner forwards a frame with the code that sends answers: before, it sets the envelope's
//! destination to the port and the MAC from which the frame will leave.

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS};
use aya_ebpf::bindings::xdp_md;
use switchml_protocol::LANES_PER_BLOCK;
use switchml_protocol::combiner::Cell;
use switchml_protocol::frame::{Envelope, Ipv4, Ipv6, Network};
use switchml_protocol::header::{Header, flags};
use switchml_protocol::maps::Event;
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::relay;
use switchml_protocol::share::Share;
use switchml_protocol::shell::{self, Heading, Hook, Origin};

use crate::packet::Frame;
use crate::payload::Lanes;
use crate::tables::{self, Maps};
use crate::trace::Traced;
use crate::{broadcast, finish, reply};

/// Serves one frame, and returns the verdict.
#[inline(always)]
pub fn serve<N: Network>(frame: &Frame) -> u32 {
    // SAFETY: the context is that of the running program.
    let admission = unsafe { relay_admit(frame.context()) };
    let (below, rank, served) = (admission as u32, (admission >> 32) as u16, admission >> 48);
    let outcome = match served {
        // SAFETY: as above.
        ADMITTED => outcome_of(unsafe { relay_combine(frame.context(), below) }),
        served => outcome_of(served - 1),
    };
    let sent = match outcome.action() {
        Action::Pass => Some(XDP_PASS),
        Action::Drop => Some(XDP_DROP),
        Action::Reply => reply::<N>(frame),
        Action::Broadcast => broadcast::<N>(frame),
        Action::Up => send_up::<N>(frame, rank),
        Action::Down => send_down::<N>(frame),
    };
    let (outcome, verdict) =
        sent.map_or((Outcome::SendFailed, XDP_DROP), |verdict| (outcome, verdict));
    tables::count(outcome);
    verdict
}

/// Stands in place of an outcome: a packet from below has been admitted.
const ADMITTED: u64 = 0;

/// Finds out whether a frame is for the combiner, aligns it, and admits its packet. The ranks of
/// its group that are below in the lowest 32 bits; in the next 16 the rank from whose port it goes
/// to the parent; above that [`ADMITTED`], or the number of an outcome plus 1.
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
    admitted.unwrap_or_else(|outcome| served(outcome, 0))
}

/// The value that [`relay_admit`] returns for this outcome.
#[inline(always)]
const fn served(outcome: Outcome, rank: u16) -> u64 {
    (outcome as u64 + 1) << 48 | (rank as u64) << 32
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
    let base = envelope.destination_port.get();
    frame.align::<N>().map_err(|_| Outcome::SendFailed)?;
    let header = frame.header().ok_or(Outcome::Truncated)?;
    if origin.congested {
        header.flags |= flags::CE;
    }
    if heading == Heading::Down {
        return Ok(served(relay::down(&Maps, &origin.binding, (base, port), header, len), 0));
    }
    let rank = Share::of(header).highest();
    // SAFETY: as in `serve` of the root.
    let payload = unsafe { Lanes::new(frame.context()) };
    match relay::admit(&Maps, &origin.binding, header, &payload, len) {
        Ok(below) => Ok(u64::from(rank) << 32 | u64::from(below)),
        Err(outcome) => {
            tell(outcome, &origin, Some(header));
            Ok(served(Traced::new(header).became(outcome), rank))
        }
    }
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
    let Some(header) = frame.header() else { return Outcome::Truncated as u64 };
    // SAFETY: as in `serve` of the root.
    let mut payload = unsafe { Lanes::new(ctx) };
    // One frame cannot become two.
    let flush = |cell: &mut Cell| cell.head.forget();
    let traced = Traced::new(header);
    traced.became(relay::combine(&Maps, below, header, &mut payload, clock(), flush)) as u64
}

/// The outcome of that number.
#[inline(always)]
pub fn outcome_of(number: u64) -> Outcome {
    Outcome::from_number(number as u8).unwrap_or(Outcome::SlotBusy)
}

/// Tells user space of a packet if it is notable.
#[inline(always)]
pub fn tell(outcome: Outcome, origin: &Origin, header: Option<&mut Header>) {
    if outcome.is_notable()
        && let Some(header) = header
    {
        tables::report(Event::new(outcome, &origin.binding, header));
    }
}

/// The time, and the patience of the moment.
#[inline(always)]
pub fn clock() -> (u32, u32) {
    (tables::now(), tables::patience())
}

/// Sends the packet of an aligned frame to the parent, from the port of that rank.
#[inline(always)]
fn send_up<N: Network>(frame: &Frame, rank: u16) -> Option<u32> {
    let header = frame.header()?;
    let number = header.job.get();
    let uplink = tables::uplink(number)?;
    let (lanes, sum) = finish::<N>(frame, header)?;
    let envelope = frame.envelope::<N>()?;
    envelope.mac_destination = uplink.mac;
    envelope.destination_port.set(relay::rank_port(uplink.port.get(), number, rank));
    envelope.send_to(&uplink.parent, uplink.address, lanes, sum);
    tables::redirect(uplink.parent.ifindex)
}

/// Sends the packet of an aligned frame to the rank below that it is for.
#[inline(always)]
fn send_down<N: Network>(frame: &Frame) -> Option<u32> {
    let header = frame.header()?;
    let number = header.job.get();
    let place = tables::home(number, header.rank.get())?;
    if !N::CHECKSUM_IS_OPTIONAL && usize::from(header.payload_lanes()) < LANES_PER_BLOCK {
        // Payloads are summed up by blocks.
        frame.resize(LANES_PER_BLOCK as u16).ok()?;
    }
    let (lanes, sum) = finish::<N>(frame, frame.header()?)?;
    frame.envelope::<N>()?.send_to(&place, tables::job(number)?.address, lanes, sum);
    tables::redirect(place.ifindex)
}
