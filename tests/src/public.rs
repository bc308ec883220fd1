//! Public addresses for a rack's hosts, and the ports that a stranger finds open there.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;

use crate::rack::Rack;

/// A public address (RFC 5737) of a rank's host.
pub fn public_address(rank: usize) -> Ipv4Addr {
    Ipv4Addr::new(203, 0, 113, rank as u8 + 1)
}

/// Gives each worker of a rack its [`public_address`], beside the one that it has.
pub fn give_public_addresses(rack: &Rack) {
    for (rank, worker) in rack.workers().iter().enumerate() {
        let mut command = Command::new("ip");
        let address = format!("{}/24", public_address(rank));
        command.args(["address", "add", &address, "dev", "eth0"]);
        assert!(worker.output(command).unwrap().status.success());
    }
}

/// The ports of a protocol, `tcp` or `udp`, at which the calling thread's host listens.
pub fn open_ports(protocol: &str) -> BTreeSet<u16> {
    let table = fs::read_to_string(format!("/proc/thread-self/net/{protocol}")).unwrap();
    // Of TCP, state 0A; of UDP, 07: not connected.
    let is_open = |state: &str| state == "0A" || state == "07";
    let port = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let port = fields[1].rsplit_once(':').unwrap().1;
        is_open(fields[3]).then(|| u16::from_str_radix(port, 16).unwrap())
    };
    table.lines().skip(1).filter_map(port).collect()
}
