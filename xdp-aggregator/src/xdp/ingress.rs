//! From a frame to what its packet has become.

use aya_ebpf::bindings::xdp_md;
use switchml_protocol::combiner::admission::Cells;
use switchml_protocol::node::frame::{Envelope, Ipv4, Ipv6, Network};
use switchml_protocol::node::ingress::{self, Direction, Hook, Origin};
use switchml_protocol::node::{self, Served};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::packet::Packet;

use super::frame::Frame;
use super::roce;
use crate::payload::Lanes;
use crate::tables::Maps;

/// Where the frame's packet comes from and how long its payload is, if it is for the root; the
/// frame is aligned then. Otherwise the outcome.
#[inline(always)]
pub fn open<N: Network>(frame: &mut Frame) -> Result<(Origin, usize), Outcome> {
    roce::unwrap::<N>(frame)?;
    let envelope = frame.envelope::<N>().ok_or(Outcome::NotOurs)?;
    let (mut origin, payload_len) = ingress::open(frame, envelope)?;
    origin.binding.roce = frame.roce;
    frame.align::<N>().map_err(|_| Outcome::SendFailed)?;
    Ok((origin, payload_len))
}

/// Serves the packet of an aligned frame as a root.
#[inline(always)]
pub fn serve(frame: &Frame, origin: &Origin, payload_len: usize) -> Served {
    let Some(header) = frame.header() else { return Served::unanswered(Outcome::Truncated) };
    // SAFETY: the headers end where the payload begins.
    let mut payload = unsafe { Lanes::new(frame.context()) };
    node::serve(&Maps, &Maps, origin, &mut Packet::new(header, &mut payload, payload_len))
}

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
    // SAFETY: as in `serve`.
    let mut payload = unsafe { Lanes::new(frame.context()) };
    let mut packet = Packet::new(header, &mut payload, len);
    Ok(match direction {
        Direction::Down => Err(node::down(&Maps, &Maps, &origin, port, &mut packet)),
        Direction::Up => node::admit(&Maps, &Maps, &origin, &mut packet),
    })
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
    node::combine(&Maps, &Maps, below, &mut Packet::new(header, &mut payload, 0)).to_word()
}
