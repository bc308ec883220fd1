//! What a rank answers the others: it sends packets back, and takes reports.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::report::{Packets, Report};

/// The beginning of packets; their rank follows, and whether they are large.
const MARK: [u8; 4] = *b"smld";
/// The length of what means something in a packet.
const HEAD: usize = MARK.len() + 3;
/// Most bytes of a line: reports of 1024 ranks.
const LONGEST: u64 = 64 << 20;
/// How long a connection may take to say its line.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often to look for a port that is free for TCP and UDP.
const TRIES: usize = 16;

/// A packet of a rank with so many bytes of UDP payload.
pub fn packet(rank: u16, is_large: bool, bytes: usize) -> Vec<u8> {
    let mut packet = [&MARK[..], &rank.to_be_bytes(), &[is_large.into()]].concat();
    packet.resize(bytes.max(HEAD), 0);
    packet
}

fn read_packet(packet: &[u8]) -> Option<(u16, bool)> {
    let (head, _) = packet.split_first_chunk::<HEAD>()?;
    let [mark @ .., high, low, is_large] = *head;
    (mark == MARK).then_some((u16::from_be_bytes([high, low]), is_large == 1))
}

/// A rank's ports, which answer until the process ends.
pub struct Listener {
    /// Where they are.
    pub address: SocketAddr,
    arrived: Arc<Mutex<BTreeMap<u16, Packets>>>,
    /// Ranks that wait for all reports.
    pub visitors: Receiver<(Report, TcpStream)>,
}

impl Listener {
    /// Opens a port of TCP and UDP that is free.
    pub fn open(address: IpAddr) -> io::Result<Self> {
        let both = || -> io::Result<(TcpListener, UdpSocket)> {
            let tcp = TcpListener::bind((address, 0))?;
            let udp = UdpSocket::bind(tcp.local_addr()?)?;
            Ok((tcp, udp))
        };
        let (tcp, udp) = (0..TRIES).map(|_| both()).find(Result::is_ok).unwrap_or_else(both)?;
        // Answers are not fragmented either.
        match address {
            IpAddr::V4(_) => set_ip_mtu_discover(&udp, Ipv4PathMtuDiscovery::PROBE)?,
            IpAddr::V6(_) => set_ipv6_mtu_discover(&udp, Ipv6PathMtuDiscovery::PROBE)?,
        }
        let address = tcp.local_addr()?;
        let arrived: Arc<Mutex<BTreeMap<u16, Packets>>> = Arc::default();
        let (tell, visitors) = mpsc::channel();
        let counted = Arc::clone(&arrived);
        thread::Builder::new().spawn(move || send_back(&udp, &counted))?;
        thread::Builder::new().spawn(move || accept(&tcp, &tell))?;
        Ok(Self { address, arrived, visitors })
    }

    /// Packets that have come so far, by the rank that sent them.
    pub fn arrived(&self) -> Vec<(u16, Packets)> {
        let arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        arrived.iter().map(|(rank, packets)| (*rank, *packets)).collect()
    }
}

fn send_back(socket: &UdpSocket, arrived: &Mutex<BTreeMap<u16, Packets>>) {
    let mut buffer = [0; 1 << 16];
    loop {
        // Errors are about earlier answers.
        let Ok((len, sender)) = socket.recv_from(&mut buffer) else { continue };
        let Some((rank, is_large)) = read_packet(&buffer[..len]) else { continue };
        let mut arrived = arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let packets = arrived.entry(rank).or_default();
        *if is_large { &mut packets.large } else { &mut packets.small } += 1;
        let _ = socket.send_to(&buffer[..len], sender);
    }
}

fn accept(listener: &TcpListener, tell: &Sender<(Report, TcpStream)>) {
    while let Ok((stream, _)) = listener.accept() {
        let tell = tell.clone();
        // Ranks that only try the way close the connection.
        let hear = move || {
            if let Ok(report) = receive(&stream, PATIENCE) {
                let _ = tell.send((report, stream));
            }
        };
        let _ = thread::Builder::new().spawn(hear);
    }
}

/// Sends a line.
pub fn send(mut stream: &TcpStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Receives a line.
pub fn receive<M: DeserializeOwned>(stream: &TcpStream, patience: Duration) -> io::Result<M> {
    stream.set_read_timeout(Some(patience))?;
    let mut line = Vec::new();
    BufReader::new(stream.take(LONGEST)).read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn packets_come_back_and_are_counted() {
        let listener = Listener::open(Ipv4Addr::LOCALHOST.into()).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(listener.address).unwrap();
        let large = packet(700, true, 1200);
        for sent in [&packet(700, false, 0), &large, &large] {
            socket.send(sent).unwrap();
            let mut buffer = [0; 2000];
            let len = socket.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..len], **sent);
        }
        // Strangers get no answer, and do not count.
        socket.send(b"stranger").unwrap();
        assert_eq!(listener.arrived(), [(700, Packets { small: 1, large: 2 })]);
    }
}
