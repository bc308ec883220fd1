//! The programs attached to a switch's ports: a RESULT reaches every port of the job's group as one
//! multicast frame, and answers reach who asked.
#![allow(unsafe_code)]

use std::any::Any;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;
use switchml_protocol::bpf_types::job::{JobEntry, MemberEntry};
use switchml_rack::{AGGREGATOR_ADDRESS, Mode, Namespace, Rack, RackOptions, needs_racks};

use switchml_test_support::frame::{
    AGGREGATOR_MAC, AGGREGATOR_PORT, CHECKED, FILLER, GROUP_IP, GROUP_PORT, JOB, Packet, secret,
};
use switchml_test_support::kernel::{Kernel, job};

const WORKERS: u16 = 3;

/// A worker's two sockets: its own, and the group's.
fn sockets(worker: &Namespace, rank: u16) -> (UdpSocket, UdpSocket) {
    let address = Rack::worker_address(usize::from(rank));
    let (own, group) = worker.run(move || {
        let own = UdpSocket::bind((address, 0)).expect("bind");
        own.connect((AGGREGATOR_ADDRESS, AGGREGATOR_PORT)).expect("connect");
        let group =
            UdpSocket::bind((Ipv4Addr::from(GROUP_IP), GROUP_PORT)).expect("bind to the group");
        group.join_multicast_v4(&Ipv4Addr::from(GROUP_IP), &address).expect("join the group");
        (own, group)
    });
    for socket in [&own, &group] {
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    }
    (own, group)
}

fn receive(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).expect("an answer arrives");
    buffer[..length].to_vec()
}

/// The hook at which a port takes its frames.
#[derive(Clone, Copy)]
enum Hook {
    Xdp,
    Tc,
}
use Hook::{Tc, Xdp};

/// A rack with the programs on the ports of its switch, and workers that have said HELLO.
struct Site {
    _kernel: Kernel,
    _links: Vec<Box<dyn Any + Send>>,
    /// Each rank's own socket and its group socket, by rank.
    sockets: Vec<(UdpSocket, UdpSocket)>,
    _rack: Rack,
}

impl Site {
    fn new(rack: Rack, lanes: usize, hooks: [Hook; WORKERS as usize]) -> Self {
        let ports = rack.ports();
        // A DEVMAP looks its interfaces up in the namespace of the thread that fills it in.
        let (kernel, links) = rack.switch().run(move || {
            let index = |port: &String| -> u32 {
                std::fs::read_to_string(format!("/sys/class/net/{port}/ifindex"))
                    .unwrap()
                    .trim()
                    .parse()
                    .unwrap()
            };
            let interfaces: Vec<u32> = ports.iter().map(index).collect();
            let mut kernel = Kernel::of_root();
            kernel.add_local(AGGREGATOR_MAC, AGGREGATOR_ADDRESS.octets(), AGGREGATOR_PORT);
            kernel.set_job(
                JOB,
                &JobEntry { address: AGGREGATOR_ADDRESS.into(), ..job(u32::from(WORKERS)) },
            );
            for rank in 0..WORKERS {
                kernel.set_member(
                    JOB,
                    rank,
                    &MemberEntry { secret: secret(rank), ..MemberEntry::default() },
                );
            }
            kernel.set_group(JOB, &interfaces);
            let links: Vec<Box<dyn Any + Send>> = interfaces
                .iter()
                .zip(&ports)
                .zip(hooks)
                .map(|((interface, port), hook)| match hook {
                    Xdp => Box::new(kernel.attach_xdp(*interface)) as Box<dyn Any + Send>,
                    Tc => Box::new(kernel.attach_tc(port)),
                })
                .collect();
            (kernel, links)
        });
        let sockets: Vec<_> =
            (0..WORKERS).map(|rank| sockets(rack.worker(usize::from(rank)), rank)).collect();
        for (rank, (own, _)) in (0..).zip(&sockets) {
            let hello = Packet::hello(rank, lanes).bytes();
            own.send(&hello).expect("send");
            assert_eq!(receive(own), hello, "HELLO of rank {rank}");
        }
        Self { _kernel: kernel, _links: links, sockets, _rack: rack }
    }

    /// All ranks contribute to a round, and get its sum.
    fn play_round(&self, slot: u16, round: u32, lanes: usize) {
        for (rank, (own, _)) in (0..).zip(&self.sockets) {
            own.send(&contribution(rank, slot, round, lanes).bytes()).expect("send");
        }
        let result = result_for_all(slot, round, lanes);
        for (rank, (_, group)) in self.sockets.iter().enumerate() {
            assert!(receive(group) == result, "RESULT of round {round} at rank {rank}");
        }
    }

