//! UDP sockets (rule 11.1): contributions and unicast replies on one, results for all on another
//! that has joined the job's group.
//!
//! A batch is one run of packets of the same size (the last may be shorter), sent by one system
//! call as a GSO superpacket (rule 6.1); received packets come several a call, and merged by GRO
//! where the path allows. To an aggregator in this process packets need no system call: the socket
//! only gives the rank its address.

use std::cell::Cell;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt::ReceiveTimestampns};
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};
use switchml_data_plane::software::in_process::InProcessRank;
use switchml_protocol::wire::auth::TAG_LEN;
use switchml_protocol::wire::header::HEADER_LEN;
use switchml_worker_core::packet::{LARGEST_DATAGRAM, ip_packet_len, ip_udp_len};

use super::Transport;
use crate::interface::{Interface, MacChange, unspecified};
use crate::peers::OwnAggregator;
use crate::waker::Waker;

/// Messages per receiving system call.
const MESSAGES: usize = 32;
/// The size that is requested for the kernel's socket buffers: some thousand packets.
const SOCKET_BUFFER: usize = 16 << 20;
/// Bytes that the kernel counts for a received packet besides its own: its `sk_buff` and the rest
/// of its pages.
const OVERHEAD: usize = 3 * 1024;
/// Longest wait for room in the send buffer, which empties at line rate; packets that do not fit
/// then are lost.
const SEND_PATIENCE: Duration = Duration::from_millis(100);

/// A socket with the state of its offloads.
struct DataPath {
    socket: Socket,
    offloads: UdpSocketState,
    /// Whether the kernel has reported that a packet was too long; see
    /// [`Transport::take_too_long`].
    too_long: Cell<bool>,
}

/// See the [module's documentation](self).
pub(super) struct Udp {
    aggregator: SocketAddr,
    /// Contributions out, unicast replies in.
    data: DataPath,
    /// Results for all in, if they come by multicast.
    group: Option<DataPath>,
    /// If the aggregator is in this process, all packets go this way.
    in_process: Option<InProcessRank>,
    waker: Waker,
    /// Where packets leave, as it was at the start.
    interface: Option<Interface>,
    mtu: usize,
    batch: Batch,
    received: Received,
    foreign: u64,
}

/// Packets on their way out, end to end.
struct Batch {
    bytes: Box<[u8]>,
    len: usize,
    /// Size of the packets, but maybe of the last.
    segment: usize,
    packets: usize,
}

/// Buffers for packets on their way in.
struct Received {
    buffers: Vec<Box<[u8]>>,
    meta: [RecvMeta; MESSAGES],
}

impl Udp {
    /// Opens the sockets, as [`super::open`] says.
    pub fn open(
        aggregator: SocketAddr,
        group: Option<SocketAddrV4>,
        waker: Waker,
        own: Option<&OwnAggregator>,
    ) -> io::Result<Self> {
        let data = udp_socket(Domain::for_address(aggregator))?;
        data.bind(&unspecified(aggregator).into())?;
        data.connect(&aggregator.into())?;
        let mtu = match aggregator {
            SocketAddr::V4(_) => sockopt::ip_mtu(&data)?,
            SocketAddr::V6(_) => sockopt::ipv6_mtu(&data)?,
        } as usize;
        let local = data.local_addr()?;
        let from = local.as_socket_ipv4().map_or(Ipv4Addr::UNSPECIFIED, |local| *local.ip());
        let group = group.map(|group| join(group, from)).transpose()?;
        let in_process = own.zip(local.as_socket()).map(|(own, address)| {
            let waker = waker.clone();
            own.rank_in_process(address, move || waker.wake())
        });
        Ok(Self {
            aggregator,
            data: DataPath::new(data)?,
            group,
            in_process,
            waker,
            interface: local.as_socket().and_then(|local| Interface::with_address(local.ip())),
            mtu,
            batch: Batch {
                bytes: vec![0; LARGEST_DATAGRAM].into(),
                len: 0,
                segment: 0,
                packets: 0,
            },
            received: Received {
                buffers: vec![vec![0; usize::from(u16::MAX)].into(); MESSAGES],
                meta: [RecvMeta::default(); MESSAGES],
            },
            foreign: 0,
        })
    }

