//! Whose frames are served: what data planes that see frames do before [`crate::node`] serves the
//! packets in them. One that has a socket knows the packets' [`Origin`] from there.

use crate::U16;
use crate::bpf_types::job::Binding;
use crate::bpf_types::maps::Endpoint;
use crate::combiner::admission::{Cells, is_from};
use crate::node::frame::{Envelope, Network, Source, Tag, source};
use crate::outcome::Outcome;

/// The frame that a hook was called for.
pub trait Hook {
    /// The frame's length in bytes, padding included, without the tag.
    fn frame_len(&self) -> usize;
    /// Index of the interface that it came in by.
    fn ifindex(&self) -> u32;
    /// The VLAN tag that has been taken off it.
    fn tag(&self) -> Tag;
    /// Four of its bytes from `offset` on, if it is that long, without the tag.
    fn word(&self, offset: usize) -> Option<[u8; 4]>;
    /// Whether the aggregator answers to the endpoint, or has the address.
    fn is_local(&self, endpoint: Endpoint) -> bool;
}

/// Where packets come from, and what happened to them on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Where their sender lives.
    pub binding: Binding,
    /// Whether a router marked them for congestion (RFC 3168).
    pub congested: bool,
}

/// Where the frame's packets come from, and how many bytes follow the first header, if the frame is
/// for the aggregator and its lengths are right. Otherwise what becomes of the frame.
#[inline(always)]
pub fn open<H: Hook, N: Network>(
    hook: &H,
    envelope: &Envelope<N>,
) -> Result<(Origin, usize), Outcome> {
    let vlan = match vlan_of_aggregator(hook, envelope) {
        Ok(vlan) => vlan,
        // Rule 5.9: what goes on to workers must not pass for an answer of the aggregator's.
        Err(_) if !envelope.is_looped() && is_spoofed(hook) => return Err(Outcome::Spoofed),
        Err(passed) => return Err(passed),
    };
    let payload_len = envelope.payload_len(hook.frame_len())?;
    let binding = envelope.binding(hook.ifindex(), vlan);
    Ok((Origin { binding, congested: envelope.congestion_experienced() }, payload_len))
}

/// The direction of a packet at a combiner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From ranks below, to the parent.
    Up,
    /// To ranks below, from the parent.
    Down,
}

/// [`open`] for a combiner; the first packet begins at offset `packet` of the frame. A combiner
/// serves no frames with VLAN tags. On ports other than its data port, which its host uses too, it
/// serves only frames from the parent.
#[inline(always)]
pub fn open_combiner<T: Cells, H: Hook, N: Network>(
    tables: &T,
    hook: &H,
    envelope: &Envelope<N>,
    packet: usize,
) -> Result<(Origin, usize, Direction), Outcome> {
    let direction = match direction(tables, hook, envelope, packet) {
        Ok(direction) => direction,
        Err(_) if !envelope.is_looped() && is_spoofed(hook) => return Err(Outcome::Spoofed),
        Err(passed) => return Err(passed),
    };
    let payload_len = envelope.payload_len(hook.frame_len())?;
    let binding = envelope.binding(hook.ifindex(), 0);
    let congested = envelope.congestion_experienced();
    Ok((Origin { binding, congested }, payload_len, direction))
}

#[inline(always)]
fn direction<T: Cells, H: Hook, N: Network>(
    tables: &T,
    hook: &H,
    envelope: &Envelope<N>,
    packet: usize,
) -> Result<Direction, Outcome> {
    if hook.tag() != Tag::NONE {
        return Err(Outcome::Vlan);
    }
    envelope.is_udp()?;
    let endpoint = envelope.endpoint();
    if hook.is_local(endpoint) {
        return Ok(Direction::Up);
    }
    let anywhere = Endpoint::served(endpoint.mac, endpoint.ip, U16::ZERO);
    if hook.is_local(anywhere)
        && let Some([_, _, high, low]) = hook.word(packet)
        && let Some((parent, _)) = tables.parent(u16::from_be_bytes([high, low]))
        && is_from(&envelope.binding(hook.ifindex(), 0), &parent)
    {
        return Ok(Direction::Down);
    }
    Err(Outcome::NotOurs)
}

/// Rules 5.7, 5.8 and 5.10: the VLAN of a frame for the aggregator; otherwise the outcome with
/// which it is passed on.
#[inline(always)]
fn vlan_of_aggregator<H: Hook, N: Network>(
    hook: &H,
    envelope: &Envelope<N>,
) -> Result<u16, Outcome> {
    let vlan = hook.tag().vlan().ok_or(Outcome::Vlan)?;
    envelope.is_udp()?;
    if hook.is_local(envelope.endpoint()) { Ok(vlan) } else { Err(Outcome::NotOurs) }
}

/// Whether the frame claims to come from the aggregator, whose own frames do not arrive here, or
/// hides its source.
#[inline(always)]
fn is_spoofed<H: Hook>(hook: &H) -> bool {
    match source(hook.tag(), |offset| hook.word(offset)) {
        Source::Ip(address) => hook.is_local(Endpoint::own(address)),
        Source::Other => false,
        Source::Hidden => true,
    }
}
