//! The software data plane by RoCEv2 over loopback, message by message. Each test has addresses of
//! its own, because RoCEv2 has one port.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use switchml_control::Assigned;
use switchml_control::join_event::Event;
use switchml_data_plane::software::Software;
use switchml_protocol::U32;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::wire::header::{Header, Kind, decode};
use switchml_userspace_core::data_plane::DataPlane;

use crate::common::{Answer, Daemon, PATIENCE, Path, Rank, SILENCE, checked, packet};

const PORT: u16 = 4791;
/// BTH and DETH.
const HEADERS: usize = 20;

/// The aggregator's address, and the ranks'.
#[derive(Clone, Copy)]
struct Net(u8);

impl Net {
    fn aggregator(self) -> Ipv4Addr {
        Ipv4Addr::new(127, 47, self.0, 1)
    }

    fn ranks(self) -> Ipv4Addr {
        Ipv4Addr::new(127, 47, self.0, 2)
    }

    fn data_plane(self) -> Software {
        let address = Some(self.aggregator().into());
        let software = Software::start(address, 0, 512, Box::new(drop)).expect("a socket");
        software.with_roce(address).expect("the port is free")
    }

    async fn daemon(self) -> Daemon {
        let data_plane = Arc::new(self.data_plane());
        let limits = data_plane.limits();
        Daemon::serve(data_plane, limits, Some(self.aggregator().into())).await
    }

    /// The port of the ranks' host. All queue pairs there share it.
    fn port(self) -> UdpSocket {
        UdpSocket::bind((self.ranks(), PORT)).expect("the port is free")
    }
}

/// A rank's queue pair.
struct QueuePair<'a> {
    port: &'a UdpSocket,
    number: u32,
    /// Makes headers; its own socket is not used.
    path: Path,
}

impl<'a> QueuePair<'a> {
    fn new(port: &'a UdpSocket, number: u32, assigned: Assigned, rank: u16) -> Self {
        let local = Ipv4Addr::LOCALHOST;
        Self { port, number, path: Path::bind(assigned, rank, local) }
    }

    /// BTH and DETH, rule 37.1; the packet; and an ICRC that is wrong, which nobody compares.
    fn message(&self, header: &Header, lanes: &[u32]) -> Vec<u8> {
        let mut message = vec![0x64, 0x40, 0xFF, 0xFF];
        message.extend(u32::from(self.path.aggregator.port()).to_be_bytes());
        message.extend([0, 0, 0, 9]);
        message.extend(*b"SWML");
        message.extend(self.number.to_be_bytes());
        message.extend(packet(header, lanes));
        message.extend([0xBA, 0xD0, 0xBA, 0xD0]);
        message
    }

    fn send(&self, message: &[u8]) {
        let aggregator = (self.path.aggregator.ip(), PORT);
        assert_eq!(self.port.send_to(message, aggregator).expect("sent"), message.len());
    }

    fn hello(&self) {
        let mut header = self.path.header(Kind::Hello);
        header.aux = U32::new(self.path.assigned.hello_secret);
        header.lanes.set(64);
        self.send(&self.message(&header, &[7; 64]));
        let answer = self.receive();
        assert_eq!((answer.kind, answer.lanes), (Kind::Hello, vec![7; 64]));
    }

    fn contribution(&self, slot: u16, lanes: &[u32]) -> Vec<u8> {
        let mut header = self.path.header(Kind::Contribution);
        header.slot.set(slot);
        header.lanes.set(lanes.len() as u16);
        self.message(&checked(header, lanes), lanes)
    }

    /// The next answer, which has to be a message to this queue pair with a right ICRC.
    fn receive(&self) -> Answer {
        let message = receive_within(self.port, PATIENCE).expect("an answer");
        let (transport, rest) = message.split_at(HEADERS);
        let mut expected = vec![0x64, 0x40, 0xFF, 0xFF];
        expected.extend(self.number.to_be_bytes());
        expected.extend([0, 0, 0, 0]);
        expected.extend(*b"SWML");
        expected.extend(u32::from(self.path.aggregator.port()).to_be_bytes());
        assert_eq!(transport, expected);
        let (packet, icrc) = rest.split_at(rest.len() - 4);
        assert_eq!(icrc, self.icrc(transport, packet), "of {} bytes", message.len());
        let (header, kind, _, lanes) = decode(packet).expect("a packet of the protocol");
        Answer { header: *header, kind, lanes: lanes.iter().map(|lane| lane.get()).collect() }
    }

