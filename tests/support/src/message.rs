//! Frames with messages of RoCEv2, made from rules 37.1 to 37.5, and their ICRCs bit by bit.

use crate::frame::{AGGREGATOR_PORT, Envelope, Packet, over_ipv6};

/// UDP port of RoCEv2.
pub const PORT: u16 = 4791;
/// BTH and DETH.
pub const HEADERS_LEN: usize = 20;
/// Queue pairs of ranks have these numbers, and the rank's.
const FIRST_QUEUE_PAIR: u32 = 0xAB_9000;

/// The number of a rank's queue pair.
pub fn queue_pair(rank: u16) -> u32 {
    FIRST_QUEUE_PAIR + u32::from(rank)
}

/// A message with this envelope between queue pairs.
pub fn message(
    envelope: &Envelope,
    sender: u32,
    receiver: u32,
    number: u32,
    packet: &[u8],
) -> Vec<u8> {
    // UD SEND ONLY; migrated, no padding, version 0; the default partition.
    let mut bytes = vec![0x64, 0x40, 0xFF, 0xFF];
    bytes.extend(receiver.to_be_bytes());
    bytes.extend(number.to_be_bytes());
    bytes.extend(*b"SWML");
    bytes.extend(sender.to_be_bytes());
    assert_eq!(bytes.len(), HEADERS_LEN);
    bytes.extend(packet);
    bytes.extend([0; 4]);
    let mut frame = envelope.bytes(&bytes);
    seal(&mut frame);
    frame
}

/// Fills in the ICRC that ends a frame without a VLAN tag.
pub fn seal(frame: &mut [u8]) {
    let end = frame.len() - 4;
    let icrc = icrc(&frame[14..end], frame[12..14] == [0x86, 0xDD]);
    frame[end..].copy_from_slice(&icrc);
}

/// A frame over IPv4 as it would be over IPv6.
pub fn message_over_ipv6(frame: &[u8]) -> Vec<u8> {
    let mut frame = over_ipv6(frame);
    seal(&mut frame);
    frame
}

/// Rule 37.5: of an IP packet without its ICRC.
fn icrc(packet: &[u8], is_v6: bool) -> [u8; 4] {
    let mut masked = packet.to_vec();
    // Traffic class, flow label and hop limit, or TOS, TTL and checksum; then UDP's checksum, and
    // the byte in front of the receiver's queue pair.
    let (changing, udp): (&[usize], _) =
        if is_v6 { (&[1, 2, 3, 7], 40) } else { (&[1, 8, 10, 11], 20) };
    if is_v6 {
        masked[0] |= 0x0F;
    }
    for at in changing.iter().copied().chain([udp + 6, udp + 7, udp + 8 + 4]) {
        masked[at] = 0xFF;
    }
    let covered = [&[0xFF; 8], &masked[..]].concat();
    // The CRC-32 of IEEE 802.3, bit by bit.
    let register = covered.iter().fold(u32::MAX, |register, byte| {
        (0..8).fold(register, |register, bit| {
            let out = register & 1 != u32::from(byte >> bit) & 1;
            (register >> 1) ^ if out { 0xEDB8_8320 } else { 0 }
        })
    });
    (!register).to_le_bytes()
}

impl Packet {
    /// The message in which a rank sends these bytes of a packet.
    pub fn message_of(&self, bytes: &[u8]) -> Vec<u8> {
        let envelope = Envelope {
            // As NICs choose it; and a checksum that nobody compares.
            source_port: 0xC123,
            destination_port: PORT,
            ..self.request()
        };
        let aggregator = AGGREGATOR_PORT.into();
        message(&envelope, queue_pair(self.rank), aggregator, 0x00_1234, bytes)
    }

    /// The message in which the rank of this packet sends it.
    pub fn message(&self) -> Vec<u8> {
        self.message_of(&self.bytes())
    }

    /// The message in which the aggregator sends these bytes to the rank of this packet.
    pub fn answer_of(&self, bytes: &[u8]) -> Vec<u8> {
        let asked = self.request();
        let envelope = Envelope {
            mac_destination: asked.mac_source,
            mac_source: asked.mac_destination,
            source: asked.destination,
            destination: asked.source,
            source_port: PORT,
            destination_port: PORT,
            ..Envelope::FROM_AGGREGATOR
        };
        message(&envelope, AGGREGATOR_PORT.into(), queue_pair(self.rank), 0, bytes)
    }

    /// The message in which the aggregator sends the packet to its rank.
    pub fn answer(&self) -> Vec<u8> {
        self.answer_of(&self.bytes())
    }
}
