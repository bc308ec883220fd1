//! Copies for ranks that the group does not reach: each rank gets its own of each RESULT to all,
//! once and in order, also where several live behind a port, in bursts, between other answers.

use std::any::Any;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use switchml_protocol::bpf_types::fanout::{Receivers, direct};
use switchml_protocol::bpf_types::job::{JobEntry, MemberEntry};
use switchml_rack::{
    AGGREGATOR_ADDRESS, Mode, Namespace, Rack, RackOptions, in_both_modes, needs_racks,
};

use crate::delivery::send_superpacket;
use switchml_rack::raw_socket::{self, RawSocket};
use switchml_test_support::frame::{
    AGGREGATOR_MAC, AGGREGATOR_PORT, CHECKED, Envelope, FILLER, GROUP_IP, GROUP_PORT, JOB, Packet,
    RESULT, fix_ip_checksum, secret,
};
use switchml_test_support::kernel::{Kernel, job};

/// The worker namespace of each rank. The last namespace has no rank.
const HOMES: [usize; 6] = [0, 0, 0, 1, 2, 2];
const NAMESPACES: usize = 4;
const RANKS: u16 = HOMES.len() as u16;
const SLOTS: u16 = 20;
const ROUNDS: u32 = 4;
const LANES: usize = 32;
const ALL: u64 = (1 << RANKS) - 1;
/// How long a socket without packets is waited for.
const QUIET: Duration = Duration::from_millis(50);
/// Many times longer than anything takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// The aggregator's IPv6 address.
const AGGREGATOR_V6: Ipv6Addr = Ipv6Addr::new(0xFD88, 0, 0, 0, 0, 0, 0, 0xFE);

in_both_modes! {
    every_byte_of_a_frame,
    every_rank_gets_its_own_copy,
    every_rank_gets_its_own_copy_over_ipv6,
    some_get_copies_and_some_the_groups_frame,
    the_group_alone_gets_one_frame_for_a_port,
}

/// Compares copies and the group's frames. Workers send packets one by one and fill in checksums,
/// so frames at tc ingress are answered one by one, too.
fn every_byte_of_a_frame(mode: Mode) {
    for (over, by_group) in [(Over::Ipv4, 0), (Over::Ipv4, 0b11_1010), (Over::Ipv6, 0)] {
        Site::new(rack(Mode::NativeWithGro), over, mode, by_group).play_bytewise(false);
    }
}

/// Here the port splits superpackets, and completes the checksums that the program has begun.
#[test]
fn every_byte_of_a_frame_that_a_port_completes() {
    needs_racks!();
    for (over, by_group) in [(Over::Ipv4, 0b11_1010), (Over::Ipv6, 0)] {
        Site::new(rack_whose_ports_compute(), over, Mode::Auto, by_group).play_bytewise(true);
    }
}

fn every_rank_gets_its_own_copy(mode: Mode) {
    Site::new(rack(mode), Over::Ipv4, mode, 0).play();
}

/// Linux drops UDP over IPv6 whose checksum is 0 or wrong.
fn every_rank_gets_its_own_copy_over_ipv6(mode: Mode) {
    Site::new(rack(mode), Over::Ipv6, mode, 0).play();
}

fn some_get_copies_and_some_the_groups_frame(mode: Mode) {
    // Behind the first port one of three, behind the second the only one, behind the third both.
    Site::new(rack(mode), Over::Ipv4, mode, 0b11_1010).play();
}

fn the_group_alone_gets_one_frame_for_a_port(mode: Mode) {
    Site::new(rack(mode), Over::Ipv4, mode, ALL).play();
}

fn rack(mode: Mode) -> Rack {
    Rack::new(RackOptions { workers: NAMESPACES, mode, ..RackOptions::default() }).expect("a rack")
}

/// Senders leave checksums to their ports, and the switch's ports cannot.
fn rack_whose_ports_compute() -> Rack {
    let rack = rack(Mode::Auto);
    for port in rack.ports() {
        let mut command = Command::new("ethtool");
        command.args(["-K", &port, "tx", "off"]);
        rack.switch().output(command).expect("the port computes checksums");
    }
    rack
}

/// The IP version that the ranks use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Ipv4,
    Ipv6,
}

impl Over {
    fn aggregator(self) -> IpAddr {
        match self {
            Self::Ipv4 => AGGREGATOR_ADDRESS.into(),
            Self::Ipv6 => AGGREGATOR_V6.into(),
        }
    }

