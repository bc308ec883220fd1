//! RoCEv2 (section 37 of `docs/spec`): a packet as an unreliable datagram of RDMA.
//!
//! | part | where |
//! | --- | --- |
//! | the ICRC | [`crate::wire::icrc`] |
//! | in XDP | `xdp-aggregator/src/roce.rs` |
//! | over sockets | `userspace/data-plane/src/software/roce.rs` |
//! | in P4 | `p4/include/roce.p4`, `roce_parser.p4` and `bmv2/messages.p4`; `userspace/p4/src/roce.rs` |
//! | at a rank | `worker-lib/src/transport/rdma` |
//! | with Linux's own RDMA device | `xtask/src/matrix/rxe.rs` |

use core::mem::size_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bpf_types::job;
use crate::bpf_types::maps::Endpoint;
use crate::node::frame::{Envelope, Network};
use crate::node::ingress::Hook;
use crate::outcome::Outcome;
use crate::wire::header::HEADER_LEN;
use crate::wire::icrc;
use crate::wire::ip::Ip;
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
pub const KEY: u32 = 0x5357_4D4C;
const UDP_LEN: u16 = 8;
/// Offset of the receiver's number in a message.
const RECEIVER: usize = 4;
/// Length of InfiniBand's own headers, in whose place the ICRC covers ones.
const LINK_LEN: usize = 8;
const ONES: [u8; 4] = [0xFF; 4];
/// Bytes in a message besides the packet.
pub const AROUND: usize = Transport::LEN + ICRC_LEN;

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

    const fn sender(&self) -> u32 {
        self.sender.get() & NUMBER_MASK
    }

    /// Rule 37.4: whether these are the headers of a message with a packet of `len` bytes.
    #[inline(always)]
    fn check(&self, len: usize) -> Result<(), Outcome> {
        if self.flags & VERSION_MASK != 0 {
            return Err(Outcome::BadVersion);
        }
        if self.opcode != SEND_ONLY {
            return Err(Outcome::BadKind);
        }
        if self.key.get() != KEY {
            return Err(Outcome::NotOurs);
        }
        if len < HEADER_LEN {
            return Err(Outcome::Truncated);
        }
        if self.flags & PADDING_MASK != 0 {
            return Err(Outcome::BadLength);
        }
        Ok(())
    }
}

const _: () = assert!(Transport::LEN == 20);

/// The number of the receiver's queue pair, of which these are four bytes of a message.
#[inline(always)]
const fn receiver(word: [u8; 4]) -> u32 {
    U32::from_bytes(word).get() & NUMBER_MASK
}

/// Rule 37.4: the sender's queue pair and the packet in a message to this queue pair: what follows
/// a frame's UDP header. The error says why it has none.
pub fn open(message: &mut [u8], queue_pair: u32) -> Result<(u32, &mut [u8]), Outcome> {
    let word = message.get(RECEIVER..).and_then(<[u8]>::first_chunk);
    if word.map(|word| receiver(*word)) != Some(queue_pair) {
        return Err(Outcome::NotOurs);
    }
    let (transport, _) = Transport::ref_from_prefix(message).map_err(|_| Outcome::Truncated)?;
    let len = message.len().checked_sub(AROUND).ok_or(Outcome::Truncated)?;
    transport.check(len)?;
    Ok((transport.sender(), &mut message[Transport::LEN..][..len]))
}

/// Whether a frame with this envelope is a message for the aggregator's queue pair.
#[inline(always)]
pub fn is_for_aggregator<H: Hook, N: Network>(hook: &H, envelope: &Envelope<N>) -> bool {
    if envelope.destination_port.get() != PORT || envelope.is_udp().is_err() {
        return false;
    }
    let word = hook.word(Envelope::<N>::LEN + RECEIVER);
    // Rule 37.2: the number is that of a UDP port.
    let Some(Ok(port)) = word.map(|word| u16::try_from(receiver(word))) else { return false };
    let (mac, ip) = (envelope.mac_destination, envelope.ip.destination());
    hook.is_local(Endpoint::served(mac, ip, U16::new(port)))
}

