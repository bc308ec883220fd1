//! A switch host with a single port, at an Ethernet switch or a router: every element checked.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;
use switchml_rack::{
    Aggregator, Binaries, Fabric, Mode, Multicast, Namespace, Rack, RackOptions, Router, Topology,
    in_both_modes, needs_racks,
};
use switchml_worker::ReduceOp;

use crate::loops::Loops;
use crate::multicast::lines_of_copies;
use crate::strangers::sniffer::Capture;
use crate::{Cluster, SOON, report};
use switchml_rack::raw_socket::{self, RawSocket};
use switchml_test_support::frame;

in_both_modes! {
    one_port_at_a_switch_that_floods,
    one_port_at_a_switch_that_snoops,
    one_port_at_a_switch_with_a_querier,
    one_port_at_a_switch_without_multicast,
    one_port_at_a_switch_with_multicast_for_some,
    one_port_at_a_router_with_multicast,
    one_port_at_a_router_without_multicast,
    one_port_at_a_router_with_nat,
    one_port_behind_two_routers,
    copies_for_all_although_multicast_passes,
    a_namespace_on_the_switch_host_is_a_worker_too,
    one_port_whose_other_end_has_no_gro,
    copies_reach_members_alone,
    results_live_through_each_router,
    a_narrow_link_between_routers_costs_lanes_alone,
    a_link_that_becomes_narrow_ends_calls_with_a_line_about_it,
}

const RANKS: usize = 4;

fn cluster(mode: Mode, topology: Topology) -> Cluster {
    Cluster::new(RackOptions { workers: RANKS, mode, topology, ..RackOptions::default() })
}

/// Runs a benchmark of up to `most` bytes in such a rack; all sums must be right.
fn sums_are_right(mode: Mode, topology: Topology, most: &str) {
    let cluster = cluster(mode, topology);
    sums_are_right_in(&cluster, RANKS, most);
    cluster.stop();
}

/// Runs the benchmark where the network brings no multicast: all ranks get copies, as one line
/// says, and need not ask.
fn copies_are_right(mode: Mode, topology: Topology, most: &str) {
    copies_are_right_in(cluster(mode, topology), "0, 1, 2, 3", most);
}

fn copies_are_right_in(mut cluster: Cluster, ranks: &str, most: &str) {
    sums_are_right_in(&cluster, RANKS, most);
    let (completed, asked) = (cluster.counter("completed"), cluster.counter("replayed"));
    // Without copies each rank asks for each result. With few results, a busy machine delays some.
    let results = completed * RANKS as u64;
    assert!(asked * 2 < results, "{asked} of {results} results were asked for again");
    let lines = lines_of_copies(&mut cluster);
    let expected = format!("copies of results for ranks that multicast does not reach: {ranks}");
    assert!(lines.len() == 1 && lines[0].ends_with(&expected), "{lines:?}");
    cluster.stop();
}

pub fn sums_are_right_in(cluster: &Cluster, ranks: usize, most: &str) {
    let arguments = ["-b", "8", "-e", most, "-f", "362", "-n", "2", "-w", "1"];
    let report: Value = report(cluster.bench(ranks, "train", &arguments));
    assert_eq!(report["out_of_bounds"], 0, "{report}");
    assert_eq!(report["differing"].as_array().unwrap().len(), 0, "{report}");
    for row in report["rows"].as_array().unwrap() {
        assert_eq!(row["out_of_place"]["wrong"], 0, "{row}");
        assert_eq!(row["in_place"]["wrong"], 0, "{row}");
    }
}

fn fabric(multicast: Multicast) -> Topology {
    Topology::OneNic(Fabric { multicast, ..Fabric::default() })
}

fn one_port_at_a_switch_that_floods(mode: Mode) {
    sums_are_right(mode, fabric(Multicast::Flooded), "1M");
}

fn one_port_at_a_switch_that_snoops(mode: Mode) {
    sums_are_right(mode, fabric(Multicast::Snooped), "1M");
}

fn one_port_at_a_switch_with_a_querier(mode: Mode) {
    sums_are_right(mode, fabric(Multicast::Queried), "1M");
}

fn one_port_at_a_switch_without_multicast(mode: Mode) {
    copies_are_right(mode, fabric(Multicast::Blocked), "1M");
}

fn one_port_at_a_switch_with_multicast_for_some(mode: Mode) {
    copies_are_right_in(cluster(mode, fabric(Multicast::Partial)), "1, 3", "1M");
}

/// Rule 11.7: nothing is tried out.
fn copies_for_all_although_multicast_passes(mode: Mode) {
    let topology = fabric(Multicast::Flooded);
    let options = RackOptions { workers: RANKS, mode, topology, ..RackOptions::default() };
    let cluster = Cluster::with_options(options, &["--fanout", "unicast"]);
    sums_are_right_in(&cluster, RANKS, "1M");
    let results = cluster.run_ranks(RANKS, "again", |_, builder| {
        let communicator = builder.connect().unwrap();
        let results = communicator.info().stripes[0].results();
        communicator.close().unwrap();
        results
    });
    assert!(results.iter().all(|way| way.starts_with("by copies")), "{results:?}");
    cluster.stop();
}