    /// The worker's address in a namespace.
    fn worker(self, index: usize) -> IpAddr {
        match self {
            Self::Ipv4 => Rack::worker_address(index).into(),
            Self::Ipv6 => Ipv6Addr::new(0xFD88, 0, 0, 0, 0, 0, 0, index as u16 + 1).into(),
        }
    }

    /// Gives the namespaces their addresses, and tells them where the aggregator's is.
    fn set_up(self, rack: &Rack) {
        if self == Self::Ipv4 {
            return;
        }
        let [a, b, c, d, e, f] = AGGREGATOR_MAC;
        let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        for (index, namespace) in rack.workers().iter().enumerate() {
            let ip = |arguments: String| {
                let mut command = Command::new("ip");
                command.args(arguments.split(' '));
                namespace.output(command).expect("an address");
            };
            ip(format!("address add {}/64 dev eth0 nodad", self.worker(index)));
            ip(format!("neighbour add {AGGREGATOR_V6} lladdr {mac} dev eth0"));
            let mut command = Command::new("sysctl");
            command.args(["-w", "net.ipv6.auto_flowlabels=0"]);
            namespace.output(command).expect("no flow labels");
        }
    }
}

/// A switch with a program on its ports, and ranks that have said HELLO.
struct Site {
    over: Over,
    _kernel: Kernel,
    _links: Vec<Box<dyn Any + Send>>,
    /// The ranks' sockets, by rank.
    own: Vec<UdpSocket>,
    /// The group's sockets, by namespace.
    groups: Vec<UdpSocket>,
    /// Sockets for all incoming frames of this IP version, by namespace.
    frames: Vec<RawSocket>,
    /// The ranks that the group reaches.
    by_group: u64,
    _rack: Rack,
}

impl Site {
    fn new(rack: Rack, over: Over, mode: Mode, by_group: u64) -> Self {
        over.set_up(&rack);
        let ports = rack.ports();
        let (kernel, links) = rack.switch().run(move || serve(&ports, over, mode));
        let own: Vec<_> = HOMES.iter().map(|home| own_socket(rack.worker(*home), over)).collect();
        let groups = (0..NAMESPACES).map(|index| group_socket(rack.worker(index), index)).collect();
        let kind = if over == Over::Ipv4 { raw_socket::IPV4 } else { raw_socket::IPV6 };
        let frames = rack.workers().iter().map(|worker| RawSocket::open(worker, kind));
        let frames = frames.collect();
        for (rank, socket) in (0..).zip(&own) {
            let hello = Packet::hello(rank, LANES).bytes();
            assert_eq!(ask(socket, &hello), hello, "HELLO of rank {rank}");
        }
        // A DEVMAP looks its interfaces up in the namespace of the thread that fills it in.
        let kernel = rack.switch().run(move || {
            let mut kernel = kernel;
            let members: Vec<_> = (0..RANKS).map(|rank| kernel.member(JOB, rank).binding).collect();
            let reached = (0..RANKS).filter(|rank| by_group >> rank & 1 == 1).collect();
            let ways = direct(&members, &reached);
            kernel.set_receivers(JOB, Receivers::new(&entry(over), JOB, ways).unwrap());
            kernel
        });
        Self { over, _kernel: kernel, _links: links, own, groups, frames, by_group, _rack: rack }
    }

    fn play(&self) {
        self.play_rounds();
        for (index, socket) in self.frames.iter().enumerate() {
            assert_eq!(envelopes(socket, self.over), self.envelopes_of(index), "namespace {index}");
        }
    }

    /// Plays and compares every byte of every frame that comes. If ports complete frames, these
    /// have UDP checksums over IPv4, and come out of superpackets.
    fn play_bytewise(&self, by_ports: bool) {
        self.play_rounds();
        for (index, socket) in self.frames.iter().enumerate() {
            let mut frames = frames(socket, self.over);
            if by_ports && self.over == Over::Ipv4 {
                frames.iter_mut().for_each(|frame| forget_number(frame));
                frames.sort();
            }
            let expected = self.frames_of(index, by_ports);
            assert_eq!(frames.len(), expected.len(), "namespace {index}");
            assert!(frames == expected, "namespace {index}: {frames:02x?}\n{expected:02x?}");
        }
    }

    fn play_rounds(&self) {
        (0..ROUNDS).for_each(|round| self.play_round(round));
        for socket in self.own.iter().chain(&self.groups) {
            assert_eq!(receive(socket, is_for_all), None, "no other RESULT to all reaches anybody");
        }
    }

