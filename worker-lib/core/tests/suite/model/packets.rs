//! Datagrams, as bytes.

use std::mem::offset_of;

use switchml_protocol::wire::header::{HEADER_LEN, Header, Kind, flags};
use switchml_protocol::{LANES_PER_BLOCK, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::tally::{LANES, Tally};

/// Payload of a contribution or a result.
pub type Payload = [U32; LANES_PER_BLOCK];

/// The contribution with that header, except its check word; without its lanes if it is EMPTY.
pub fn contribution(header: Header, tally: &Tally) -> Vec<u8> {
    let mut payload = Payload::default();
    payload.iter_mut().zip(tally).for_each(|(lane, value)| lane.set(*value));
    sealed(header, &payload, 1)
}

/// The datagram of a header and a payload, with the check word of `contributions` contributions.
pub fn sealed(mut header: Header, payload: &[U32], contributions: u32) -> Vec<u8> {
    header.flags |= flags::CHECKED;
    header.check.set(header.check_of(lane_sum(payload), contributions));
    joined(&header, payload)
}

/// The datagram of a header and a payload.
pub fn joined(header: &Header, payload: &[U32]) -> Vec<u8> {
    [header.as_bytes(), payload[..header.payload_lanes().into()].as_bytes()].concat()
}

/// Header and payload of a contribution; the payload is zeros if the contribution is EMPTY.
pub fn split(datagram: &[u8]) -> (Header, Payload) {
    let (header, bytes) = Header::read_from_prefix(datagram).expect("a header");
    let mut payload = Payload::default();
    if header.payload_lanes() > 0 {
        payload = Payload::read_from_bytes(bytes).expect("one block");
    }
    (header, payload)
}

/// Whether a contribution is EMPTY.
pub fn is_empty(contribution: &[u8]) -> bool {
    header(contribution).is_all_zeros()
}

/// The header of a contribution with all its lanes.
pub fn in_full(header: Header) -> Header {
    Header { flags: header.flags & !flags::EMPTY, ..header }
}

/// A header to be filled in.
pub fn blank() -> Header {
    Header::read_from_bytes(&[0; HEADER_LEN]).expect("its size")
}

/// The header of a datagram.
pub fn header(datagram: &[u8]) -> Header {
    Header::read_from_prefix(datagram).expect("a header").0
}

/// The values of a result.
pub fn tally(payload: &[u8]) -> Tally {
    let lanes = <[U32]>::ref_from_bytes(payload).expect("whole lanes");
    assert!(lanes[LANES..].iter().all(|lane| lane.get() == 0), "lanes that nobody uses");
    std::array::from_fn(|lane| lanes[lane].get())
}

/// A datagram with a changed header; its check word is right if it was right before.
pub fn rewritten(datagram: &[u8], ranks: u16, change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let mut header = header(datagram);
    let payload = <[U32]>::ref_from_bytes(&datagram[HEADER_LEN..]).expect("whole lanes");
    let contributions = if header.kind == Kind::Result as u8 { ranks.into() } else { 1 };
    let fitted = header.check.get() == header.check_of(lane_sum(payload), contributions);
    change(&mut header);
    if fitted { sealed(header, payload, contributions) } else { joined(&header, payload) }
}

/// A datagram with one bit flipped: in its first lane the lowest bit of the last digit, so that it
/// counts one contribution too many; without lanes, the last bit of its round.
pub fn corrupted(datagram: &[u8]) -> Vec<u8> {
    let mut datagram = datagram.to_vec();
    match datagram.get_mut(HEADER_LEN) {
        Some(byte) => *byte ^= 0x10,
        None => datagram[offset_of!(Header, round) + 3] ^= 1,
    }
    datagram
}

pub fn lane_sum(payload: &[U32]) -> u32 {
    payload.iter().fold(0, |sum, lane| sum.wrapping_add(lane.get()))
}