/// The headers of a frame with a message.
///
/// Frames are served as if the packet had come in a UDP datagram, whose ports are the low 16 bits
/// of the queue pairs' numbers.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Headers<N> {
    envelope: Envelope<N>,
    transport: Transport,
}

impl<N: Network> Headers<N> {
    /// Size of these headers in bytes.
    pub const LEN: usize = size_of::<Self>();

    /// Rules 7.1 and 37.4: whether a frame to the aggregator's queue pair is a message with a
    /// packet. The error says why not.
    #[inline(always)]
    pub fn check(&self, frame_len: usize) -> Result<(), Outcome> {
        let message_len = self.envelope.payload_len(frame_len)? + HEADER_LEN;
        self.transport.check(message_len.checked_sub(AROUND).ok_or(Outcome::Truncated)?)
    }

    /// Has these headers end in the envelope of the datagram. Returns
    /// [`Binding::roce`](crate::bpf_types::job::Binding::roce) of the message's sender.
    #[inline(always)]
    pub fn become_datagram(&mut self) -> [u8; 2] {
        let (roce, port) = job::of_queue_pair(self.transport.sender());
        let Self { envelope, transport } = self;
        envelope.source_port = port;
        envelope.destination_port.set(transport.receiver.get() as u16);
        envelope.lengthen((AROUND as u16).wrapping_neg());
        self.as_mut_bytes().copy_within(..Envelope::<N>::LEN, Transport::LEN);
        roce
    }

    /// Makes these headers, which end in the envelope of a datagram, those of a message to the
    /// queue pair of a binding with this [`roce`](crate::bpf_types::job::Binding::roce).
    #[inline(always)]
    pub fn become_message(&mut self, [_, high]: [u8; 2]) {
        self.as_mut_bytes().copy_within(Transport::LEN.., 0);
        let Self { envelope, transport } = self;
        let receiver = u32::from(high) << 16 | u32::from(envelope.destination_port.get());
        *transport = Transport::between(envelope.source_port.get().into(), receiver);
        envelope.source_port.set(PORT);
        envelope.destination_port.set(PORT);
        envelope.udp_checksum.set(0);
        envelope.lengthen(AROUND as u16);
        envelope.forbid_marks();
    }

    /// The words of payload behind the packet's header, if the message holds a header.
    #[inline(always)]
    pub fn lanes(&self) -> Option<usize> {
        let len = usize::from(self.envelope.udp_len.get());
        Some(len.checked_sub(usize::from(UDP_LEN) + AROUND + HEADER_LEN)? / 4)
    }

    /// The ICRC of the message with a packet that leaves this register, with so many words of
    /// payload.
    #[inline(always)]
    pub fn icrc(&self, packet: u32, lanes: usize) -> [u8; ICRC_LEN] {
        let Self { envelope, transport } = self;
        let mut register = icrc::FIRST;
        for _ in 0..LINK_LEN / 4 {
            register = icrc::take(register, ONES);
        }
        let ip = envelope.ip.masked();
        for word in ip.as_bytes().as_chunks().0 {
            register = icrc::take(register, *word);
        }
        let [a, b] = envelope.source_port.to_bytes();
        let [c, d] = envelope.destination_port.to_bytes();
        register = icrc::take(register, [a, b, c, d]);
        let [a, b] = envelope.udp_len.to_bytes();
        register = icrc::take(register, [a, b, 0xFF, 0xFF]);
        for (index, word) in transport.as_bytes().as_chunks().0.iter().enumerate() {
            let [a, b, c, d] = *word;
            let a = if index == RECEIVER / 4 { 0xFF } else { a };
            register = icrc::take(register, [a, b, c, d]);
        }
        icrc::join(register, packet, lanes)
    }
}

/// What a message's ICRC covers in front of the packet, with ones in place of what changes on the
/// way (rule 37.5).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Covered<N> {
    /// In place of the header of InfiniBand's own link layer.
    link: [u8; LINK_LEN],
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
            link: [0xFF; LINK_LEN],
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
