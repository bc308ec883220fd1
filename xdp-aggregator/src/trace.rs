//! A line for each packet, by aya-log, in the object that the daemon loads with `--trace`. The
//! usual object is built without the feature `trace`, and traces nothing.

use switchml_protocol::node::Traced;
use switchml_protocol::outcome::Outcome;

/// Traces what became of a packet.
#[inline(always)]
#[cfg_attr(not(feature = "trace"), expect(unused_variables, reason = "nothing is traced"))]
pub fn trace(packet: &Traced, outcome: Outcome) {
    #[cfg(feature = "trace")]
    trace_packet(packet.place, u64::from(packet.round) << 32 | outcome as u64);
}

/// Writes a line, which the daemon parses: [`Traced::place`]; the round, from bit 32 on, and the
/// outcome's number.
///
/// A global function of BPF: the verifier checks it once, on its own.
#[cfg(feature = "trace")]
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn trace_packet(place: u64, what: u64) -> u64 {
    let (job, rank, slot) = ((place >> 32) as u16, (place >> 16) as u16, place as u16);
    let (round, outcome) = ((what >> 32) as u32, what as u8);
    aya_log_ebpf::info!((), "{} {} {} {} {}", job, rank, slot, round, outcome);
    0
}
