//! Copies for ranks that the group does not reach: each rank gets its own of each RESULT to all,
//! once and in order, also where several live behind a port, in bursts, between other answers.

use std::any::Any;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;
use switchml_protocol::fanout::Receivers;
use switchml_protocol::job::{JobEntry, MemberEntry};
use switchml_rack::{AGGREGATOR_ADDRESS, Mode, Namespace, Rack, RackOptions, in_both_modes};

use crate::delivery::send_superpacket;
use crate::kernel::{Kernel, job};
use crate::packet::{
    AGGREGATOR_MAC, AGGREGATOR_PORT, CHECKED, FILLER, GROUP_IP, GROUP_PORT, JOB, Packet, secret,
};

/// In which worker's namespace each rank lives. The last namespace has none.
const HOMES: [usize; 6] = [0, 0, 0, 1, 2, 2];
const NAMESPACES: usize = 4;
const RANKS: u16 = HOMES.len() as u16;
const SLOTS: u16 = 20;
const ROUNDS: u32 = 4;
const LANES: usize = 32;
const ALL: u64 = (1 << RANKS) - 1;

in_both_modes! {
    every_rank_gets_its_own_copy,
    some_get_copies_and_some_the_groups_frame,
    the_group_alone_gets_one_frame_for_a_port,
}

fn every_rank_gets_its_own_copy(mode: Mode) {
    Site::new(mode, 0).play();
}

fn some_get_copies_and_some_the_groups_frame(mode: Mode) {
    // Behind the first port one of three, behind the second the only one, behind the third both.
    Site::new(mode, 0b11_1010).play();
}

fn the_group_alone_gets_one_frame_for_a_port(mode: Mode) {
    Site::new(mode, ALL).play();
}

/// A switch with a program on its ports, and ranks that have said HELLO.
struct Site {
    _kernel: Kernel,
    _links: Vec<Box<dyn Any + Send>>,
    /// By rank.
    own: Vec<UdpSocket>,
    /// By namespace.
    groups: Vec<UdpSocket>,
    /// The ranks that the group reaches.
    by_group: u64,
    _rack: Rack,
}

impl Site {
    fn new(mode: Mode, by_group: u64) -> Self {
        let options = RackOptions { workers: NAMESPACES, mode, ..RackOptions::default() };
        let rack = Rack::new(options).expect("a rack");
        let ports = rack.ports();
        let (kernel, links) = rack.switch().run(move || serve(&ports, mode));
        let own: Vec<_> = HOMES.iter().map(|home| own_socket(rack.worker(*home))).collect();
        let groups = (0..NAMESPACES).map(|index| group_socket(rack.worker(index), index)).collect();
        for (rank, socket) in (0..).zip(&own) {
            let hello = Packet::hello(rank, LANES).bytes();
            socket.send(&hello).expect("send");
            assert_eq!(receive(socket), Some(hello), "HELLO of rank {rank}");
        }
        // A DEVMAP looks its interfaces up in the namespace of the thread that fills it in.
        let kernel = rack.switch().run(move || {
            let mut kernel = kernel;
            let members: Vec<_> = (0..RANKS).map(|rank| kernel.member(JOB, rank).binding).collect();
            kernel.set_receivers(JOB, Receivers::new(&entry(), &members, by_group));
            kernel
        });
        Self { _kernel: kernel, _links: links, own, groups, by_group, _rack: rack }
    }

    fn play(&self) {
        (0..ROUNDS).for_each(|round| self.play_round(round));
        for socket in self.own.iter().chain(&self.groups) {
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            assert_eq!(receive(socket), None, "nothing else reaches anybody");
        }
    }

    /// All ranks contribute to a round of all slots. Rank 0 completes them in one burst, and sends
    /// all of it twice, so that copies leave by its port between answers to it alone.
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
            let mut received = receive_all(socket, expected.len());
            // Answers to rank 0 alone come in between.
            received.sort_by_key(|packet| packet[8..10] != [0xFF; 2]);
            assert!(received == expected, "round {round}, rank {rank}");
        }
        for (index, socket) in self.groups.iter().enumerate() {
            let by_group = |rank: usize| self.by_group >> rank & 1 == 1;
            let has_frames = (0..HOMES.len()).any(|rank| HOMES[rank] == index && by_group(rank));
            let expected = if has_frames { &results[..] } else { &[] };
            assert!(
                receive_all(socket, expected.len()) == expected,
                "round {round}, group {index}"
            );
        }
    }

    /// Waits until the others' contributions are in: a PENDING says so.
    fn settle(&self, round: u32) {
        let (last, socket) = (RANKS - 1, &self.own[usize::from(RANKS) - 1]);
        let all_but_0 = ALL - 1;
        let asked = contribution(last, SLOTS - 1, round);
        let pending = asked.pending(all_but_0).bytes();
        let is_in = || {
            socket.send(&asked.bytes()).expect("send");
            // Rule 2.4: it may be longer.
            receive(socket).expect("an answer").starts_with(&pending)
        };
        assert!((0..100).any(|_| is_in()), "round {round}: the contributions arrive");
    }
}

/// Loads and attaches the program of the mode at these ports of the calling thread's namespace.
fn serve(ports: &[String], mode: Mode) -> (Kernel, Vec<Box<dyn Any + Send>>) {
    let mut kernel = Kernel::new();
    kernel.add_local(AGGREGATOR_MAC, AGGREGATOR_ADDRESS.octets(), AGGREGATOR_PORT);
    kernel.set_job(JOB, &entry());
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

fn entry() -> JobEntry {
    JobEntry { address: AGGREGATOR_ADDRESS.octets(), slots: SLOTS.into(), ..job(u32::from(RANKS)) }
}

fn own_socket(namespace: &Namespace) -> UdpSocket {
    with_patience(namespace.run(|| {
        let own = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("bind");
        own.connect((AGGREGATOR_ADDRESS, AGGREGATOR_PORT)).expect("connect");
        own
    }))
}

fn group_socket(namespace: &Namespace, index: usize) -> UdpSocket {
    let address = Rack::worker_address(index);
    with_patience(namespace.run(move || {
        let group =
            UdpSocket::bind((Ipv4Addr::from(GROUP_IP), GROUP_PORT)).expect("bind to the group");
        group.join_multicast_v4(&Ipv4Addr::from(GROUP_IP), &address).expect("join the group");
        group
    }))
}

fn with_patience(socket: UdpSocket) -> UdpSocket {
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

/// The next packet that is no FILLER, if one comes in time.
fn receive(socket: &UdpSocket) -> Option<Vec<u8>> {
    loop {
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).ok()?;
        if buffer[1] != FILLER {
            return Some(buffer[..length].to_vec());
        }
    }
}

fn receive_all(socket: &UdpSocket, count: usize) -> Vec<Vec<u8>> {
    (0..count).map_while(|_| receive(socket)).collect()
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
