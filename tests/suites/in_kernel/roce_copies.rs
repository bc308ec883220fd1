//! RESULTs to all of jobs whose ranks have queue pairs, sockets, or their group, through native
//! XDP: each rank's frame byte by byte, whoever completes the round.

use std::any::Any;
use std::time::{Duration, Instant};

use switchml_protocol::bpf_types::fanout::{Receivers, direct};
use switchml_protocol::bpf_types::job::{Binding, JobEntry, MemberEntry};
use switchml_protocol::wire::ip::Ip;
use switchml_rack::{Mode, Rack, RackOptions, needs_racks};

use crate::copies::internet_checksum;
use crate::roce::home;
use switchml_rack::raw_socket::{self, RawSocket};
use switchml_test_support::frame::{
    AGGREGATOR_IP, AGGREGATOR_MAC, AGGREGATOR_PORT, CHECKED, DONE, JOB, Packet, ip, over_ipv6, v6,
};
use switchml_test_support::kernel::{Kernel, binding, job, member};
use switchml_test_support::message::message_over_ipv6;

/// How a rank sends, and gets RESULTs to all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    QueuePair,
    Socket,
    Group,
}
use Kind::{Group, QueuePair, Socket};

/// The namespaces of ranks: some share a port.
const HOMES: [usize; 6] = [0, 0, 1, 2, 2, 3];
const NAMESPACES: usize = 4;
const RANKS: usize = HOMES.len();
const SLOT: u16 = 1;
/// A sum that all ranks but the first need.
const ALL_BUT_FIRST: u8 = 0x80;
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn all_have_queue_pairs() {
    needs_racks!();
    Site::new([QueuePair; RANKS], false).play();
}

#[test]
fn some_have_sockets_or_their_group() {
    needs_racks!();
    Site::new([QueuePair, Socket, QueuePair, Socket, QueuePair, Group], false).play();
}

#[test]
fn those_over_ipv6_too() {
    needs_racks!();
    Site::new([QueuePair, Socket, Socket, QueuePair, Socket, QueuePair], true).play();
}

struct Site {
    kinds: [Kind; RANKS],
    is_v6: bool,
    kernel: Kernel,
    _links: Vec<Box<dyn Any + Send>>,
    sockets: Vec<RawSocket>,
    _rack: Rack,
}

impl Site {
    fn new(kinds: [Kind; RANKS], is_v6: bool) -> Self {
        let options = RackOptions { workers: NAMESPACES, mode: Mode::Native, ..Default::default() };
        let rack = Rack::new(options).expect("a rack");
        let ports = rack.ports();
        // A DEVMAP looks its interfaces up in the namespace of the thread that fills it in.
        let (kernel, links) = rack.switch().run(move || serve(&ports, kinds, is_v6));
        let kind = if is_v6 { raw_socket::IPV6 } else { raw_socket::IPV4 };
        let sockets = rack.workers().iter().map(|worker| RawSocket::open(worker, kind)).collect();
        Self { kinds, is_v6, kernel, _links: links, sockets, _rack: rack }
    }

    /// One round after the other, of several lengths, each completed by another rank.
    fn play(&self) {
        let ranks = (0..RANKS as u16).collect::<Vec<_>>();
        for (round, lanes) in (0..).zip([32, 64, 224, 96, 128, 192, 320]) {
            let last = usize::from(ranks[round as usize % RANKS]);
            self.play_round(round, last, lanes, 0);
        }
        self.play_round(7, 0, 64, ALL_BUT_FIRST);
        self.play_round(8, 1, 64, ALL_BUT_FIRST);
    }

    fn play_round(&self, round: u32, last: usize, lanes: usize, op: u8) {
        let values: Vec<u32> = (0..lanes as u32).map(|lane| lane * 0x0101_0101 + round).collect();
        let packet = |rank| {
            let packet = Packet::contribution(rank, SLOT, round, &values);
            Packet { op, ..packet }
        };
        let others = (0..RANKS).filter(|rank| *rank != last);
        for rank in others.chain([last]) {
            let packet = packet(rank as u16);
            let before = self.served();
            self.sockets[HOMES[rank]].send(&match self.kinds[rank] {
                QueuePair if self.is_v6 => message_over_ipv6(&packet.message()),
                QueuePair => packet.message(),
                _ if self.is_v6 => over_ipv6(&packet.frame()),
                _ => packet.frame(),
            });
            let deadline = Instant::now() + PATIENCE;
            while self.served() == before {
                assert!(Instant::now() < deadline, "round {round}: rank {rank}'s is served");
                std::thread::yield_now();
            }
        }
        let sums: Vec<u32> = values.iter().map(|value| value.wrapping_mul(RANKS as u32)).collect();
        let result = packet(0).result_for_all(CHECKED, RANKS as u32, &sums);
        let named = u32::from(SLOT) << 16 | round;
        let done = Packet { kind: DONE, contributions: 1, values: vec![named], ..result.clone() };
        for (home, socket) in self.sockets.iter().enumerate() {
            let ranks = (0..RANKS).filter(|rank| HOMES[*rank] == home);
            let frame = |rank| {
                let is_told = op == ALL_BUT_FIRST && rank == 0;
                self.frame_for(rank, if is_told { &done } else { &result })
            };
            let mut expected: Vec<_> = ranks.map(frame).collect();
            expected.sort();
            let found = self.frames(socket, expected.len());
            assert!(found == expected, "round {round}, {home}: {found:02x?}\n{expected:02x?}");
        }
    }

