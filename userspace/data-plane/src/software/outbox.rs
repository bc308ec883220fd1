//! Packets on their way out: packets of one size to the same receivers leave in one system call.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use quinn_udp::RecvMeta;
use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::node::Target;
use switchml_protocol::node::egress::{self, Copies, Hop};
use switchml_protocol::wire::header::Header;
use switchml_protocol::wire::ip::Ip;
use switchml_userspace_core::memory_tables::{MemoryTables, done_of};
use zerocopy::FromBytes;

use super::port::Port;
use super::queues::Queues;
use super::roce::RocePort;

/// Most bytes that one system call takes: a UDP datagram, before it is cut into segments.
const MAX_BUNDLE: usize = 65_000;

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To a socket.
    Socket(SocketAddr),
    /// To a host's queue pair, by RoCEv2.
    QueuePair(IpAddr, u32),
}

impl From<&Binding> for Destination {
    fn from(place: &Binding) -> Self {
        let host = place.ip.into();
        match place.queue_pair() {
            None => Self::Socket(SocketAddr::new(host, place.port.get())),
            Some(number) => Self::QueuePair(host, number),
        }
    }
}

/// Where a packet came from, and to which address of ours.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    pub place: Destination,
    pub to: Option<IpAddr>,
}

impl Sender {
    /// The sender of a datagram with this metadata.
    pub fn of(meta: &RecvMeta) -> Self {
        Self { place: Destination::Socket(meta.addr), to: meta.dst_ip }
    }
}

/// The receivers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiver {
    /// One place; the packet leaves from this address of ours, or from any if it does not matter.
    One { place: Destination, from: Option<IpAddr> },
    /// Every rank of the job. The RESULTs have this op.
    Job { number: u16, op: u8 },
}

/// What an outbox must know to find receivers.
#[derive(Clone, Copy)]
pub struct Directory<'a> {
    pub tables: &'a MemoryTables,
    /// Ranks that need no socket.
    pub in_process: Option<&'a Queues>,
    /// The way to ranks by RoCEv2, if they are served.
    pub roce: Option<&'a RocePort>,
}

impl Directory<'_> {
    /// Places to which RESULTs go, those of ranks in this process last: such a rank may end the
    /// process as soon as it has its results.
    fn in_order(&self, mut places: Vec<(Binding, u64)>) -> Vec<(Binding, u64)> {
        places.sort_by_key(|(place, _)| match (self.in_process, Destination::from(place)) {
            (Some(ranks), Destination::Socket(address)) => ranks.has(address),
            _ => false,
        });
        places
    }
}

/// Collects packets, and sends them as bundles.
pub struct Outbox {
    port: Arc<Port>,
    receiver: Receiver,
    /// Size of each packet in `bytes`.
    size: usize,
    bytes: Vec<u8>,
    /// Packets that could not be sent, since this was last asked.
    failed: u64,
}

impl Outbox {
    /// An empty outbox; `port` may be any.
    pub fn new(port: Arc<Port>) -> Self {
        let bytes = Vec::with_capacity(MAX_BUNDLE);
        Self { port, receiver: Receiver::Job { number: 0, op: 0 }, size: 1, bytes, failed: 0 }
    }

    /// Adds a packet that leaves by this port, if it goes anywhere. A packet of this sender has
    /// become it.
    pub fn push(
        &mut self,
        directory: Directory<'_>,
        port: &Arc<Port>,
        target: Target,
        sender: Sender,
        packet: &[u8],
    ) {
        if let Some(receiver) = receiver_of(directory.tables, target, sender, packet) {
            self.push_to(directory, port, receiver, packet);
        }
    }

