//! From what a packet has become to the frame that leaves.

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS};
use aya_ebpf::bindings::xdp_md;
use switchml_protocol::LANES_PER_BLOCK;
use switchml_protocol::node::egress::{self, Copies, Hop};
use switchml_protocol::node::frame::{Ipv4, Ipv6, Network, sum_of_packet};
use switchml_protocol::node::ingress::Hook;
use switchml_protocol::node::{Served, Target};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::wire::header::Header;

use super::frame::Frame;
use super::{roce, unsent};
use crate::payload::Lanes;
use crate::tables::{self, Maps};

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
pub fn leave<N: Network>(frame: &Frame, Served { outcome, target }: Served) -> u32 {
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
    let (job, rank) = (header.job.get(), header.rank.get());
    let is_short = usize::from(header.payload_lanes()) < LANES_PER_BLOCK;
    if target == Target::Rank && !N::CHECKSUM_IS_OPTIONAL && is_short {
        // Payloads are summed up by blocks.
        frame.resize(LANES_PER_BLOCK as u16).ok()?;
    }
    let by_roce = roce::is_served()
        && match target {
            Target::All => tables::receivers(job)?.by_roce != 0,
            _ => roce::is_message(frame),
        };
    let (lanes, sum) = finish::<N>(frame, frame.header()?, by_roce)?;
    let envelope = frame.envelope::<N>()?;
    if let Target::Parent { job, from_port } = target {
        // As if the frame had come to this end of the way up.
        envelope.mac_destination = tables::uplink(job)?.mac;
        envelope.destination_port.set(from_port);
    }
    let mut hop = Hop::default();
    match egress::route(&Maps, target, (job, rank), frame.ifindex(), &mut hop)? {
        Copies::None => None,
        Copies::Back => {
            envelope.turn_back(lanes, sum);
            if by_roce {
                roce::wrap(frame, frame.roce)?;
            }
            redirect(frame.ifindex())
        }
        Copies::One => {
            envelope.send_to(&hop.to, hop.from, lanes, sum);
            redirect(hop.to.ifindex)
        }
        Copies::Each => {
            let receivers = tables::receivers(job)?;
            envelope.send_to(receivers.used().next()?, hop.from, lanes, sum);
            if receivers.differ != 0 {
                envelope.leave_open();
            }
            tables::redirect_to_all(job)
        }
    }
}

/// Sends the frame by this port, and returns the verdict for that; `None` if it is not one of ours.
#[inline(always)]
fn redirect(port: u32) -> Option<u32> {
    unsent::leaves_by(port);
    tables::redirect(port)
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
        // SAFETY: the headers end where the payload begins.
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
