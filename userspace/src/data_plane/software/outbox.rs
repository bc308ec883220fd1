//! Answers on their way out: those of one size to the same receivers leave in one system call.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;

use quinn_udp::{EcnCodepoint, Transmit, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use switchml_userspace_core::memory_tables::MemoryTables;

/// Most bytes that one system call takes: a UDP datagram's, before it is cut into segments.
const MAX_BUNDLE: usize = 65_000;
/// How long to wait for room in the socket's send buffer before an answer is given up.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Who gets an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// The sender of the packet, from the address that it sent to.
    Sender { address: SocketAddr, from: Option<Ipv4Addr> },
    /// Every rank of the job.
    Job(u16),
}

/// Collects answers, and sends them as bundles.
pub struct Outbox<'a> {
    socket: &'a UdpSocket,
    state: &'a UdpSocketState,
    tables: &'a MemoryTables,
    receiver: Receiver,
    /// Size of each answer in `bytes`.
    size: usize,
    bytes: Vec<u8>,
    /// Answers that could not be sent, since this was last asked.
    failed: u64,
}

impl<'a> Outbox<'a> {
    pub fn new(socket: &'a UdpSocket, state: &'a UdpSocketState, tables: &'a MemoryTables) -> Self {
        let bytes = Vec::with_capacity(MAX_BUNDLE);
        Self { socket, state, tables, receiver: Receiver::Job(0), size: 1, bytes, failed: 0 }
    }

    /// Adds an answer; sends those before it if it does not go with them.
    pub fn push(&mut self, receiver: Receiver, answer: &[u8]) {
        let fits = self.bytes.len() + answer.len() <= MAX_BUNDLE
            && self.bytes.len() / self.size < self.state.max_gso_segments();
        if receiver != self.receiver || answer.len() != self.size || !fits {
            self.flush();
            self.receiver = receiver;
            self.size = answer.len();
        }
        self.bytes.extend_from_slice(answer);
    }

    /// Sends what was collected.
    pub fn flush(&mut self) {
        if self.bytes.is_empty() {
            return;
        }
        match self.receiver {
            Receiver::Sender { address, from } => self.send(address, from),
            Receiver::Job(number) => {
                let Some((job, bindings)) = self.tables.audience(number) else { return };
                for binding in bindings {
                    let address = SocketAddrV4::new(binding.ip.into(), binding.port.get());
                    self.send(address.into(), Some(job.address.into()));
                }
            }
        }
        self.bytes.clear();
    }

    /// Number of answers that could not be sent, since this was last asked.
    pub fn take_failed(&mut self) -> u64 {
        std::mem::take(&mut self.failed)
    }

    fn send(&mut self, destination: SocketAddr, from: Option<Ipv4Addr>) {
        let transmit = Transmit {
            destination,
            ecn: Some(EcnCodepoint::Ect0),
            contents: &self.bytes,
            segment_size: (self.bytes.len() > self.size).then_some(self.size),
            src_ip: from.map(Into::into),
        };
        if let Err(error) = self.send_patiently(&transmit) {
            tracing::debug!("cannot send to {destination}: {error}");
            self.failed += (self.bytes.len() / self.size) as u64;
        }
    }

    fn send_patiently(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        match self.state.try_send(self.socket.into(), transmit) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut writable = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::OUT)];
                poll(&mut writable, Some(&PATIENCE))?;
                self.state.try_send(self.socket.into(), transmit)
            }
            done => done,
        }
    }
}