    /// Sends `contents`, one packet or several of `segment` bytes.
    fn send(&self, contents: &[u8], segment: usize) -> io::Result<()> {
        let transmit = Transmit {
            destination: self.aggregator,
            ecn: Some(EcnCodepoint::Ect0),
            contents,
            segment_size: (contents.len() > segment).then_some(segment),
            src_ip: None,
        };
        let mut once_more = true;
        loop {
            match self.data.offloads.try_send(UdpSockRef::from(&self.data.socket), &transmit) {
                Err(error) if is_too_long(&error) => {
                    self.data.too_long.set(true);
                    // The error may have been an ICMP error about an earlier packet.
                    if !std::mem::take(&mut once_more) {
                        return Err(error);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock && self.can_send_soon()? => {}
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    // An ICMP error about an earlier packet: this one has not been sent.
                }
                Err(error) if is_loss(&error) => return Ok(()),
                outcome => return outcome,
            }
        }
    }

    /// Waits for room in the send buffer.
    fn can_send_soon(&self) -> io::Result<bool> {
        let timeout = timespec(SEND_PATIENCE);
        let mut sources = [PollFd::new(&self.data.socket, PollFlags::OUT)];
        let ready = retry_on_intr(|| poll(&mut sources, Some(&timeout)))?;
        Ok(ready > 0)
    }
}

impl Transport for Udp {
    fn aggregator(&self) -> SocketAddr {
        self.aggregator
    }

    fn device(&self) -> Option<&str> {
        None
    }

    fn packet(&mut self, len: usize) -> io::Result<&mut [u8]> {
        if !self.batch.has_room(len, self.data.offloads.max_gso_segments()) {
            self.flush()?;
        }
        Ok(self.batch.push(len))
    }

    fn flush(&mut self) -> io::Result<()> {
        let Batch { len, segment, .. } = self.batch;
        self.batch.len = 0;
        self.batch.packets = 0;
        if len == 0 {
            return Ok(());
        }
        if let Some(rank) = &mut self.in_process {
            rank.send(&mut self.batch.bytes[..len], segment);
            return Ok(());
        }
        let contents = &self.batch.bytes[..len];
        match self.send(contents, segment) {
            // The device cannot do GSO after all: quinn-udp has noticed that too, and later batches
            // will be single packets.
            Err(error)
                if len > segment
                    && matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL)) =>
            {
                contents.chunks(segment).try_for_each(|packet| self.send(packet, segment))
            }
            outcome => outcome,
        }
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8], bool)) -> io::Result<usize> {
        if let Some(rank) = &self.in_process {
            return Ok(rank.receive(|packet| sink(packet, false)));
        }
        let mut packets = 0;
        // Answers to this rank alone are rare. Looking for them costs a system call, and can wait
        // until the group's socket is empty.
        for data_path in self.group.iter().chain([&self.data]) {
            if packets > 0 {
                break;
            }
            for (meta, bytes) in self.received.from(data_path)? {
                if meta.addr != self.aggregator {
                    self.foreign += 1;
                    continue;
                }
                let congested = meta.ecn == Some(EcnCodepoint::Ce);
                for packet in bytes.chunks(meta.stride.max(1)) {
                    sink(packet, congested);
                    packets += 1;
                }
            }
        }
        Ok(packets)
    }

    fn wait(&mut self, timeout: Option<Duration>, bell: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let timeout = timeout.map(timespec);
        let data = self.data.socket.as_fd();
        let group = self.group.as_ref().map_or(data, |group| group.socket.as_fd());
        self.waker.wait(|event| {
            let sources = [event, data, group, bell.unwrap_or(event)];
            let mut sources = sources.map(|from| PollFd::from_borrowed_fd(from, PollFlags::IN));
            match poll(&mut sources, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn largest_packet(&self) -> usize {
        self.mtu.saturating_sub(ip_udp_len(self.aggregator.is_ipv6())).min(LARGEST_DATAGRAM)
    }

    fn receive_room(&self, len: usize) -> usize {
        let socket = &self.group.as_ref().unwrap_or(&self.data).socket;
        socket.recv_buffer_size().unwrap_or(0)
            / (ip_packet_len(len, self.aggregator.is_ipv6()) + OVERHEAD)
    }

    fn batch(&self, len: usize) -> usize {
        (LARGEST_DATAGRAM / len.max(1)).min(self.data.offloads.max_gso_segments()).max(1)
    }

    fn foreign(&self) -> u64 {
        self.foreign
    }

    fn take_too_long(&mut self) -> bool {
        self.data.too_long.take()
    }

    fn mac_change(&self) -> Option<MacChange> {
        self.interface.as_ref()?.mac_change()
    }

    fn leave_group(&mut self) {
        self.group = None;
    }
}

impl Batch {
    /// Whether a packet of `len` bytes can follow: all packets except the last must have one size.
    /// A packet without payload does not follow packets with payloads: the answer to it would be as
    /// long as all of them.
    fn has_room(&self, len: usize, most: usize) -> bool {
        let last_is_full = self.len == self.packets * self.segment;
        let fits = len == self.segment || (len > HEADER_LEN + TAG_LEN && len < self.segment);
        self.packets == 0
            || (last_is_full && fits && self.packets < most && self.len + len <= self.bytes.len())
    }

    fn push(&mut self, len: usize) -> &mut [u8] {
        if self.packets == 0 {
            self.segment = len;
        }
        let start = self.len;
        self.len += len;
        self.packets += 1;
        &mut self.bytes[start..start + len]
    }
}

impl Received {
    /// Receives the packets that have arrived, up to a batch.
    fn from(
        &mut self,
        data_path: &DataPath,
    ) -> io::Result<impl Iterator<Item = (&RecvMeta, &[u8])>> {
        let mut slices = self.buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer));
        let mut slices: [IoSliceMut<'_>; MESSAGES] =
            std::array::from_fn(|_| slices.next().unwrap_or_else(|| IoSliceMut::new(&mut [])));
        let socket = UdpSockRef::from(&data_path.socket);
        let messages = match data_path.offloads.recv(socket, &mut slices, &mut self.meta) {
            Ok(messages) => messages,
            // There is no packet; or there was an ICMP error, which says no more than the silence
            // that follows.
            Err(error) if is_loss(&error) => 0,
            // The error may come from a router, too.
            Err(error) if is_too_long(&error) => {
                data_path.too_long.set(true);
                0
            }
            Err(error) => return Err(error),
        };
        Ok(self.meta[..messages]
            .iter()
            .zip(&self.buffers)
            .map(|(meta, buffer)| (meta, &buffer[..meta.len])))
    }
}

impl DataPath {
    fn new(socket: Socket) -> io::Result<Self> {
        enlarge_buffers(&socket)?;
        let offloads = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // The time that quinn-udp asks for is not used, and over IPv6 its buffer would have no room
        // left for the ECN marks of merged packets.
        setsockopt(&socket, ReceiveTimestampns, &false)?;
        Ok(Self { socket, offloads, too_long: Cell::new(false) })
    }
}

fn udp_socket(domain: Domain) -> io::Result<Socket> {
    Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))
}