fn routed(multicast: bool) -> Topology {
    Topology::Routed(Router { multicast, ..Router::default() })
}

/// Linux's multicast routing drops superpackets, so ranks get copies if there are superpackets.
fn one_port_at_a_router_with_multicast(mode: Mode) {
    match mode {
        Mode::Auto => copies_are_right(mode, routed(true), "64K"),
        _ => sums_are_right(mode, routed(true), "64K"),
    }
}

fn one_port_at_a_router_without_multicast(mode: Mode) {
    copies_are_right(mode, routed(false), "64K");
}

fn one_port_at_a_router_with_nat(mode: Mode) {
    copies_are_right(mode, Topology::Routed(Router { nat: true, ..Router::default() }), "64K");
}

fn behind_two_routers(multicast: bool, mtu: u32) -> Topology {
    Topology::Routed(Router { multicast, core: Some(mtu), ..Router::default() })
}

fn one_port_behind_two_routers(mode: Mode) {
    copies_are_right(mode, behind_two_routers(false, 1500), "64K");
}

/// A veth takes frames from XDP only if its other end has GRO on, or a program. The daemon says so
/// at its start.
fn one_port_whose_other_end_has_no_gro(mode: Mode) {
    let topology = Topology::OneNic(Fabric { gro: false, ..Fabric::default() });
    if mode == Mode::Auto {
        return sums_are_right(mode, topology, "64K");
    }
    let binaries = Binaries::for_test().unwrap();
    let rack = Rack::new(RackOptions { workers: RANKS, mode, topology, ..RackOptions::default() });
    let Err(error) = Aggregator::in_rack(&binaries, &rack.unwrap()) else {
        panic!("it started");
    };
    let line = "interface \"nic0\" would silently drop every answer: its other end takes no frames \
                from XDP; attach an XDP program there that passes them, or, while it is up, turn \
                GRO off and on again there";
    assert!(error.to_string().contains(line), "{error}");
}

/// A host at the same switch that is in no job gets no packets of one.
fn copies_reach_members_alone(mode: Mode) {
    let cluster = cluster(mode, fabric(Multicast::Blocked));
    let stranger = RANKS - 1;
    let capture = Capture::start(RawSocket::open(cluster.rack.worker(stranger), raw_socket::IPV4));
    sums_are_right_in(&cluster, stranger, "64K");
    assert_eq!(capture.packets(), 0, "packets of the aggregator's");
    cluster.stop();
}

/// Rule 5.4: results begin with a TTL of 64, to the group and as copies.
fn results_live_through_each_router(mode: Mode) {
    for (multicast, topology, routers) in [
        (true, routed(true), 1),
        (false, routed(false), 1),
        (true, behind_two_routers(true, 1500), 2),
        (false, behind_two_routers(false, 1500), 2),
    ] {
        let cluster = cluster(mode, topology);
        let sniffer = Results::sniff(&cluster);
        sums_are_right_in(&cluster, RANKS, "64K");
        let by_group = multicast && mode == Mode::Native;
        assert_eq!(sniffer.stop(), [(by_group, 64 - routers)].into(), "{topology:?}");
        cluster.stop();
    }
}

/// RESULTs for all that come to worker 0.
struct Results {
    thread: JoinHandle<BTreeSet<(bool, u8)>>,
    stop: Arc<AtomicBool>,
}

impl Results {
    fn sniff(cluster: &Cluster) -> Self {
        let socket = RawSocket::open(cluster.rack.worker(0), raw_socket::IPV4);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let (mut found, mut buffer) = (BTreeSet::new(), vec![0; 1 << 16]);
            while !stopped.load(Ordering::Relaxed) {
                let Some(frame) = socket.receive(&mut buffer) else { continue };
                let is_result = frame.len() > 52
                    && (frame[23], &frame[34..36]) == (17, &48864u16.to_be_bytes()[..])
                    && (frame[43], &frame[50..52]) == (frame::RESULT, &[0xFF; 2][..]);
                if is_result {
                    found.insert((frame[30] == 239, frame[22]));
                }
            }
            found
        });
        Self { thread, stop }
    }

    /// Whether the RESULTs came to a group, and with which TTL.
    fn stop(self) -> BTreeSet<(bool, u8)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// The ranks only get fewer lanes, whether or not the router reports the MTU by ICMP, which