    /// Rules 5.2 and 5.3: where RESULTs to all go in a namespace, once each.
    fn places(&self, index: usize) -> BTreeSet<Place> {
        let ranks = (0..HOMES.len()).filter(|rank| HOMES[*rank] == index);
        let place = |rank: usize| match self.by_group >> rank & 1 {
            1 => Place {
                // 01:00:5e and the low 23 bits of the group's address.
                mac: [0x01, 0x00, 0x5E, 0x01, 2, 3],
                ip: Ipv4Addr::from(GROUP_IP).into(),
                port: GROUP_PORT,
            },
            _ => Place {
                mac: [0x02, 0, 0, 0, 0, index as u8 + 1],
                ip: self.over.worker(index),
                port: self.own[rank].local_addr().unwrap().port(),
            },
        };
        ranks.map(place).collect()
    }

    /// The frames of RESULTs to all that come to a namespace, sorted.
    fn frames_of(&self, index: usize, has_checksums: bool) -> Vec<Vec<u8>> {
        let rounds = (0..ROUNDS).flat_map(|round| (0..SLOTS).map(move |slot| (slot, round)));
        let results: Vec<_> = rounds.map(|(slot, round)| result(slot, round).bytes()).collect();
        let places = self.places(index);
        let pairs = places.iter().flat_map(|place| results.iter().map(move |one| (place, one)));
        let mut frames: Vec<_> =
            pairs.map(|(place, result)| place.frame(result, has_checksums)).collect();
        frames.sort();
        frames
    }

    /// The headers of these frames, without lengths and checksums, which differ in superpackets.
    fn envelopes_of(&self, index: usize) -> BTreeSet<Vec<u8>> {
        let beginning = |place: &Place| envelope(&place.frame(&[], false), self.over);
        self.places(index).iter().map(beginning).collect()
    }

    /// All ranks contribute to a round of all slots. Rank 0 completes the rounds in one burst and
    /// sends each contribution twice, so that copies leave through its port between answers to it
    /// alone.
    fn play_round(&self, round: u32) {
        for (rank, socket) in (1..).zip(&self.own[1..]) {
            let packets: Vec<_> = (0..SLOTS).map(|slot| bytes(rank, slot, round)).collect();
            send_superpacket(socket, &packets);
        }
        self.settle(round);
        let twice = (0..SLOTS).flat_map(|slot| [slot; 2]);
        let packets: Vec<_> = twice.map(|slot| bytes(0, slot, round)).collect();
        send_superpacket(&self.own[0], &packets);

        let results: Vec<_> = (0..SLOTS).map(|slot| result(slot, round).bytes()).collect();
        for (rank, socket) in self.own.iter().enumerate() {
            let has_copies = self.by_group >> rank & 1 == 0;
            let mut expected = if has_copies { results.clone() } else { Vec::new() };
            if rank == 0 {
                expected.extend((0..SLOTS).map(|slot| replayed(slot, round)));
            }
            // A contribution of another rank that was sent again in vain may get a RESULT, too.
            let wanted = if rank == 0 { is_result } else { is_for_all };
            let mut received = receive_all(socket, wanted, expected.len());
            // Answers to rank 0 alone are interleaved with the copies.
            received.sort_by_key(|packet| packet[8..10] != [0xFF; 2]);
            assert!(received == expected, "round {round}, rank {rank}");
        }
        for (index, socket) in self.groups.iter().enumerate() {
            let by_group = |rank: usize| self.by_group >> rank & 1 == 1;
            let has_frames = (0..HOMES.len()).any(|rank| HOMES[rank] == index && by_group(rank));
            let expected = if has_frames { &results[..] } else { &[] };
            assert!(
                receive_all(socket, is_for_all, expected.len()) == expected,
                "round {round}, group {index}"
            );
        }
    }

    /// Waits until the others' contributions are in: PENDINGs say so. Sends those again that are
    /// not, as ranks do: the program gives up a packet whose slot another CPU keeps for long.
    fn settle(&self, round: u32) {
        let (last, socket) = (RANKS - 1, &self.own[usize::from(RANKS) - 1]);
        let is_in = |slot: u16| {
            let asked = contribution(last, slot, round);
            // Rule 2.4: it may be longer.
            ask(socket, &asked.bytes()).starts_with(&asked.pending(ALL - 1).bytes())
        };
        let deadline = Instant::now() + PATIENCE;
        for slot in 0..SLOTS {
            while !is_in(slot) {
                assert!(Instant::now() < deadline, "round {round}, slot {slot}: all arrive");
                thread::sleep(QUIET);
                for (rank, socket) in (1..last).zip(&self.own[1..]) {
                    socket.send(&bytes(rank, slot, round)).expect("send");
                }
            }
        }
    }
}

