//! Frames made by hand, for a job that all tests share. Offsets and formulas come from the
//! specification, written a second time: nothing here comes from the protocol crate.
//! [`crate::packet`] encodes what is behind the UDP header.

use siphasher::sip::SipHasher24;
use std::hash::Hasher;

pub use crate::packet::{
    CE, CHECKED, CONTRIBUTION, DONE, EMPTY, EVERYONE, FILLER, HELLO, MAX, PARTIAL, PENDING,
    Packet as Wire, REJECT, RESULT, RETRANSMIT, ROOM, SUM, TAGGED,
};

/// Offset of a packet's flags.
const FLAGS: usize = 17;

/// The MAC of the tests' aggregator.
pub const AGGREGATOR_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0xFE];
pub const AGGREGATOR_IP: [u8; 4] = [10, 0, 0, 254];
pub const AGGREGATOR_PORT: u16 = 48864;

/// Interface that all frames come in through: the kernel runs test packets as if they came in by
/// the loopback interface.
pub const IFINDEX: u32 = 1;

/// The tests' job.
pub const JOB: u16 = 7;
pub const EPOCH: u32 = 0x0102_0304;
pub const FINGERPRINT: u32 = 0xFEED_F00D;
pub const GROUP_IP: [u8; 4] = [239, 129, 2, 3];
pub const GROUP_PORT: u16 = 50_007;

/// A packet of the protocol: 32 bytes of header, and lanes.
#[derive(Clone, Debug)]
pub struct Packet {
    pub version: u8,
    pub kind: u8,
    pub job: u16,
    pub epoch: u32,
    pub rank: u16,
    pub slot: u16,
    pub round: u32,
    pub op: u8,
    pub flags: u8,
    /// The header's lane count, where it is not the number of `values`.
    pub lanes: Option<u16>,
    pub fingerprint: u32,
    /// The check word, where it is not the right one.
    pub check: Option<u32>,
    /// The number of contributions in the packet.
    pub contributions: u32,
    pub aux: u32,
    pub values: Vec<u32>,
}

impl Packet {
    /// Rank `rank`'s contribution of `values` to round `round` of slot `slot`.
    pub fn contribution(rank: u16, slot: u16, round: u32, values: &[u32]) -> Self {
        Self {
            version: 1,
            kind: CONTRIBUTION,
            job: JOB,
            epoch: EPOCH,
            rank,
            slot,
            round,
            op: SUM,
            flags: CHECKED,
            lanes: None,
            fingerprint: FINGERPRINT,
            check: None,
            contributions: 1,
            aux: 0xA000_0000 + u32::from(rank),
            values: values.to_vec(),
        }
    }

    /// Rank `rank`'s HELLO with its secret and `lanes` words of payload.
    pub fn hello(rank: u16, lanes: usize) -> Self {
        Self {
            kind: HELLO,
            fingerprint: 0,
            aux: secret(rank),
            ..Self::contribution(rank, 0, 0, &vec![0; lanes])
        }
    }

    /// The unicast RESULT that answers `self`.
    pub fn result(&self, flags: u8, contributions: u32, values: &[u32]) -> Self {
        Self {
            kind: RESULT,
            flags,
            contributions,
            values: values.to_vec(),
            check: None,
            ..self.clone()
        }
    }

    /// The RESULT for all, where `self` completed the round.
    pub fn result_for_all(&self, flags: u8, contributions: u32, values: &[u32]) -> Self {
        Self { rank: EVERYONE, aux: 0, ..self.result(flags, contributions, values) }
    }

    /// The PENDING that answers `self`, with the bitmap of ranks.
    pub fn pending(&self, seen: u64) -> Self {
        self.control_reply(PENDING, [(seen >> 32) as u32, seen as u32])
    }

    /// The REJECT that answers `self`.
    pub fn reject(&self, reason: u32, detail: u32) -> Self {
        self.control_reply(REJECT, [reason, detail])
    }

    fn control_reply(&self, kind: u8, words: [u32; 2]) -> Self {
        let (op, flags, contributions) = (SUM, CHECKED, 1);
        Self {
            kind,
            op,
            flags,
            contributions,
            lanes: None,
            check: None,
            values: words.to_vec(),
            ..self.clone()
        }
    }

    pub fn lane_count(&self) -> u16 {
        self.lanes.unwrap_or(self.values.len() as u16)
    }

    /// The check word that fits.
    pub fn right_check(&self) -> u32 {
        crate::packet::check_word(&self.encoded(0), self.contributions.into())
    }

