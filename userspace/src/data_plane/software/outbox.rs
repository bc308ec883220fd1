//! Packets on their way out: packets of one size to the same receivers leave in one system call.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use quinn_udp::RecvMeta;
use switchml_protocol::aggregator::Members;
use switchml_protocol::header::Header;
use switchml_protocol::job::Binding;
use switchml_protocol::node::Target;
use switchml_userspace_core::memory_tables::{MemoryTables, done_of};
use zerocopy::FromBytes;

use super::port::Port;
use super::queues::Queues;

/// Most bytes that one system call takes: a UDP datagram, before it is cut into segments.
const MAX_BUNDLE: usize = 65_000;

/// The receivers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiver {
    /// One address; the packet leaves from this address of ours, or from any if it does not matter.
    One { address: SocketAddr, from: Option<IpAddr> },
    /// Every rank of the job. The RESULTs have this op.
    Job { number: u16, op: u8 },
}

/// What an outbox must know to find receivers.
#[derive(Clone, Copy)]
pub struct Directory<'a> {
    pub tables: &'a MemoryTables,
    /// Ranks that need no socket.
    pub in_process: Option<&'a Queues>,
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

    /// Adds a packet that leaves by this port, if it goes anywhere. A datagram with this metadata
    /// has become it.
    pub fn push(
        &mut self,
        directory: Directory<'_>,
        port: &Arc<Port>,
        target: Target,
        meta: &RecvMeta,
        packet: &[u8],
    ) {
        if let Some(receiver) = receiver_of(directory.tables, target, meta, packet) {
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
            Receiver::One { address, from } => self.send(directory, address, from),
            Receiver::Job { number, .. } => {
                let Some((job, places)) = directory.tables.places(number) else { return };
                let from = Some(job.address.into());
                let done = done_of(self.bytes.chunks(self.size));
                for (place, ranks) in places {
                    let address = socket_of(&place);
                    match &done {
                        Some((done, packet)) if done.is_for(ranks) => {
                            let sent = self.send_to(directory, address, from, packet, packet.len());
                            self.failed += u64::from(!sent);
                        }
                        _ => self.send(directory, address, from),
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

    fn send(&mut self, directory: Directory<'_>, destination: SocketAddr, from: Option<IpAddr>) {
        if !self.send_to(directory, destination, from, &self.bytes, self.size) {
            self.failed += (self.bytes.len() / self.size) as u64;
        }
    }

    /// Whether packets of this size left.
    fn send_to(
        &self,
        directory: Directory<'_>,
        destination: SocketAddr,
        from: Option<IpAddr>,
        packets: &[u8],
        size: usize,
    ) -> bool {
        let taken = directory.in_process.and_then(|ranks| ranks.push(destination, packets, size));
        taken.unwrap_or_else(|| self.port.send(packets, size, destination, from))
    }
}

/// Who gets the packet that a datagram with this metadata has become.
fn receiver_of(
    tables: &MemoryTables,
    target: Target,
    meta: &RecvMeta,
    packet: &[u8],
) -> Option<Receiver> {
    let (header, _) = Header::ref_from_prefix(packet).ok()?;
    let number = header.job.get();
    Some(match target {
        Target::Nobody | Target::Host => return None,
        // A socket sends to no group.
        Target::Sender | Target::SendersGroup => {
            Receiver::One { address: meta.addr, from: meta.dst_ip }
        }
        Target::All => Receiver::Job { number, op: header.op },
        Target::Parent { job, .. } => {
            Receiver::One { address: socket_of(&tables.parent(job)?), from: None }
        }
        Target::Rank => {
            let home = tables.home(number, header.rank.get())?;
            let from = tables.job(number)?.address.into();
            Receiver::One { address: socket_of(&home), from: Some(from) }
        }
    })
}

fn socket_of(place: &Binding) -> SocketAddr {
    SocketAddr::new(place.ip.into(), place.port.get())
}