    /// Rule 37.5, over an IPv4 header with identification 0 and Don't Fragment.
    fn icrc(&self, transport: &[u8], packet: &[u8]) -> [u8; 4] {
        let udp_len = (8 + transport.len() + packet.len() + 4) as u16;
        let mut covered = vec![0xFF; 8];
        covered.extend([0x45, 0xFF]);
        covered.extend((20 + udp_len).to_be_bytes());
        covered.extend([0, 0, 0x40, 0, 0xFF, 17, 0xFF, 0xFF]);
        let [from, to] = [self.path.aggregator.ip(), self.port.local_addr().unwrap().ip()];
        covered.extend(from.to_string().split('.').map(|part| part.parse::<u8>().unwrap()));
        covered.extend(to.to_string().split('.').map(|part| part.parse::<u8>().unwrap()));
        covered.extend([PORT.to_be_bytes(), PORT.to_be_bytes(), udp_len.to_be_bytes()].concat());
        covered.extend([0xFF, 0xFF]);
        covered.extend([&transport[..4], &[0xFF], &transport[5..], packet].concat());
        let register = covered.iter().fold(u32::MAX, |register, byte| {
            (0..8).fold(register, |register, bit| {
                let out = register & 1 != u32::from(byte >> bit) & 1;
                (register >> 1) ^ if out { 0xEDB8_8320 } else { 0 }
            })
        });
        (!register).to_le_bytes()
    }
}

fn receive_within(port: &UdpSocket, timeout: Duration) -> Option<Vec<u8>> {
    port.set_read_timeout(Some(timeout)).expect("a timeout");
    let mut buffer = [0; 4096];
    match port.recv(&mut buffer) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        received => Some(buffer[..received.expect("received")].to_vec()),
    }
}

