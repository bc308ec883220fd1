//! RoCEv2 (section 37 of `docs/protocol.md`): a packet as an unreliable datagram of RDMA.

use core::mem::size_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::frame::Network;
use crate::header::HEADER_LEN;
use crate::ip::Ip;
use crate::outcome::Outcome;
use crate::{U16, U32};

/// UDP port of RoCEv2.
pub const PORT: u16 = 4791;
/// Length of the ICRC, which ends a message.
pub const ICRC_LEN: usize = 4;

/// UD SEND ONLY.
const SEND_ONLY: u8 = 0x64;
/// What queue pairs without an alternate path say ("migrated"); the packet needs no padding.
const FLAGS: u8 = 0x40;
const PADDING_MASK: u8 = 0x30;
const VERSION_MASK: u8 = 0x0F;
const DEFAULT_PARTITION: u16 = 0xFFFF;
/// Numbers of queue pairs have 24 bits, beside a byte of other bits.
const NUMBER_MASK: u32 = 0x00FF_FFFF;
/// Q_Key of all queue pairs. Its highest bit is 0: others need privilege.
const KEY: u32 = 0x5357_4D4C;
const UDP_LEN: u16 = 8;

/// Headers between UDP's and the packet (rule 37.1): BTH and DETH.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Transport {
    opcode: u8,
    flags: u8,
    partition: U16,
    receiver: U32,
    /// The packet's number, which nobody compares.
    number: U32,
    key: U32,
    sender: U32,
}

impl Transport {
    /// Size of these headers in bytes.
    pub const LEN: usize = size_of::<Self>();

    /// The headers of a message between these queue pairs.
    pub const fn between(sender: u32, receiver: u32) -> Self {
        Self {
            opcode: SEND_ONLY,
            flags: FLAGS,
            partition: U16::new(DEFAULT_PARTITION),
            receiver: U32::new(receiver & NUMBER_MASK),
            number: U32::new(0),
            key: U32::new(KEY),
            sender: U32::new(sender & NUMBER_MASK),
        }
    }
}

const _: () = assert!(Transport::LEN == 20);

/// Rule 37.4: the sender's queue pair and the packet in a message to this queue pair: what follows
/// a frame's UDP header. The error says why it has none.
pub fn open(message: &mut [u8], queue_pair: u32) -> Result<(u32, &mut [u8]), Outcome> {
    let (transport, rest) = Transport::ref_from_prefix(message).map_err(|_| Outcome::Truncated)?;
    let packet_len = rest.len().checked_sub(ICRC_LEN).ok_or(Outcome::Truncated)?;
    let sender = transport.sender.get() & NUMBER_MASK;
    if transport.receiver.get() & NUMBER_MASK != queue_pair {
        return Err(Outcome::NotOurs);
    }
    if transport.flags & VERSION_MASK != 0 {
        return Err(Outcome::BadVersion);
    }
    if transport.opcode != SEND_ONLY {
        return Err(Outcome::BadKind);
    }
    if transport.key.get() != KEY {
        return Err(Outcome::NotOurs);
    }
    if packet_len < HEADER_LEN {
        return Err(Outcome::Truncated);
    }
    if transport.flags & PADDING_MASK != 0 {
        return Err(Outcome::BadLength);
    }
    Ok((sender, &mut message[Transport::LEN..][..packet_len]))
}

/// What a message's ICRC covers in front of the packet, with ones in place of what changes on the
/// way (rule 37.5).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Covered<N> {
    /// In place of the header of InfiniBand's own link layer.
    link: [u8; 8],
    ip: N,
    source_port: U16,
    destination_port: U16,
    udp_len: U16,
    udp_checksum: U16,
    transport: Transport,
}

impl<N: Network> Covered<N> {
    /// Of a message with a packet of `len` bytes, and with this IP header.
    pub fn new(ip: N, source_port: u16, transport: &Transport, len: u16) -> Self {
        let mut transport = *transport;
        transport.receiver.set(transport.receiver.get() | !NUMBER_MASK);
        Self {
            link: [0xFF; 8],
            ip: ip.masked(),
            source_port: U16::new(source_port),
            destination_port: U16::new(PORT),
            udp_len: U16::new(udp_len(len)),
            udp_checksum: U16::new(0xFFFF),
            transport,
        }
    }

    /// Of an answer, which leaves with Don't Fragment, and over IPv4 with identification 0.
    pub fn of_answer(source: Ip, destination: Ip, transport: &Transport, len: u16) -> Self {
        let mut ip = N::between(source, destination);
        ip.finish(0, udp_len(len));
        Self::new(ip, PORT, transport, len)
    }
}

const fn udp_len(len: u16) -> u16 {
    UDP_LEN + (Transport::LEN + ICRC_LEN) as u16 + len
}
