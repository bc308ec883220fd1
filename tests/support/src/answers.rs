//! How results reach a rank, from the specification alone: with lanes, or as a DONE.

use crate::packet::{CE, DONE, Packet};

/// Rule 2.10: whether a rank needs the lanes of the result of a contribution with this op.
pub fn needs_lanes(op: u8, rank: u16) -> bool {
    match op >> 6 {
        1 => rank == u16::from(op & 63),
        2 => rank != u16::from(op & 63),
        _ => true,
    }
}

/// A DONE in place of RESULTs to all (rule 9.4), which are of one call and op.
pub fn done_of(results: &[Packet]) -> Packet {
    let lane = |result: &Packet| u32::from(result.slot) << 16 | result.round & 0xFFFF;
    let congested = results.iter().fold(0, |flags, result| flags | result.flags & CE);
    let (payload, first) = (results.iter().map(lane).collect(), results[0].clone());
    Packet { kind: DONE, aux: 0, flags: congested, payload, tag: None, ..first }.sealed()
}