/// Takes the ranks of a job, of which these are by RoCEv2, up to Started. Each has a queue pair
/// whose number is higher by one.
async fn started<'a>(
    daemon: &Daemon,
    port: &'a UdpSocket,
    by_roce: [bool; 3],
) -> (Vec<Rank>, Vec<QueuePair<'a>>, Vec<Path>) {
    let (mut ranks, mut pairs, mut paths) = (Vec::new(), Vec::new(), Vec::new());
    for rank in 0..3 {
        ranks.push(daemon.join("train", rank, 3).await);
    }
    for (rank, by_roce) in ranks.iter_mut().zip(by_roce) {
        let assigned = rank.assigned().await;
        let capabilities = Capabilities::from_bits_retain(assigned.capabilities);
        assert!(capabilities.contains(Capabilities::ROCE));
        if by_roce {
            let number = 0x0A_0000 + rank.rank;
            let pair = QueuePair::new(port, number, assigned.clone(), rank.rank as u16);
            pair.hello();
            pairs.push(pair);
        } else {
            let path = Path::new(assigned.clone(), rank.rank as u16);
            path.hello();
            paths.push(path);
        }
        rank.ready(&assigned, 224).await.expect("ready");
    }
    for rank in &mut ranks {
        assert!(matches!(rank.next().await, Event::Started(started) if started.lanes == 224));
    }
    (ranks, pairs, paths)
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_of_both_kinds_get_the_sum() {
    let net = Net(1);
    let (daemon, port) = (net.daemon().await, net.port());
    let (_ranks, pairs, paths) = started(&daemon, &port, [true, false, true]).await;
    let lanes = |rank: u32| -> Vec<_> { (0..224).map(|lane| 1000 * rank + lane).collect() };
    pairs[0].send(&pairs[0].contribution(3, &lanes(0)));
    // Again, too early: who is in is told to this queue pair.
    pairs[0].send(&pairs[0].contribution(3, &lanes(0)));
    let pending = pairs[0].receive();
    assert_eq!((pending.kind, pending.lanes), (Kind::Pending, vec![0, 0b001]));
    paths[0].contribute(3, 0, &lanes(1));
    pairs[1].send(&pairs[1].contribution(3, &lanes(2)));
    // 1000 (0 + 1 + 2) + 3 lane, to all, each in its own envelope.
    let sum: Vec<_> = (0..224).map(|lane| 3000 + 3 * lane).collect();
    for answer in [pairs[0].receive(), pairs[1].receive(), paths[0].receive()] {
        assert_eq!((answer.kind, answer.header.rank.get()), (Kind::Result, 0xFFFF));
        assert_eq!(answer.lanes, sum);
    }
    // Again, too late: the RESULT, to this queue pair alone.
    pairs[1].send(&pairs[1].contribution(3, &lanes(2)));
    let replay = pairs[1].receive();
    assert_eq!((replay.kind, replay.header.rank.get()), (Kind::Result, 2));
    assert_eq!(replay.lanes, sum);
    assert_eq!(receive_within(&port, SILENCE), None);
    assert_eq!(paths[0].receive_within(SILENCE), None);
    for (counter, count) in [("hello", 3), ("started", 1), ("added", 1), ("completed", 1)] {
        assert_eq!(daemon.counter(counter).await, count, "{counter}");
    }
    assert_eq!(daemon.counter("send_failed").await, 0);
}

/// Rules 37.3 and 37.4: nothing of this is answered or counted in, whoever sends it.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_and_damaged_messages_change_nothing() {
    let net = Net(2);
    let (daemon, port) = (net.daemon().await, net.port());
    let (_ranks, pairs, paths) = started(&daemon, &port, [true, true, false]).await;
    let right = pairs[0].contribution(0, &[5; 32]);
    let changed = |at: usize, value: u8| {
        let mut message = right.clone();
        message[at] = value;
        pairs[0].send(&message);
    };
    // Another rank's queue pair, and one that nobody has.
    changed(19, 1);
    changed(17, 0x0B);
    // The rank's packet as a datagram, from the rank's own address and port.
    let datagram = &right[HEADERS..right.len() - 4];
    port.send_to(datagram, pairs[0].path.aggregator).expect("sent");
    // A datagram's rank by RoCEv2.
    let stranger = QueuePair::new(&port, 0x0A_0002, paths[0].assigned.clone(), 2);
    stranger.send(&stranger.contribution(0, &[5; 32]));
    // Opcode, padding, version, queue pair, Q_Key; a lane, and a length.
    for (at, value) in [(0, 0x24), (1, 0x50), (1, 0x41), (7, !right[7]), (15, 0), (HEADERS + 32, 1)]
    {
        changed(at, value);
    }
    pairs[0].send(&right[..right.len() - 4]);
    pairs[0].send(&right[..HEADERS + 31]);
    assert_eq!(receive_within(&port, SILENCE), None);
    for (counter, count) in [
        ("wrong_place", 4),
        ("bad_kind", 1),
        ("bad_length", 2),
        ("bad_version", 1),
        ("not_ours", 2),
        ("bad_check", 1),
        ("truncated", 1),
        ("started", 0),
    ] {
        assert_eq!(daemon.counter(counter).await, count, "{counter}");
    }
    pairs[0].send(&right);
    pairs[1].send(&pairs[1].contribution(0, &[6; 32]));
    paths[0].contribute(0, 0, &[7; 32]);
    for answer in [pairs[0].receive(), pairs[1].receive(), paths[0].receive()] {
        assert_eq!(answer.lanes, vec![5 + 6 + 7; 32]);
    }
}

#[test]
fn a_port_that_is_taken_is_an_error() {
    let net = Net(3);
    let first = net.data_plane();
    let address = Some(net.aggregator().into());
    assert!(first.attachment().ends_with(", and RoCEv2"), "{}", first.attachment());
    let second = Software::start(address, 0, 512, Box::new(drop)).expect("a socket");
    assert!(!second.limits().capabilities.contains(Capabilities::ROCE));
    assert_eq!(second.with_roce(address).expect_err("taken").kind(), ErrorKind::AddrInUse);
}