/// firewalls often drop.
fn a_narrow_link_between_routers_costs_lanes_alone(mode: Mode) {
    for says_so in [true, false] {
        let cluster = cluster(mode, behind_two_routers(false, 1300));
        let router = cluster.rack.network().unwrap();
        if !says_so {
            for arguments in [
                "add table ip quiet",
                "add chain ip quiet out { type filter hook output priority 0 ; }",
                "add rule ip quiet out icmp type destination-unreachable drop",
            ] {
                let mut command = Command::new("nft");
                command.args(arguments.split(' '));
                router.output(command).unwrap();
            }
        }
        let told = cluster.run_ranks(RANKS, "train", |rank, builder| {
            let communicator = builder.connect().unwrap();
            let mut values = vec![rank as i32 + 1; 100_000];
            communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            assert!(values.iter().all(|&sum| sum == 10));
            let info = communicator.info().clone();
            communicator.close().unwrap();
            (info.chunk_lanes, info.narrow.map(|narrow| narrow.to_string()))
        });
        for (lanes, narrow) in told {
            // 288 lanes are 1212 bytes with their headers, 320 are 1340.
            assert_eq!(lanes, 288, "says so: {says_so}");
            let narrow = narrow.expect("a line about it");
            assert!(narrow.contains("smaller MTU"), "{narrow}");
        }
        cluster.stop();
    }
}

fn a_link_that_becomes_narrow_ends_calls_with_a_line_about_it(mode: Mode) {
    let mut cluster = cluster(mode, behind_two_routers(false, 1500));
    let deadline = Duration::from_secs(3);
    let loops = Loops::start(&cluster, "train", deadline);
    let mut command = Command::new("ip");
    command.args(["link", "set", "uplink", "mtu", "1000"]);
    cluster.rack.network().unwrap().output(command).unwrap();
    let begin = Instant::now();
    for ended in loops.wait() {
        assert!(ended.at - begin < deadline + SOON);
        let error = ended.result.unwrap_err().to_string();
        let line = "the path MTU to 10.88.0.254:48864 has become smaller";
        assert!(error.contains(line), "{error}");
    }
    // The operator is told whose path that is, too.
    let daemon = cluster.aggregator.process();
    let told = daemon.wait_for_line("has become smaller", SOON).unwrap();
    assert!(told.contains("rank "), "{told}");
    cluster.stop();
}

/// A rank in a namespace of the switch host, as `docker run` makes it, without NAT, is served by
/// native XDP, too.
fn a_namespace_on_the_switch_host_is_a_worker_too(mode: Mode) {
    let binaries = Binaries::for_test().unwrap();
    let topology = fabric(Multicast::Flooded);
    let options = RackOptions { workers: 3, mode, topology, ..RackOptions::default() };
    let rack = Rack::new(options).unwrap();
    let (switch, inside) = (rack.switch(), rack.worker(2));
    shell(inside, "ip link del eth0");
    let peer = format!("peer name inside netns {}", switch.path());
    shell(inside, &format!("ip link add eth0 mtu 1500 type veth {peer}"));
    shell(switch, "ip address add 10.99.0.254/24 dev inside; ip link set inside up");
    shell(inside, "ip address add 10.99.0.1/24 dev eth0; ip link set eth0 up");
    shell(inside, "ip route add default via 10.99.0.254; ip route add 224.0.0.0/4 dev eth0");
    if mode == Mode::Native {
        shell(inside, "ethtool -K eth0 tx off txvlan off tx-vlan-stag-hw-insert off gro on");
    }
    let options = ["--iface", "nic0", "--iface", "inside", "--mode", mode.argument()];
    let aggregator = Aggregator::with_options(&binaries, &rack, &options).unwrap();
    let cluster = Cluster { binaries, aggregator, rack, ranks_of_host: 1 };
    sums_are_right_in(&cluster, 3, "1M");
    let (completed, asked) = (cluster.counter("completed"), cluster.counter("replayed"));
    assert!(asked * 2 < completed * 3, "{asked} of {completed} results were asked for again");
    cluster.stop();
}

fn shell(namespace: &Namespace, line: &str) {
    let mut command = Command::new("sh");
    command.args(["-ec", line]);
    namespace.output(command).unwrap();
}

#[test]
fn the_switch_host_is_a_worker_too() {
    needs_racks!();
    for topology in [Topology::Star, fabric(Multicast::Flooded)] {
        let options =
            RackOptions { workers: 2, topology, own_host: true, ..RackOptions::default() };
        let Cluster { binaries, aggregator, rack, .. } = Cluster::new(options);
        let accepts_local = |rack: &Rack| {
            let read = || std::fs::read_to_string("/proc/sys/net/ipv4/conf/lo/accept_local");
            rack.switch().run(read).unwrap()
        };
        assert_eq!(accepts_local(&rack), "1\n");
        let cluster = Cluster { binaries, aggregator, rack, ranks_of_host: 1 };
        sums_are_right_in(&cluster, 3, "64K");
        let Cluster { aggregator, rack, .. } = cluster;
        aggregator.stop().unwrap();
        assert_eq!(accepts_local(&rack), "0\n", "as it was");
    }
}
