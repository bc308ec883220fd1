//! Which superpackets are for the node, and what is noted of them.

use aya_ebpf::bindings::__sk_buff;
use switchml_protocol::node::Served;
use switchml_protocol::node::frame::{Envelope, Ipv4, Ipv6, Network};
use switchml_protocol::node::ingress::{self, Direction, Hook};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::wire::header::Kind;

use super::scratch::{self, MAX_SEGMENTS};
use super::skb::Skb;
use crate::tables::Maps;

/// Finds out whether the frame is for the root, and notes its contents in the scratch memory.
#[inline(always)]
pub fn open<N: Network>(skb: &Skb) -> Result<(), Outcome> {
    let work = scratch::get().ok_or(Outcome::NotOurs)?;
    let envelope = work.arrived.headers.of::<N>();
    skb.load(0, envelope).map_err(|_| Outcome::NotOurs)?;
    let (origin, payload_len) = ingress::open(skb, envelope)?;
    work.begin::<N>(origin, payload_len, skb.segment_len());
    Ok(())
}

/// What [`tc_open`] returns for a frame that is served: no [`Served`] has such a word.
pub const UP: u64 = 1 << 48;
/// The same, of a frame from the parent.
pub const DOWN: u64 = 2 << 48;

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
    let envelope = work.arrived.headers.of::<N>();
    skb.load(0, envelope).map_err(|_| Outcome::NotOurs)?;
    let first = first_packet::<N>(skb);
    let (origin, payload_len, direction) =
        ingress::open_combiner(&Maps, skb, envelope, first as usize)?;
    work.begin::<N>(origin, payload_len, skb.segment_len());
    work.arrived.first = first;
    Ok(direction)
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