/// Whether an error is one of the path, which may recover, and not one of this process: it counts
/// as loss. If it stays, no answer comes, and the engine's deadline reports that.
fn is_loss(error: &io::Error) -> bool {
    let of_path = matches!(
        error.kind(),
        ErrorKind::WouldBlock
            | ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
            // While the interface's address is being changed.
            | ErrorKind::AddrNotAvailable
            // A packet filter.
            | ErrorKind::PermissionDenied
    );
    of_path || error.raw_os_error() == Some(libc::ENOBUFS)
}

/// Whether a packet, this one or an earlier one, was longer than a link takes.
fn is_too_long(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMSGSIZE)
}

/// A socket that gets the group's packets by the interface that has `local`.
fn join(group: SocketAddrV4, local: Ipv4Addr) -> io::Result<DataPath> {
    let socket = udp_socket(Domain::IPV4)?;
    // Several ranks of one host receive the same group.
    socket.set_reuse_address(true)?;
    // Bound to the group's address, the socket gets nothing else.
    socket.bind(&group.into())?;
    socket.join_multicast_v4(group.ip(), &local)?;
    DataPath::new(socket)
}

/// Large buffers if the process may have them, else the most that the system's limits allow.
fn enlarge_buffers(socket: &Socket) -> io::Result<()> {
    if sockopt::set_socket_recv_buffer_size_force(socket, SOCKET_BUFFER).is_err() {
        socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    }
    if sockopt::set_socket_send_buffer_size_force(socket, SOCKET_BUFFER).is_err() {
        socket.set_send_buffer_size(SOCKET_BUFFER)?;
    }
    Ok(())
}

pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}

#[cfg(test)]
mod tests;
