//! The programs attached to a switch's ports: a RESULT reaches every port of the job's group as one multicast frame, and
//! answers reach who asked.

use std::any::Any;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;
use switchml_protocol::job::{Job, Member};
use switchml_rack::{AGGREGATOR_ADDRESS, Mode, Namespace, Rack, RackOptions, can_build_racks};

use crate::kernel::{Kernel, job};
use crate::packet::{AGGREGATOR_PORT, CHECKED, GROUP_IP, GROUP_PORT, JOB, Packet, secret};

const WORKERS: u16 = 3;

/// A worker's two sockets: its own, and the group's.
fn sockets(worker: &Namespace, rank: u16) -> (UdpSocket, UdpSocket) {
    let address = Rack::worker_address(usize::from(rank));
    let (own, group) = worker.run(move || {
        let own = UdpSocket::bind((address, 0)).expect("bind");
        own.connect((AGGREGATOR_ADDRESS, AGGREGATOR_PORT)).expect("connect");
        let group = UdpSocket::bind((Ipv4Addr::from(GROUP_IP), GROUP_PORT)).expect("bind to the group");
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

/// Where a port takes its frames.
#[derive(Clone, Copy)]
enum Hook {
    Xdp,
    Tc,
}
use Hook::{Tc, Xdp};

fn play(lanes: usize, mtu: u32, mode: Mode, hooks: [Hook; WORKERS as usize]) {
    let rack = Rack::new(RackOptions { workers: usize::from(WORKERS), mtu, mode, ..RackOptions::default() });
    let rack = rack.expect("a rack");
    let ports = rack.ports();
    // A DEVMAP looks its interfaces up in the namespace of the thread that fills it in.
    let (kernel, _links) = rack.switch().run(move || {
        let index = |port: &String| -> u32 {
            std::fs::read_to_string(format!("/sys/class/net/{port}/ifindex")).unwrap().trim().parse().unwrap()
        };
        let interfaces: Vec<u32> = ports.iter().map(index).collect();
        let mut kernel = Kernel::new();
        kernel.add_local(AGGREGATOR_ADDRESS.octets(), AGGREGATOR_PORT);
        kernel.set_job(JOB, &Job { address: AGGREGATOR_ADDRESS.octets(), ..job(u32::from(WORKERS)) });
        for rank in 0..WORKERS {
            kernel.set_member(JOB, rank, &Member { secret: secret(rank), ..Member::default() });
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
    let sockets: Vec<_> = (0..WORKERS).map(|rank| sockets(rack.worker(usize::from(rank)), rank)).collect();
    for (rank, (own, _)) in (0..).zip(&sockets) {
        let hello = Packet::hello(rank, lanes).bytes();
        own.send(&hello).expect("send");
        assert_eq!(receive(own), hello, "HELLO of rank {rank}");
    }
    for round in 0..20 {
        let packet = |rank: u16| {
            let values: Vec<u32> = (0..lanes as u32).map(|i| (i + round) << rank).collect();
            Packet::contribution(rank, 3, round, &values)
        };
        for (rank, (own, _)) in (0..).zip(&sockets) {
            own.send(&packet(rank).bytes()).expect("send");
        }
        // Times 1 + 2 + 4.
        let sum: Vec<u32> = (0..lanes as u32).map(|i| (i + round) * 7).collect();
        let result = packet(0).result_for_all(CHECKED, 3, &sum).bytes();
        for (rank, (_, group)) in (0..).zip(&sockets) {
            let rank: u16 = rank;
            assert!(receive(group) == result, "RESULT of round {round} at rank {rank}");
        }
    }
    // One that says that it lost the last one.
    let (own, _) = &sockets[1];
    let again = Packet::contribution(1, 3, 19, &(0..lanes as u32).map(|i| (i + 19) << 1).collect::<Vec<_>>());
    own.send(&again.bytes()).expect("send");
    let sum: Vec<u32> = (0..lanes as u32).map(|i| (i + 19) * 7).collect();
    assert!(receive(own) == again.result(CHECKED, 3, &sum).bytes(), "the replayed RESULT");
    drop(kernel);
}

#[test]
fn a_result_reaches_every_port() {
    if can_build_racks("a_result_reaches_every_port") {
        play(352, 1500, Mode::Native, [Xdp; 3]);
    }
}

/// 768 lanes are the largest chunk; a page holds its frame.
#[test]
fn the_largest_chunk_reaches_every_port() {
    if can_build_racks("the_largest_chunk_reaches_every_port") {
        play(768, 3400, Mode::Native, [Xdp; 3]);
    }
}

/// The UDP checksum of a packet that its sender has left to the link is left to the link again, and 0 otherwise.
#[test]
fn at_tc_ingress_too_whoever_fills_in_checksums() {
    if can_build_racks("at_tc_ingress_too_whoever_fills_in_checksums") {
        play(352, 1500, Mode::Auto, [Tc; 3]);
        play(768, 3400, Mode::NativeWithGro, [Tc; 3]);
    }
}

#[test]
fn ranks_may_come_in_by_either_hook() {
    if can_build_racks("ranks_may_come_in_by_either_hook") {
        play(352, 1500, Mode::Native, [Xdp, Tc, Xdp]);
        play(352, 1500, Mode::Native, [Tc, Xdp, Tc]);
    }
}
