//! A UDP port that packets come in by and go out of, in bundles.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use nix::sys::socket::{setsockopt, sockopt::ReceiveTimestampns};
use quinn_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::Type;

use switchml_host::dual;

/// Longest buffer that the kernel may merge datagrams into: the longest UDP datagram.
const BUFFER_LEN: usize = 65_535;
/// Socket buffers to ask for, in bytes; the kernel grants as much as `net.core.rmem_max` and
/// `wmem_max` allow.
const SOCKET_BUFFER: usize = 8 << 20;
/// How long to wait for room in the socket's send buffer before an answer is given up.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// See the module.
pub struct Port {
    socket: UdpSocket,
    state: UdpSocketState,
    /// Whether the socket is an IPv6 socket.
    is_v6: bool,
    number: u16,
    /// ECN field of what it sends.
    ecn: Option<EcnCodepoint>,
}

/// Received buffers of datagrams, each from one sender.
pub struct Inbox {
    memory: Vec<u8>,
    metas: [RecvMeta; BATCH_SIZE],
}

impl Default for Inbox {
    fn default() -> Self {
        Self { memory: vec![0; BATCH_SIZE * BUFFER_LEN], metas: [RecvMeta::default(); BATCH_SIZE] }
    }
}

impl Port {
    /// Opens UDP `port` (0 for any) of every address, or of `address` alone.
    ///
    /// # Errors
    ///
    /// When the port cannot be opened.
    pub fn bind(address: Option<IpAddr>, port: u16) -> io::Result<Self> {
        let address = address.unwrap_or(Ipv6Addr::UNSPECIFIED.into());
        let (socket, address) = dual::socket(SocketAddr::new(address, port), Type::DGRAM)?;
        dual::bind(&socket, address)?;
        let socket = UdpSocket::from(socket);
        let number = socket.local_addr()?.port();
        let state = UdpSocketState::new((&socket).into())?;
        state.set_recv_buffer_size((&socket).into(), SOCKET_BUFFER)?;
        state.set_send_buffer_size((&socket).into(), SOCKET_BUFFER)?;
        // Nobody reads the timestamps that quinn-udp asks for, and with them its buffer has no room
        // for the ECN marks of merged packets on IPv6 sockets.
        setsockopt(&socket, ReceiveTimestampns, &false)?;
        let ecn = Some(EcnCodepoint::Ect0);
        Ok(Self { is_v6: address.is_ipv6(), socket, state, number, ecn })
    }

    /// The same port, whose packets no router marks.
    pub fn without_ecn(self) -> Self {
        Self { ecn: None, ..self }
    }

    /// The port's number.
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// Reads the datagrams that have arrived; `serve` gets each buffer and its metadata.
    ///
    /// # Errors
    ///
    /// When the kernel fails to read.
    pub fn receive(
        &self,
        inbox: &mut Inbox,
        mut serve: impl FnMut(&mut [u8], &RecvMeta),
    ) -> io::Result<()> {
        let mut buffers: Vec<_> =
            inbox.memory.chunks_mut(BUFFER_LEN).map(IoSliceMut::new).collect();
        let received = match self.state.recv((&self.socket).into(), &mut buffers, &mut inbox.metas)
        {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            result => result?,
        };
        for (buffer, meta) in buffers.iter_mut().zip(&inbox.metas).take(received) {
            serve(&mut buffer[..meta.len], meta);
        }
        Ok(())
    }

    /// Most packets that one system call sends.
    pub fn max_bundle(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Sends packets of `size` bytes; whether the kernel took them.
    pub fn send(
        &self,
        packets: &[u8],
        size: usize,
        destination: SocketAddr,
        from: Option<IpAddr>,
    ) -> bool {
        let transmit = Transmit {
            destination: dual::as_seen_by(self.is_v6, destination),
            ecn: self.ecn,
            contents: packets,
            segment_size: (packets.len() > size).then_some(size),
            src_ip: from,
        };
        let sent = self.send_patiently(&transmit);
        if let Err(error) = &sent {
            tracing::debug!("cannot send to {destination}: {error}");
        }
        sent.is_ok()
    }

    fn send_patiently(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        match self.state.try_send((&self.socket).into(), transmit) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut writable = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::OUT)];
                poll(&mut writable, Some(&PATIENCE))?;
                self.state.try_send((&self.socket).into(), transmit)
            }
            done => done,
        }
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