    /// Header and lanes as they are on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        self.encoded(self.check.unwrap_or_else(|| self.right_check())).to_bytes()
    }

    fn encoded(&self, check: u32) -> Wire {
        Wire {
            version: self.version,
            kind: self.kind,
            job: self.job,
            epoch: self.epoch,
            rank: self.rank,
            slot: self.slot,
            round: self.round,
            op: self.op,
            flags: self.flags,
            lanes: self.lane_count(),
            fingerprint: self.fingerprint,
            check,
            aux: self.aux,
            payload: self.values.clone(),
            tag: None,
        }
    }

    /// The frame in which the rank sends the packet to the aggregator.
    pub fn frame(&self) -> Vec<u8> {
        self.request().bytes(&self.bytes())
    }

    /// The envelope of packets from the rank to the aggregator.
    pub fn request(&self) -> Envelope {
        Envelope {
            mac_destination: AGGREGATOR_MAC,
            mac_source: mac(self.rank),
            tos: 0,
            id: 0x1234,
            fragment: 0x4000,
            ttl: 63,
            source: ip(self.rank),
            destination: AGGREGATOR_IP,
            source_port: port(self.rank),
            destination_port: AGGREGATOR_PORT,
            udp_checksum: 0xBEEF,
        }
    }

    /// The frame in which the aggregator sends the packet to rank `to`.
    pub fn reply(&self, to: u16) -> Vec<u8> {
        let reply = Envelope {
            mac_destination: mac(to),
            mac_source: AGGREGATOR_MAC,
            source: AGGREGATOR_IP,
            destination: ip(to),
            source_port: AGGREGATOR_PORT,
            destination_port: port(to),
            ..Envelope::FROM_AGGREGATOR
        };
        reply.bytes(&self.bytes())
    }

    /// The frame in which the aggregator sends the packet to the job's group.
    pub fn to_group(&self) -> Vec<u8> {
        let all = Envelope {
            // 01:00:5e and the low 23 bits of the group's address.
            mac_destination: [0x01, 0x00, 0x5E, 0x01, 0x02, 0x03],
            mac_source: AGGREGATOR_MAC,
            source: AGGREGATOR_IP,
            destination: GROUP_IP,
            source_port: AGGREGATOR_PORT,
            destination_port: GROUP_PORT,
            ..Envelope::FROM_AGGREGATOR
        };
        all.bytes(&self.bytes())
    }
}

/// The secret that the control plane gave to a rank.
pub fn secret(rank: u16) -> u32 {
    0x5EC2_0000 + u32::from(rank)
}

pub fn mac(rank: u16) -> [u8; 6] {
    [0x02, 0, 0, 0, 0, rank as u8 + 1]
}

pub fn ip(rank: u16) -> [u8; 4] {
    [10, 0, 0, rank as u8 + 1]
}

pub fn port(rank: u16) -> u16 {
    40_000 + rank
}

/// Ethernet, IPv4 and UDP around a packet.
#[derive(Clone, Debug)]
pub struct Envelope {
    pub mac_destination: [u8; 6],
    pub mac_source: [u8; 6],
    pub tos: u8,
    pub id: u16,
    pub fragment: u16,
    pub ttl: u8,
    pub source: [u8; 4],
    pub destination: [u8; 4],
    pub source_port: u16,
    pub destination_port: u16,
    pub udp_checksum: u16,
}

impl Envelope {
    /// The fields that all frames from the aggregator share.
    pub const FROM_AGGREGATOR: Self = Self {
        mac_destination: [0; 6],
        mac_source: [0; 6],
        tos: 0,
        id: 0,
        fragment: 0x4000,
        ttl: 64,
        source: [0; 4],
        destination: [0; 4],
        source_port: 0,
        destination_port: 0,
        udp_checksum: 0,
    };

    /// The frame with `payload` behind the UDP header.
    pub fn bytes(&self, payload: &[u8]) -> Vec<u8> {
        let udp_len = 8 + payload.len() as u16;
        let mut ipv4 = vec![0x45, self.tos];
        ipv4.extend((20 + udp_len).to_be_bytes());
        ipv4.extend(self.id.to_be_bytes());
        ipv4.extend(self.fragment.to_be_bytes());
        ipv4.extend([self.ttl, 17, 0, 0]);
        ipv4.extend(self.source);
        ipv4.extend(self.destination);
        fix_ip_checksum(&mut ipv4);

        let mut frame = Vec::new();
        frame.extend(self.mac_destination);
        frame.extend(self.mac_source);
        frame.extend([0x08, 0x00]);
        frame.extend(ipv4);
        frame.extend(self.source_port.to_be_bytes());
        frame.extend(self.destination_port.to_be_bytes());
        frame.extend(udp_len.to_be_bytes());
        frame.extend(self.udp_checksum.to_be_bytes());
        frame.extend(payload);
        frame
    }
}

