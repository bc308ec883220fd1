//! The node in XDP: [`ingress`] opens a frame and serves the packet in it, [`egress`] sends what it
//! has become, and [`copies`] addresses the copies that the kernel makes of a RESULT to all.
//!
//! One frame cannot become two. So if a combiner would send a held cell together with the packet
//! that it serves, it forgets the cell instead: the ranks send their contributions again.
//!
//! A combiner's packets are served in global functions of BPF: the verifier checks each once, on
//! its own, and the stack of one is free again in the next.

pub mod copies;
mod egress;
pub mod frame;
mod ingress;
mod roce;
pub mod unsent;

use aya_ebpf::bindings::xdp_action::XDP_DROP;
use switchml_protocol::node::Served;
use switchml_protocol::node::frame::{Ipv4, Ipv6};

use egress::leave;
use frame::Frame;
use ingress::{open, serve};

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
    // Not by the global functions: the stack has no room for another one's.
    let verdict = if is_v6 { leave::<Ipv6>(frame, served) } else { leave::<Ipv4>(frame, served) };
    if verdict != XDP_DROP && frame.put_tag().is_err() { XDP_DROP } else { verdict }
}

/// Serves one frame as a combiner. Returns the verdict.
#[inline(always)]
pub fn serve_combiner(frame: &Frame) -> u32 {
    let is_v6 = frame.is::<Ipv6>();
    // SAFETY: the context is that of the running program.
    let word = unsafe { ingress::xdp_admit(frame.context()) };
    let word = match Served::or_admitted(word) {
        // SAFETY: as above.
        Ok(below) => unsafe { ingress::xdp_combine(frame.context(), below) },
        Err(_) => word,
    };
    // SAFETY: as above.
    unsafe {
        let verdict = match is_v6 {
            true => egress::xdp_send_v6(frame.context(), word),
            false => egress::xdp_send_v4(frame.context(), word),
        };
        verdict as u32
    }
}