    /// First sends the collected packets if the packet cannot go with them.
    fn push_to(
        &mut self,
        directory: Directory<'_>,
        port: &Arc<Port>,
        receiver: Receiver,
        packet: &[u8],
    ) {
        let fits = self.bytes.len() + packet.len() <= MAX_BUNDLE
            && self.bytes.len() / self.size < self.port.max_bundle();
        let is_same =
            Arc::ptr_eq(port, &self.port) && receiver == self.receiver && packet.len() == self.size;
        if !is_same || !fits {
            self.flush(directory);
            (self.port, self.receiver) = (Arc::clone(port), receiver);
            self.size = packet.len();
        }
        self.bytes.extend_from_slice(packet);
    }

    /// Sends the collected packets.
    pub fn flush(&mut self, directory: Directory<'_>) {
        if self.bytes.is_empty() {
            return;
        }
        match self.receiver {
            Receiver::One { place, from } => self.send(directory, place, from),
            Receiver::Job { number, .. } => {
                let Some((job, places)) = directory.tables.places(number) else { return };
                let places = directory.in_order(places);
                let from = Some(job.address.into());
                let done = done_of(self.bytes.chunks(self.size));
                for (place, ranks) in places {
                    let place = Destination::from(&place);
                    match &done {
                        Some((done, packet)) if done.is_for(ranks) => {
                            let lost = self.send_to(directory, place, from, packet, packet.len());
                            self.failed += lost as u64;
                        }
                        _ => self.send(directory, place, from),
                    }
                }
            }
        }
        self.bytes.clear();
    }

    /// Number of packets that could not be sent, since this was last asked.
    pub fn take_failed(&mut self) -> u64 {
        std::mem::take(&mut self.failed)
    }

    fn send(&mut self, directory: Directory<'_>, place: Destination, from: Option<IpAddr>) {
        self.failed += self.send_to(directory, place, from, &self.bytes, self.size) as u64;
    }

    /// Sends packets of this size; the number of those that did not leave.
    fn send_to(
        &self,
        directory: Directory<'_>,
        place: Destination,
        from: Option<IpAddr>,
        packets: &[u8],
        size: usize,
    ) -> usize {
        let count = packets.len().div_ceil(size);
        match place {
            Destination::Socket(address) => {
                let ranks = directory.in_process;
                let taken = ranks.and_then(|ranks| ranks.push(address, packets, size));
                let sent = taken.unwrap_or_else(|| self.port.send(packets, size, address, from));
                if sent { 0 } else { count }
            }
            Destination::QueuePair(host, number) => match (directory.roce, from) {
                (Some(roce), Some(from)) => count - roce.send(packets, size, (host, number), from),
                _ => count,
            },
        }
    }
}

/// Who gets the packet that one of this sender has become.
fn receiver_of(
    tables: &MemoryTables,
    target: Target,
    sender: Sender,
    packet: &[u8],
) -> Option<Receiver> {
    let (header, _) = Header::ref_from_prefix(packet).ok()?;
    let (number, rank) = (header.job.get(), header.rank.get());
    let mut hop = Hop::default();
    // A socket does not see interfaces, and sends to no group.
    Some(match egress::route(tables, target, (number, rank), 0, &mut hop)? {
        Copies::None => return None,
        Copies::Back => Receiver::One { place: sender.place, from: sender.to },
        Copies::One => {
            let from = (hop.from != Ip::default()).then(|| hop.from.into());
            Receiver::One { place: Destination::from(&hop.to), from }
        }
        Copies::Each => Receiver::Job { number, op: header.op },
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use switchml_protocol::U16;

    use super::*;

    #[test]
    fn ranks_in_this_process_come_last() {
        let (tables, queues) = (MemoryTables::new(), Queues::default());
        let host = IpAddr::from(Ipv4Addr::LOCALHOST);
        let _queue = queues.add((host, 1).into(), Box::new(|| ()));
        let directory = Directory { tables: &tables, in_process: Some(&queues), roce: None };
        let place = |port: u16| {
            (Binding { ip: host.into(), port: U16::new(port), ..Binding::default() }, 0)
        };
        let order = directory.in_order([1, 2, 3].map(place).into());
        assert_eq!(order.iter().map(|(place, _)| place.port.get()).collect::<Vec<_>>(), [2, 3, 1]);
    }
}
