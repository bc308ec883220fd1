//! Ranks of torch at public addresses, which meet at torch's own store: each serves the others, and
//! a stranger reaches all of their ports.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::time::Duration;

use serde_json::Value;
use switchml_rack::{give_public_addresses, open_ports, public_address};

use crate::site::{PATIENCE, Site, Torch, fresh_folder};

const RANKS: usize = 4;

/// Sends what belongs to no protocol to all ports of a host. Returns how often it was let in.
fn disturb(host: Ipv4Addr, [tcp, udp]: [Vec<u16>; 2]) -> usize {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    for (port, len) in udp.iter().flat_map(|port| [0, 1, 48, 1456].map(|len| (*port, len))) {
        socket.send_to(&vec![0x53; len], (host, port)).unwrap();
    }
    let words: [&[u8]; 3] = [b"", b"GET / HTTP/1.1\r\n\r\n", &[0xFF; 4096]];
    let pairs = tcp.iter().flat_map(|port| words.map(|words| (*port, words)));
    // Some ports are those of other addresses, or were closed a moment ago.
    let let_in = pairs.filter_map(|(port, words)| {
        let mut stream = TcpStream::connect((host, port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let _ = stream.write_all(words);
        let _ = stream.read(&mut [0; 64]);
        Some(())
    });
    let_in.count()
}

#[test]
fn ranks_of_torch_at_public_addresses_serve_each_other_beside_a_stranger() {
    let name = "ranks_of_torch_at_public_addresses_serve_each_other_beside_a_stranger";
    // One more host, for the stranger.
    let Some(site) = Site::new(Torch::Newest, name, RANKS + 1) else { return };
    give_public_addresses(&site.rack);
    let end = fresh_folder(name).join("end");
    let (first, ranks) = (public_address(0).to_string(), RANKS.to_string());
    let variables = [
        ("SWITCHML_AGGREGATOR", ""),
        ("SWITCHML_SUMMARY", "1"),
        ("MASTER_ADDR", &*first),
        ("WORLD_SIZE", &*ranks),
    ];
    let arguments = ["two_jobs.py", "1", "torch", end.to_str().unwrap()];
    let mut ranks: Vec<_> =
        (0..RANKS).map(|rank| site.rank(rank, &arguments, &variables)).collect();
    for rank in &mut ranks {
        rank.wait_for_line("adds up", PATIENCE).unwrap();
    }
    for rank in 0..RANKS {
        let ports = site
            .rack
            .worker(rank)
            .run(|| ["tcp", "udp"].map(|protocol| open_ports(protocol).into_iter().collect()));
        let listening = site.rack.worker(RANKS).run(move || disturb(public_address(rank), ports));
        assert!(listening > 0, "rank {rank}'s own aggregator listens");
    }
    std::fs::write(&end, "").unwrap();
    for rank in &mut ranks {
        rank.wait_success(PATIENCE).unwrap();
        let printed = rank.stdout();
        let said: Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
        assert_eq!(said, serde_json::json!({"sums": [4.0], "error": null}));
    }
    let told = ranks[0].stderr();
    assert!(told.contains("4 ranks on 4 hosts serve each other"), "{told}");
}
