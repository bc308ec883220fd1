//! Hosts with public addresses: everybody reaches the ports of ranks that serve each other.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use switchml_rack::{give_public_addresses, open_ports, public_address};
use switchml_worker::Communicator;

use crate::PATIENCE;
use crate::peers::{add_up, rack};

const RANKS: usize = 4;
/// The port at which ranks meet.
const MEETING: u16 = 29_500;

/// Joins as a rank of the ranks' job, and as a job of its own. Returns why it could not.
fn join(control: SocketAddr) -> [String; 2] {
    [("public", 1, RANKS as u32), ("a stranger's", 0, 1)].map(|(job, rank, ranks)| {
        let builder = Communicator::builder().aggregator(control.to_string()).job(job);
        let builder = builder.rank(rank).world_size(ranks).join_timeout(Duration::from_secs(3));
        builder.connect().err().expect("a stranger is not let in").to_string()
    })
}

/// Sends to a rank's host what comes to a stranger's mind. Returns how often its joins were refused
/// for want of the secret.
fn disturb(host: Ipv4Addr, tcp: &BTreeSet<u16>, udp: &BTreeSet<u16>) -> usize {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    for (port, len) in udp.iter().flat_map(|port| [0, 1, 48, 1456].map(|len| (*port, len))) {
        socket.send_to(&vec![0x53; len], (host, port)).unwrap();
    }
    let at = |port: &u16| {
        let mut stream = TcpStream::connect((host, *port)).unwrap();
        let _ = stream.write_all(b"{\"meeting\": 3}\nGET / HTTP/1.1\r\n\r\n");
        let refusals = join((host, *port).into());
        refusals.iter().filter(|why| why.contains("admits ranks only with the secret")).count()
    };
    tcp.iter().map(at).sum()
}

#[test]
fn ranks_at_public_addresses_serve_each_other() {
    // A host for each rank, and one for a stranger.
    let rack = rack(RANKS + 1);
    give_public_addresses(&rack);
    let (tell, told) = mpsc::channel();
    let live = &|rank: usize, over: Receiver<()>| {
        let tell = tell.clone();
        rack.worker(rank).run(move || {
            let meeting = SocketAddr::from((public_address(0), MEETING)).to_string();
            let builder = Communicator::builder().meeting(meeting).job("public");
            let builder = builder.rank(rank as u32).world_size(RANKS as u32);
            let communicator = builder.connect().unwrap();
            add_up(&communicator);
            tell.send((rank, ["tcp", "udp"].map(open_ports))).unwrap();
            // While the stranger is at work, and behind it.
            add_up(&communicator);
            let _ = over.recv();
            add_up(&communicator);
            let stripes = communicator.info().stripes.clone();
            communicator.close().unwrap();
            stripes
        })
    };
    let lives: Vec<_> = thread::scope(|scope| {
        let (stays, overs): (Vec<_>, Vec<_>) = (0..RANKS).map(|_| mpsc::channel()).unzip();
        let ranks = overs.into_iter().enumerate();
        let ranks: Vec<_> =
            ranks.map(|(rank, over)| scope.spawn(move || live(rank, over))).collect();
        for _ in 0..RANKS {
            let (rank, [tcp, udp]) = told.recv_timeout(PATIENCE).expect("a rank's ports");
            let refused = rack.worker(RANKS).run(move || disturb(public_address(rank), &tcp, &udp));
            assert_eq!(refused, 2, "at rank {rank}'s own aggregator");
        }
        drop(stays);
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for stripe in lives.iter().flatten() {
        assert!(stripe.aggregator.ip().to_string().starts_with("203.0.113."), "{stripe:?}");
        assert!(stripe.tag_len > 0, "packets have tags");
    }
}
