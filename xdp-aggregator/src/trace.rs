//! A line for each packet, by aya-log, in the object that the daemon loads with `--trace`. The
//! usual object is built without the feature `trace`, and traces nothing.

use switchml_protocol::header::Header;
use switchml_protocol::outcome::Outcome;

/// The fields that identify a packet, noted before its answer overwrites it.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "trace"), expect(dead_code, reason = "nothing is traced"))]
pub struct Traced {
    /// Job, rank and slot, from bit 32 on.
    place: u64,
    round: u32,
}

impl Traced {
    /// The packet with this header.
    #[inline(always)]
    pub fn new(header: &Header) -> Self {
        let [job, rank, slot] =
            [header.job, header.rank, header.slot].map(|it| u64::from(it.get()));
        Self { place: job << 32 | rank << 16 | slot, round: header.round.get() }
    }

    /// Traces the outcome of the packet, and returns it.
    #[inline(always)]
    pub fn became(self, outcome: Outcome) -> Outcome {
        #[cfg(feature = "trace")]
        trace_packet(self.place, u64::from(self.round) << 32 | outcome as u64);
        outcome
    }
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
