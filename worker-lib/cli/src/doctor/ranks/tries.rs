//! The tries of the ways from this host to others.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use switchml_protocol::MAX_LANES;
use switchml_worker_core::packet::{ip_packet_len, packet_len};

use super::super::probes::{Outcome, Probes, What};
use super::listener::packet;
use super::report::{NoTcp, Packets, Try};

/// Wait for a connection.
pub const CONNECT: Duration = Duration::from_secs(1);
/// Bytes of UDP payload of a small packet: less than any path of IP carries.
const SMALL: usize = 100;

/// Tries the ways to these ranks, all at once. `mtu` is that of this host's interface.
pub fn all(rank: u16, others: Vec<(u16, SocketAddr)>, mtu: u32) -> Vec<Try> {
    thread::scope(|scope| {
        let start = |(to, address)| {
            let tries = move || try_way(rank, to, address, mtu);
            thread::Builder::new().spawn_scoped(scope, tries)
        };
        let started: Vec<_> = others.into_iter().map(start).collect();
        let tries = started.into_iter().filter_map(|tries| tries.ok()?.join().ok());
        tries.collect()
    })
}

fn try_way(rank: u16, to: u16, address: SocketAddr, mtu: u32) -> Try {
    let headers = ip_packet_len(0, address.is_ipv6());
    // A job's packets are no larger than this.
    let most = packet_len(MAX_LANES).min((mtu as usize).saturating_sub(headers));
    let sizes = [SMALL, most.max(SMALL)];
    let bursts = || -> io::Result<[Outcome; 2]> {
        let probes = Probes::to(address)?;
        Ok([(false, sizes[0]), (true, sizes[1])]
            .map(|(is_large, bytes)| probes.burst(&packet(rank, is_large, bytes))))
    };
    let [small, large] = bursts().unwrap_or_default();
    let complaints = || small.complaints.iter().chain(&large.complaints);
    let prohibits = |what| what == What::Prohibited;
    let narrows = |what| match what {
        What::TooLarge(mtu) => Some(mtu),
        _ => None,
    };
    Try {
        to,
        tcp: connect(address).err(),
        refused: small.refused,
        answers: Packets { small: small.answers, large: large.answers },
        prohibits: complaints().find(|one| prohibits(one.what)).map(|one| one.from),
        narrows: complaints().find_map(|one| Some((one.from, narrows(one.what)?))),
        bytes: sizes.map(|bytes| ip_packet_len(bytes, address.is_ipv6()) as u32),
    }
}

fn connect(address: SocketAddr) -> Result<(), NoTcp> {
    match TcpStream::connect_timeout(&address, CONNECT) {
        Ok(_) => Ok(()),
        Err(error) => Err(match error.kind() {
            ErrorKind::TimedOut => NoTcp::Silent,
            ErrorKind::ConnectionRefused => NoTcp::Refused,
            _ => NoTcp::System(error.to_string()),
        }),
    }
}
