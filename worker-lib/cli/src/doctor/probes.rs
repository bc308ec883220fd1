//! Sends packets to the aggregator, and collects what the network reports about them.

use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::libc::{SO_EE_ORIGIN_ICMP, SO_EE_ORIGIN_ICMP6, sock_extended_err, sockaddr_in6};
use nix::sys::socket::sockopt::{Ipv4RecvErr, Ipv6DontFrag, Ipv6RecvErr};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt};
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
    set_ipv6_unicast_hops,
};
use switchml_worker::interface::unspecified;

/// Packets of a burst.
pub const BURST: u32 = 8;
/// Pause between two packets of a burst, so that none are merged.
const PAUSE: Duration = Duration::from_millis(3);
/// Wait for answers.
const PATIENCE: Duration = Duration::from_millis(300);
/// How often to send a packet whose answer may be lost, or held back by a router's rate limit.
const TRIES: u32 = 2;

/// An ICMP message about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// The sender of the message.
    pub from: IpAddr,
    /// The content of the message.
    pub what: What,
}

/// The content of a [`Complaint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// No program receives packets at this port.
    PortUnreachable,
    /// The packet is prohibited.
    Prohibited,
    /// The packet is larger than the next link takes, whose MTU is this many bytes.
    TooLarge(u32),
    /// The packet has reached its hop limit.
    TimeExceeded,
    /// Something else.
    Other,
}

impl What {
    /// The content of an ICMP message with this type and code (RFC 792, RFC 1812) and further
    /// field.
    fn new(kind: u8, code: u8, info: u32) -> Self {
        match (kind, code) {
            (3, 3) => Self::PortUnreachable,
            (3, 9 | 10 | 13) => Self::Prohibited,
            (3, 4) => Self::TooLarge(info),
            (11, 0) => Self::TimeExceeded,
            _ => Self::Other,
        }
    }

    /// The content of an ICMPv6 message (RFC 4443).
    fn new_v6(kind: u8, code: u8, info: u32) -> Self {
        match (kind, code) {
            (1, 4) => Self::PortUnreachable,
            (1, 1 | 5 | 6) => Self::Prohibited,
            (2, _) => Self::TooLarge(info),
            (3, 0) => Self::TimeExceeded,
            _ => Self::Other,
        }
    }
}

/// The outcome of packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Packets that this host's firewall did not let out.
    pub refused: u32,
    /// The number of answers.
    pub answers: u32,
    /// What the network reports.
    pub complaints: Vec<Complaint>,
}

/// A socket for packets to one address.
pub struct Probes {
    socket: UdpSocket,
    is_ipv6: bool,
}

impl Probes {
    /// A socket towards this address. Packets are not fragmented, however large.
    pub fn to(target: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(unspecified(target))?;
        socket.connect(target)?;
        let is_ipv6 = target.is_ipv6();
        if is_ipv6 {
            setsockopt(&socket, Ipv6RecvErr, &true)?;
            setsockopt(&socket, Ipv6DontFrag, &true)?;
            set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?;
        } else {
            setsockopt(&socket, Ipv4RecvErr, &true)?;
            set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?;
        }
        socket.set_nonblocking(true)?;
        Ok(Self { socket, is_ipv6 })
    }

    /// Sends a packet [`BURST`] times, and waits for as many answers.
    pub fn burst(&self, packet: &[u8]) -> Outcome {
        let mut outcome = Outcome::default();
        for _ in 0..BURST {
            outcome.refused += u32::from(self.send(packet));
            sleep(PAUSE);
        }
        let begin = Instant::now();
        while outcome.answers < BURST - outcome.refused && begin.elapsed() < PATIENCE {
            self.hear(&mut outcome);
            sleep(PAUSE);
        }
        outcome
    }

    /// The routers that report that a packet reached them, in order; then any other report about
    /// it. `most` is the number of routers to try.
    pub fn walk(&self, packet: &[u8], most: u32) -> (Vec<IpAddr>, Option<Complaint>) {
        let mut routers = Vec::new();
        for hops in 1..=most {
            let complaint = self.expire(packet, hops);
            match complaint {
                Some(Complaint { from, what: What::TimeExceeded }) => routers.push(from),
                other => return (routers, other),
            }
        }
        (routers, None)
    }

    /// Sends a packet with a limit of `hops` hops. Returns what the network reports.
    fn expire(&self, packet: &[u8], hops: u32) -> Option<Complaint> {
        if self.is_ipv6 {
            set_ipv6_unicast_hops(&self.socket, Some(hops as u8)).ok()?;
        } else {
            self.socket.set_ttl(hops).ok()?;
        }
        for _ in 0..TRIES {
            self.send(packet);
            let begin = Instant::now();
            while begin.elapsed() < PATIENCE {
                let mut outcome = Outcome::default();
                self.hear(&mut outcome);
                if let Some(complaint) = outcome.complaints.first() {
                    return Some(*complaint);
                }
                if outcome.answers > 0 {
                    return None;
                }
                sleep(PAUSE);
            }
        }
        None
    }

    /// Sends a packet. Returns whether the firewall refuses it.
    fn send(&self, packet: &[u8]) -> bool {
        // The error may be about an earlier packet; then this one was not sent.
        let sent = self.socket.send(packet).or_else(|_| self.socket.send(packet));
        sent.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    }

    /// Receives all answers and errors that have arrived.
    fn hear(&self, outcome: &mut Outcome) {
        let mut buffer = [0; 2048];
        while self.socket.recv(&mut buffer).is_ok() {
            outcome.answers += 1;
        }
        while let Some(complaint) = self.next_error() {
            outcome.complaints.extend(complaint);
        }
    }

    /// The next error of the socket, with the message if it came from the network.
    fn next_error(&self) -> Option<Option<Complaint>> {
        let mut packet = [0; 2048];
        let mut slices = [IoSliceMut::new(&mut packet)];
        let mut control = nix::cmsg_space!(sock_extended_err, sockaddr_in6);
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let descriptor = self.socket.as_raw_fd();
        let message =
            recvmsg::<SockaddrStorage>(descriptor, &mut slices, Some(&mut control), flags).ok()?;
        let of_network = |message| match message {
            ControlMessageOwned::Ipv4RecvErr(error, Some(from))
                if error.ee_origin == SO_EE_ORIGIN_ICMP =>
            {
                let from = Ipv4Addr::from(u32::from_be(from.sin_addr.s_addr));
                let what = What::new(error.ee_type, error.ee_code, error.ee_info);
                Some(Complaint { from: from.into(), what })
            }
            ControlMessageOwned::Ipv6RecvErr(error, Some(from))
                if error.ee_origin == SO_EE_ORIGIN_ICMP6 =>
            {
                let from = Ipv6Addr::from(from.sin6_addr.s6_addr);
                let what = What::new_v6(error.ee_type, error.ee_code, error.ee_info);
                Some(Complaint { from: from.into(), what })
            }
            _ => None,
        };
        Some(message.cmsgs().ok()?.find_map(of_network))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_nobody_has_is_reported_by_its_host() {
        let either: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        for host in either {
            let closed = UdpSocket::bind((host, 0)).unwrap();
            let target = closed.local_addr().unwrap();
            let answered = Probes::to(target).unwrap().burst(b"?");
            assert_eq!(answered, Outcome::default(), "nobody says anything");
            drop(closed);
            let outcome = Probes::to(target).unwrap().burst(b"?");
            assert_eq!((outcome.refused, outcome.answers), (0, 0));
            let expected = Complaint { from: host, what: What::PortUnreachable };
            assert_eq!(outcome.complaints.first(), Some(&expected));
        }
    }
}