    /// Packets that were served so far.
    fn served(&self) -> u64 {
        use switchml_protocol::outcome::Outcome::{Added, Completed, Started};
        let counters = self.kernel.counters();
        [Started, Added, Completed].iter().map(|outcome| counters[*outcome as usize]).sum()
    }

    /// The frame in which a packet to all comes to a rank.
    fn frame_for(&self, rank: usize, packet: &Packet) -> Vec<u8> {
        let to = rank as u16;
        let frame = match self.kinds[rank] {
            QueuePair => Packet::hello(to, 0).answer_of(&packet.bytes()),
            Socket => packet.reply(to),
            Group => packet.to_group(),
        };
        if !self.is_v6 {
            return frame;
        }
        // Answers keep the flow label.
        let mut frame = match self.kinds[rank] {
            QueuePair => message_over_ipv6(&frame),
            _ => {
                let mut frame = over_ipv6(&frame);
                let pseudo = [&frame[22..54], &[0, 17], &frame[58..60], &frame[54..]].concat();
                frame[60..62].copy_from_slice(&internet_checksum(&pseudo).to_be_bytes());
                frame
            }
        };
        frame[16..18].copy_from_slice(&[0x12, 0x34]);
        frame
    }

    /// The aggregator's frames that have come, sorted: so many, and any that come soon after.
    fn frames(&self, socket: &RawSocket, count: usize) -> Vec<Vec<u8>> {
        let (mut found, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        let protocol = if self.is_v6 { 20 } else { 23 };
        let deadline = Instant::now() + PATIENCE;
        loop {
            match socket.receive(&mut buffer) {
                Some(frame) if frame[6..12] == AGGREGATOR_MAC && frame[protocol] == 17 => {
                    found.push(frame.to_vec());
                }
                None if found.len() >= count || Instant::now() > deadline => break,
                _ => {}
            }
        }
        found.sort();
        found
    }
}

/// Loads and attaches the program at these ports of the calling thread's namespace, with a job of
/// ranks that have said HELLO.
fn serve(
    ports: &[String],
    kinds: [Kind; RANKS],
    is_v6: bool,
) -> (Kernel, Vec<Box<dyn Any + Send>>) {
    let mut kernel = Kernel::with_roce();
    let index = |port: &String| -> u32 {
        let index = std::fs::read_to_string(format!("/sys/class/net/{port}/ifindex")).unwrap();
        index.trim().parse().unwrap()
    };
    let interfaces: Vec<u32> = ports.iter().map(index).collect();
    let links = interfaces
        .iter()
        .map(|interface| Box::new(kernel.attach_xdp(*interface)) as Box<dyn Any + Send>)
        .collect();
    let address = |ip: [u8; 4]| if is_v6 { Ip(v6(ip)) } else { Ip::v4(ip) };
    kernel.add_local(AGGREGATOR_MAC, address(AGGREGATOR_IP), AGGREGATOR_PORT);
    let entry = JobEntry { address: address(AGGREGATOR_IP), ..job(RANKS as u32) };
    kernel.set_job(JOB, &entry);
    let place = |rank: usize| {
        let to = rank as u16;
        let place = if kinds[rank] == QueuePair { home(to) } else { binding(to) };
        Binding { ifindex: interfaces[HOMES[rank]], ip: address(ip(to)), ..place }
    };
    let members: Vec<_> = (0..RANKS).map(place).collect();
    for (rank, binding) in (0..).zip(&members) {
        kernel.set_member(JOB, rank, &MemberEntry { binding: *binding, ..member(rank) });
    }
    let by_group =
        (0..RANKS).filter(|rank| kinds[*rank] == Group).map(|rank| rank as u16).collect();
    let ways = direct(&members, &by_group);
    kernel.set_receivers(JOB, Receivers::new(&entry, JOB, ways).expect("few places"));
    (kernel, links)
}