/// Loads and attaches the program of the mode at these ports of the calling thread's namespace.
fn serve(ports: &[String], over: Over, mode: Mode) -> (Kernel, Vec<Box<dyn Any + Send>>) {
    let mut kernel = Kernel::of_root();
    kernel.add_local(AGGREGATOR_MAC, over.aggregator(), AGGREGATOR_PORT);
    kernel.set_job(JOB, &entry(over));
    for rank in 0..RANKS {
        let member = MemberEntry { secret: secret(rank), ..MemberEntry::default() };
        kernel.set_member(JOB, rank, &member);
    }
    let attach = |port: &String| -> Box<dyn Any + Send> {
        let index = std::fs::read_to_string(format!("/sys/class/net/{port}/ifindex")).unwrap();
        match mode {
            Mode::Auto => Box::new(kernel.attach_tc(port)),
            _ => Box::new(kernel.attach_xdp(index.trim().parse().unwrap())),
        }
    };
    let links = ports.iter().map(attach).collect();
    (kernel, links)
}

fn entry(over: Over) -> JobEntry {
    JobEntry { address: over.aggregator().into(), slots: SLOTS.into(), ..job(u32::from(RANKS)) }
}

fn own_socket(namespace: &Namespace, over: Over) -> UdpSocket {
    with_timeout(namespace.run(move || {
        let any: IpAddr = match over {
            Over::Ipv4 => Ipv4Addr::UNSPECIFIED.into(),
            Over::Ipv6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        let own = UdpSocket::bind((any, 0)).expect("bind");
        own.connect((over.aggregator(), AGGREGATOR_PORT)).expect("connect");
        own
    }))
}

fn group_socket(namespace: &Namespace, index: usize) -> UdpSocket {
    let address = Rack::worker_address(index);
    with_timeout(namespace.run(move || {
        let group =
            UdpSocket::bind((Ipv4Addr::from(GROUP_IP), GROUP_PORT)).expect("bind to the group");
        group.join_multicast_v4(&Ipv4Addr::from(GROUP_IP), &address).expect("join the group");
        group
    }))
}

fn with_timeout(socket: UdpSocket) -> UdpSocket {
    socket.set_read_timeout(Some(QUIET)).unwrap();
    socket
}

/// A place that RESULTs to all go to.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    mac: [u8; 6],
    ip: IpAddr,
    port: u16,
}

impl Place {
    /// Rule 5.4: the frame in which a packet arrives at this place, with or without a UDP checksum
    /// over IPv4. The contribution had no flow label.
    fn frame(&self, packet: &[u8], has_checksum: bool) -> Vec<u8> {
        let &Self { mac, ip, port } = self;
        let ports = [AGGREGATOR_PORT.to_be_bytes(), port.to_be_bytes()].concat();
        let length = (8 + packet.len() as u16).to_be_bytes();
        // RFC 768, and RFC 8200, section 8.1: addresses, protocol and length count, too.
        let checksum = |addresses: &[u8]| {
            internet_checksum(&[addresses, &[0, 17], &length, &ports, &length, packet].concat())
        };
        match ip {
            IpAddr::V4(ip) => {
                let addresses = [AGGREGATOR_ADDRESS.octets(), ip.octets()].concat();
                Envelope {
                    mac_destination: mac,
                    mac_source: AGGREGATOR_MAC,
                    tos: 0,
                    id: 0,
                    fragment: 0x4000,
                    ttl: 64,
                    source: AGGREGATOR_ADDRESS.octets(),
                    destination: ip.octets(),
                    source_port: AGGREGATOR_PORT,
                    destination_port: port,
                    udp_checksum: if has_checksum { checksum(&addresses) } else { 0 },
                }
                .bytes(packet)
            }
            IpAddr::V6(ip) => {
                let addresses = [AGGREGATOR_V6.octets(), ip.octets()].concat();
                let checksum = checksum(&addresses).to_be_bytes();
                let ip = [&[0x60, 0, 0, 0], &length[..], &[17, 64], &addresses].concat();
                let ethernet = [&mac[..], &AGGREGATOR_MAC, &[0x86, 0xDD]].concat();
                [&ethernet[..], &ip, &ports, &length, &checksum, packet].concat()
            }
        }
    }
}

/// The checksum of RFC 1071 over an even number of bytes.
pub fn internet_checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum = words.fold(0, |sum, word| (sum + word) % 0xFFFF);
    // Never 0, which would mean no checksum.
    !(sum as u16)
}

