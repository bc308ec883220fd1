//! Ranks with RDMA NICs, by RoCEv2 (section 37 of `docs/spec`). The kernel writes IP and UDP
//! headers, so this knows what is in them: the ICRC covers them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use quinn_udp::RecvMeta;
use switchml_protocol::node::frame::{Ipv4, Ipv6, Network};
use switchml_protocol::node::roce::{self, Covered, ICRC_LEN, Transport};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::wire::ip::Ip;
use zerocopy::IntoBytes;

use super::port::{Inbox, Port};

/// RoCEv2's UDP port, and the aggregator's queue pair there.
pub struct RocePort {
    port: Port,
    queue_pair: u32,
}

/// A message's packet, or why there is none, and its sender's queue pair.
pub type Message<'a> = Result<(u32, &'a mut [u8]), Outcome>;

impl RocePort {
    /// Opens RoCEv2's port of every address, or of `address` alone.
    ///
    /// # Errors
    ///
    /// When the port cannot be opened.
    pub fn bind(address: Option<IpAddr>, queue_pair: u32) -> io::Result<Self> {
        // Rule 37.5: not capable of ECN.
        Ok(Self { port: Port::bind(address, roce::PORT)?.without_ecn(), queue_pair })
    }

    /// Reads the messages that have arrived; `serve` gets each, and its metadata.
    ///
    /// # Errors
    ///
    /// When the kernel fails to read.
    pub fn receive(
        &self,
        inbox: &mut Inbox,
        mut serve: impl FnMut(Message<'_>, &RecvMeta),
    ) -> io::Result<()> {
        self.port.receive(inbox, |buffer, meta| {
            for message in buffer.chunks_mut(meta.stride.max(1)) {
                serve(roce::open(message, self.queue_pair), meta);
            }
        })
    }

    /// Sends packets of `size` bytes to a queue pair; the number of those that the kernel took.
    ///
    /// Each takes a system call: in a superpacket the kernel would count up the identification,
    /// which the ICRC covers.
    pub fn send(
        &self,
        packets: &[u8],
        size: usize,
        (host, queue_pair): (IpAddr, u32),
        from: IpAddr,
    ) -> usize {
        let transport = Transport::between(self.queue_pair, queue_pair);
        let mut message = Vec::with_capacity(Transport::LEN + size + ICRC_LEN);
        let send = |packet: &&[u8]| {
            message.clear();
            message.extend_from_slice(transport.as_bytes());
            message.extend_from_slice(packet);
            message.extend_from_slice(&icrc(from.into(), host.into(), &transport, packet));
            let destination = SocketAddr::new(host, roce::PORT);
            self.port.send(&message, message.len(), destination, Some(from))
        };
        packets.chunks(size).filter(send).count()
    }
}

impl AsFd for RocePort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }
}

/// Rule 37.5: the ICRC of an answer.
fn icrc(source: Ip, destination: Ip, transport: &Transport, packet: &[u8]) -> [u8; ICRC_LEN] {
    let of = if destination.is_v4() { icrc_over::<Ipv4> } else { icrc_over::<Ipv6> };
    of(source, destination, transport, packet)
}

fn icrc_over<N: Network>(
    source: Ip,
    destination: Ip,
    transport: &Transport,
    packet: &[u8],
) -> [u8; ICRC_LEN] {
    let len = packet.len() as u16;
    let covered = Covered::<N>::of_answer(source, destination, transport, len);
    let mut crc = crc32fast::Hasher::new();
    crc.update(covered.as_bytes());
    crc.update(packet);
    crc.finalize().to_le_bytes()
}
