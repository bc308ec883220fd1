//! The node at tc ingress, which sees superpackets: what UDP_SEGMENT, or GRO, made of a run of
//! packets (rule 6.1). [`ingress`] opens a superpacket, [`segments`] serves the packets in it, and
//! [`egress`] sends what they have become.
//!
//! A superpacket stays whole. On its way down from a combiner's parent only its first packet is
//! read, since all segments to one port go the same way.
//!
//! Many functions here are global functions of BPF (`extern "C"`, never inlined): the verifier
//! checks each once, on its own, instead of along every path to its call.

mod egress;
mod ingress;
pub mod scratch;
mod segments;
pub mod skb;

use aya_ebpf::bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC};
use switchml_protocol::node::Served;
use switchml_protocol::node::frame::{Ipv4, Ipv6};
use switchml_protocol::outcome::{Action, Outcome};

use crate::tables;
use egress::{tc_down, tc_send};
use ingress::{DOWN, UP, open, tc_open};
use segments::{Combiner, Role, Root};
use skb::Skb;

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
    match segments::serve_segments::<R>(skb) {
        Ok(0) => TC_ACT_SHOT,
        // SAFETY: the context is that of the running program.
        Ok(_) => unsafe { tc_send(skb.context()) as i32 },
        Err(_) => {
            tables::count(Outcome::SendFailed);
            TC_ACT_SHOT
        }
    }
}