/// The offset of the UDP header.
fn udp_at(over: Over) -> usize {
    if over == Over::Ipv4 { 34 } else { 54 }
}

/// A frame up to the UDP ports, without lengths and checksums.
fn envelope(frame: &[u8], over: Over) -> Vec<u8> {
    let udp = udp_at(over);
    match over {
        Over::Ipv4 => [&frame[..16], &frame[18..24], &frame[26..udp + 4]].concat(),
        Over::Ipv6 => [&frame[..18], &frame[20..udp + 4]].concat(),
    }
}

/// The frames of RESULTs to all that have come, sorted.
fn frames(socket: &RawSocket, over: Over) -> Vec<Vec<u8>> {
    let (mut found, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    let udp = udp_at(over);
    while let Some(frame) = socket.receive(&mut buffer) {
        // Shorter ones are the host's own, for IPv6.
        let is_result = frame.len() >= udp + 40
            && frame[udp..udp + 2] == AGGREGATOR_PORT.to_be_bytes()
            && frame[udp + 9] == RESULT
            && frame[udp + 16..udp + 18] == [0xFF; 2];
        if is_result {
            found.push(frame.to_vec());
        }
    }
    found.sort();
    found
}

/// Linux counts up IPv4's identification in the frames that it cuts a superpacket into.
fn forget_number(frame: &mut [u8]) {
    check_ip_checksum(frame);
    frame[18..20].fill(0);
    fix_ip_checksum(&mut frame[14..34]);
}

fn check_ip_checksum(frame: &[u8]) {
    let mut header = frame[14..34].to_vec();
    fix_ip_checksum(&mut header);
    assert_eq!(header, frame[14..34], "the checksum of IP");
}

/// The headers of the RESULTs to all that have come. Checks IPv4's checksums, too.
fn envelopes(socket: &RawSocket, over: Over) -> BTreeSet<Vec<u8>> {
    let frames = frames(socket, over);
    if over == Over::Ipv4 {
        frames.iter().for_each(|frame| check_ip_checksum(frame));
    }
    frames.iter().map(|frame| envelope(frame, over)).collect()
}

/// Sends a packet until an answer to it comes that is no RESULT.
fn ask(socket: &UdpSocket, packet: &[u8]) -> Vec<u8> {
    // From the job's number to the round.
    let of_this = |answer: &[u8]| !is_result(answer) && answer[2..16] == packet[2..16];
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        socket.send(packet).expect("send");
        if let Some(answer) = receive(socket, of_this) {
            return answer;
        }
    }
    panic!("an answer arrives");
}

fn is_result(packet: &[u8]) -> bool {
    packet[1] == RESULT
}

fn is_for_all(packet: &[u8]) -> bool {
    is_result(packet) && packet[8..10] == [0xFF; 2]
}

/// The next wanted packet, if one comes soon.
fn receive(socket: &UdpSocket, is_wanted: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    loop {
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).ok()?;
        if buffer[1] != FILLER && is_wanted(&buffer) {
            return Some(buffer[..length].to_vec());
        }
    }
}

/// So many wanted packets, or those that come in time.
fn receive_all(socket: &UdpSocket, is_wanted: fn(&[u8]) -> bool, count: usize) -> Vec<Vec<u8>> {
    let deadline = Instant::now() + PATIENCE;
    let mut received = Vec::new();
    while received.len() < count && Instant::now() < deadline {
        received.extend(receive(socket, is_wanted));
    }
    received
}

fn contribution(rank: u16, slot: u16, round: u32) -> Packet {
    let values: Vec<u32> = (0..LANES as u32).map(|i| value(i, slot, round) << rank).collect();
    Packet::contribution(rank, slot, round, &values)
}

fn bytes(rank: u16, slot: u16, round: u32) -> Vec<u8> {
    contribution(rank, slot, round).bytes()
}

fn value(lane: u32, slot: u16, round: u32) -> u32 {
    lane + 100 * u32::from(slot) + 10_000 * round
}

/// Times 1 + 2 + 4 + 8 + 16 + 32.
fn sums(slot: u16, round: u32) -> Vec<u32> {
    (0..LANES as u32).map(|lane| value(lane, slot, round) * 63).collect()
}

fn result(slot: u16, round: u32) -> Packet {
    contribution(0, slot, round).result_for_all(CHECKED, u32::from(RANKS), &sums(slot, round))
}

fn replayed(slot: u16, round: u32) -> Vec<u8> {
    contribution(0, slot, round).result(CHECKED, u32::from(RANKS), &sums(slot, round)).bytes()
}
