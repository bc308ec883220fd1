//! Packets on their way out: packets of one size to the same receivers leave in one system call.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use switchml_protocol::audience::Audience;
use switchml_protocol::done::Done;
use switchml_protocol::header::Header;
use switchml_userspace_core::memory_tables::MemoryTables;
use zerocopy::{FromBytes, IntoBytes};

use super::port::Port;

/// Most bytes that one system call takes: a UDP datagram, before it is cut into segments.
const MAX_BUNDLE: usize = 65_000;

/// The receivers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// One address; the packet leaves from this address of ours, or from any if it does not matter.
    One { address: SocketAddr, from: Option<IpAddr> },
    /// Every rank of the job. The RESULTs have this op.
    Job { number: u16, op: u8 },
}

/// Collects packets, and sends them as bundles.
pub struct Outbox<'a> {
    tables: &'a MemoryTables,
    port: Arc<Port>,
    receiver: Receiver,
    /// Size of each packet in `bytes`.
    size: usize,
    bytes: Vec<u8>,
    /// Packets that could not be sent, since this was last asked.
    failed: u64,
}

impl<'a> Outbox<'a> {
    /// An empty outbox; `port` may be any.
    pub fn new(port: Arc<Port>, tables: &'a MemoryTables) -> Self {
        let bytes = Vec::with_capacity(MAX_BUNDLE);
        Self {
            tables,
            port,
            receiver: Receiver::Job { number: 0, op: 0 },
            size: 1,
            bytes,
            failed: 0,
        }
    }

    /// Adds a packet that leaves by this port; first sends the collected ones if it cannot go with
    /// them.
    pub fn push(&mut self, port: &Arc<Port>, receiver: Receiver, packet: &[u8]) {
        let fits = self.bytes.len() + packet.len() <= MAX_BUNDLE
            && self.bytes.len() / self.size < self.port.max_bundle();
        let is_same =
            Arc::ptr_eq(port, &self.port) && receiver == self.receiver && packet.len() == self.size;
        if !is_same || !fits {
            self.flush();
            (self.port, self.receiver) = (Arc::clone(port), receiver);
            self.size = packet.len();
        }
        self.bytes.extend_from_slice(packet);
    }

    /// Sends the collected packets.
    pub fn flush(&mut self) {
        if self.bytes.is_empty() {
            return;
        }
        match self.receiver {
            Receiver::One { address, from } => self.send(address, from),
            Receiver::Job { number, op } => {
                let Some((job, places)) = self.tables.places(number) else { return };
                let from = Some(job.address.into());
                let (audience, done) = (Audience::of(op), self.done());
                for (place, ranks) in places {
                    let address = SocketAddr::new(place.ip.into(), place.port.get());
                    match &done {
                        Some(done) if !audience.has_any(ranks) => {
                            if !self.port.send(done, done.len(), address, from) {
                                self.failed += 1;
                            }
                        }
                        _ => self.send(address, from),
                    }
                }
            }
        }
        self.bytes.clear();
    }

    /// Rule 9.4: the DONE of the RESULTs that were collected, if they are all of one call.
    fn done(&self) -> Option<Vec<u8>> {
        let header = |packet| Header::ref_from_prefix(packet).ok().map(|(header, _)| header);
        let mut results = self.bytes.chunks(self.size).map(header);
        let mut done = Done::new(results.next()?.filter(|result| Done::may_tell(result))?);
        let mut lanes = Vec::new();
        for result in self.bytes.chunks(self.size).map(header) {
            let result = result.filter(|result| done.takes(result))?;
            lanes.extend_from_slice(&done.add(result).to_be_bytes());
        }
        Some([done.header().as_bytes(), &lanes].concat())
    }

    /// Number of packets that could not be sent, since this was last asked.
    pub fn take_failed(&mut self) -> u64 {
        std::mem::take(&mut self.failed)
    }

    fn send(&mut self, destination: SocketAddr, from: Option<IpAddr>) {
        if !self.port.send(&self.bytes, self.size, destination, from) {
            self.failed += (self.bytes.len() / self.size) as u64;
        }
    }
}