    /// Many rounds, and a rank that says that it lost the last one.
    fn play(&self, lanes: usize) {
        (0..20).for_each(|round| self.play_round(3, round, lanes));
        let (own, _) = &self.sockets[1];
        let again = contribution(1, 3, 19, lanes);
        own.send(&again.bytes()).expect("send");
        assert!(
            receive(own) == again.result(CHECKED, 3, &sum(19, lanes)).bytes(),
            "the replayed RESULT"
        );
    }
}

fn contribution(rank: u16, slot: u16, round: u32, lanes: usize) -> Packet {
    let values: Vec<u32> = (0..lanes as u32).map(|i| (i + round) << rank).collect();
    Packet::contribution(rank, slot, round, &values)
}

/// Times 1 + 2 + 4.
fn sum(round: u32, lanes: usize) -> Vec<u32> {
    (0..lanes as u32).map(|i| (i + round) * 7).collect()
}

fn result_for_all(slot: u16, round: u32, lanes: usize) -> Vec<u8> {
    contribution(0, slot, round, lanes).result_for_all(CHECKED, 3, &sum(round, lanes)).bytes()
}

fn rack(mtu: u32, mode: Mode) -> Rack {
    Rack::new(RackOptions { workers: usize::from(WORKERS), mtu, mode, ..RackOptions::default() })
        .expect("a rack")
}

fn play(lanes: usize, mtu: u32, mode: Mode, hooks: [Hook; WORKERS as usize]) {
    Site::new(rack(mtu, mode), lanes, hooks).play(lanes);
}

#[test]
fn a_result_reaches_every_port() {
    needs_racks!();
    play(352, 1500, Mode::Native, [Xdp; 3]);
}

/// 768 lanes are the largest chunk; a page holds its frame.
#[test]
fn the_largest_chunk_reaches_every_port() {
    needs_racks!();
    play(768, 3400, Mode::Native, [Xdp; 3]);
}

/// If a sender leaves the UDP checksum of a packet to the link, the answer's checksum is left to
/// the link, too; otherwise it is 0.
#[test]
fn at_tc_ingress_too_whoever_fills_in_checksums() {
    needs_racks!();
    play(352, 1500, Mode::Auto, [Tc; 3]);
    play(768, 3400, Mode::NativeWithGro, [Tc; 3]);
}

/// The link completes a checksum from what the program left there, and the receiver verifies it.
#[test]
fn a_checksum_that_the_port_fills_in_is_right() {
    needs_racks!();
    let rack = rack(1500, Mode::Auto);
    for port in rack.ports() {
        let mut command = Command::new("ethtool");
        command.args(["-K", &port, "tx", "off"]);
        rack.switch().output(command).expect("the port leaves checksums to nobody");
    }
    Site::new(rack, 352, [Tc; 3]).play(352);
}

/// A superpacket that completes one round and repeats a contribution to another goes to all ports,
/// and also back.
#[test]
fn a_superpacket_of_two_fates_reaches_every_port() {
    const LANES: usize = 32;
    needs_racks!();
    let site = Site::new(rack(1500, Mode::Auto), LANES, [Tc; 3]);
    site.play_round(3, 0, LANES);
    for (rank, (own, _)) in (1..).zip(&site.sockets[1..]) {
        own.send(&contribution(rank, 4, 0, LANES).bytes()).expect("send");
    }
    let (own, _) = &site.sockets[0];
    let again = contribution(0, 3, 0, LANES);
    send_superpacket(own, &[contribution(0, 4, 0, LANES).bytes(), again.bytes()]);
    let kind_of = |datagram: &[u8]| datagram[1];
    for (rank, (_, group)) in site.sockets.iter().enumerate() {
        assert!(receive(group) == result_for_all(4, 0, LANES), "RESULT at rank {rank}");
        assert_eq!(
            kind_of(&receive(group)),
            FILLER,
            "the place of the other segment, at rank {rank}"
        );
    }
    assert_eq!(kind_of(&receive(own)), FILLER, "the place of the segment that completed a round");
    assert!(
        receive(own) == again.result(CHECKED, 3, &sum(0, LANES)).bytes(),
        "the replayed RESULT"
    );
}

/// Sends packets of the same length as one.
pub fn send_superpacket(socket: &UdpSocket, packets: &[Vec<u8>]) {
    let segment = packets[0].len() as libc::c_int;
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option is a number of that length, which outlives the call.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const segment).cast(),
            len,
        )
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    socket.send(&packets.concat()).expect("send");
}

#[test]
fn ranks_may_come_in_by_either_hook() {
    needs_racks!();
    play(352, 1500, Mode::Native, [Xdp, Tc, Xdp]);
    play(352, 1500, Mode::Native, [Tc, Xdp, Tc]);
}