/// Fills in the checksum of an IPv4 header of 20 bytes: the complement of the ones' complement sum
/// of its words (RFC 791).
pub fn fix_ip_checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let mut sum: u32 =
        header[..20].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    let checksum = !(sum as u16);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// The key of a rank, or the job's for everyone.
pub fn key(rank: u16) -> [u8; 16] {
    let [high, low] = rank.to_be_bytes();
    [0x5E, 0xC2, high, low, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0xFF]
}

/// Rules 28.1 and 28.2: header and lanes of a packet with their tag by this key.
pub fn tagged(packet: &[u8], key: [u8; 16]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[FLAGS] |= TAGGED;
    let mut covered = packet[..32].to_vec();
    covered[FLAGS] &= !CE;
    let mut hasher = SipHasher24::new_with_key(&key);
    hasher.write(&covered);
    packet.extend(hasher.finish().to_be_bytes());
    packet
}

/// The packet of a frame over IPv4 with a tag by the key of its rank, which differs from the right
/// one by this; a frame whose lengths are wrong as it is.
pub fn tagged_frame(frame: &[u8], by: u64) -> Vec<u8> {
    let vlan = if frame.get(12..14) == Some(&[0x81, 0x00]) { 4 } else { 0 };
    let number =
        |at: usize| Some(usize::from(*frame.get(at)?) << 8 | usize::from(*frame.get(at + 1)?));
    let (ip_len, udp_len) = (number(16 + vlan), number(38 + vlan));
    let (Some(ip_len), Some(udp_len)) = (ip_len, udp_len) else { return frame.to_vec() };
    let (begin, end) = (42 + vlan, 34 + vlan + udp_len);
    if ip_len != udp_len + 20 || udp_len < 40 || end > frame.len() {
        return frame.to_vec();
    }
    let rank = u16::from_be_bytes([frame[begin + 8], frame[begin + 9]]);
    let mut packet = tagged(&frame[begin..end], key(rank));
    let tag = packet.len() - 8;
    packet[tag..].iter_mut().zip(by.to_be_bytes()).for_each(|(byte, change)| *byte ^= change);
    let mut frame = [&frame[..begin], &packet, &frame[end..]].concat();
    let mut set = |at: usize, number: u16| frame[at..at + 2].copy_from_slice(&number.to_be_bytes());
    set(38 + vlan, udp_len as u16 + 8);
    set(16 + vlan, ip_len as u16 + 8);
    // The checksum stays as wrong as it was (RFC 1624).
    let checksum = !u16::from_be_bytes([frame[24 + vlan], frame[25 + vlan]]);
    let (sum, carry) = checksum.overflowing_add(8);
    frame[24 + vlan..26 + vlan].copy_from_slice(&(!(sum + u16::from(carry))).to_be_bytes());
    frame
}

/// The IPv6 address that stands for an IPv4 address in frames [`over_ipv6`].
pub fn v6([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [0xFD, 0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
}

/// A frame over IPv4, maybe a damaged one, as it would be over IPv6 (RFC 8200); any other as it is.
pub fn over_ipv6(frame: &[u8]) -> Vec<u8> {
    let tag = if frame.get(12..14) == Some(&[0x81, 0x00]) { 4 } else { 0 };
    let ethertype = 12 + tag;
    let Some((before, ip)) = frame.split_at_checked(ethertype + 2) else { return frame.to_vec() };
    if ip.len() < 20 || before[ethertype..] != [0x08, 0x00] {
        return frame.to_vec();
    }
    let (header, behind) = ip.split_at(20);
    let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let version: u32 = if header[0] == 0x45 { 6 } else { 4 };
    let next = if number(6) & 0x3FFF == 0 { header[9] } else { 44 };
    let first = version << 28 | u32::from(header[1]) << 20 | u32::from(number(4));
    let payload_len = number(2).wrapping_sub(20);
    let address = |at: usize| v6([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    [
        &before[..ethertype],
        &[0x86, 0xDD],
        &first.to_be_bytes(),
        &payload_len.to_be_bytes(),
        &[next, header[8]],
        &address(12),
        &address(16),
        behind,
    ]
    .concat()
}
