//! Hosts that have only IPv6 addresses, and a daemon that serves both IP versions.

use std::process::Command;

use switchml_rack::{
    Aggregator, Binaries, Fabric, Ip, Mode, Multicast, Namespace, Rack, RackOptions, Router,
    Topology, in_both_modes, needs_racks,
};
use switchml_worker::control::ClientTls;
use switchml_worker::{Communicator, ReduceOp};

use crate::lost_ranks::{LONG, LOST, RANKS, others_name_it, start};
use crate::networks::sums_are_right_in;
use crate::strangers::sniffer::Capture;
use crate::{Cluster, report};
use switchml_rack::raw_socket::{self, RawSocket};

in_both_modes! {
    sums_over_ipv6_are_right,
    copies_over_ipv6_reach_members_alone,
    a_rank_in_another_subnet_of_ipv6_is_served,
    a_rank_that_is_killed_over_ipv6_is_named,
}

fn cluster(mode: Mode, topology: Topology) -> Cluster {
    let ip = Ip::V6;
    Cluster::new(RackOptions { workers: RANKS, mode, topology, ip, ..RackOptions::default() })
}

/// Rules 5.12 and 11.4: all ranks get copies, and 352 lanes fit an MTU of 1500 bytes over IPv6,
/// too.
fn sums_over_ipv6_are_right(mode: Mode) {
    let mut cluster = cluster(mode, Topology::Star);
    let arguments = ["-b", "8", "-e", "4M", "-f", "724", "-n", "2", "-w", "1"];
    let report = report(cluster.bench(RANKS, "train", &arguments));
    assert_eq!((&report["out_of_bounds"], &report["lanes"]), (&0.into(), &352.into()), "{report}");
    for row in report["rows"].as_array().unwrap() {
        assert_eq!(row["out_of_place"]["wrong"], 0, "{row}");
        assert_eq!(row["in_place"]["wrong"], 0, "{row}");
    }
    let (completed, asked) = (cluster.counter("completed"), cluster.counter("replayed"));
    // A rank without copies would ask for each result.
    assert!(completed > 0 && asked < completed, "{asked} of {completed} results");
    let log = cluster.aggregator.process().stderr();
    assert!(log.contains("352 lanes, each rank gets its own copies of results"), "{log}");
    cluster.stop();
}

fn copies_over_ipv6_reach_members_alone(mode: Mode) {
    let fabric = Fabric { multicast: Multicast::Flooded, ..Fabric::default() };
    let cluster = cluster(mode, Topology::OneNic(fabric));
    let stranger = RANKS - 1;
    let capture = Capture::start(RawSocket::open(cluster.rack.worker(stranger), raw_socket::IPV6));
    let member = Capture::start(RawSocket::open(cluster.rack.worker(0), raw_socket::IPV6));
    sums_are_right_in(&cluster, stranger, "64K");
    assert_eq!(capture.packets(), 0, "packets of the aggregator's");
    assert!(member.packets() > 0);
    cluster.stop();
}

fn a_rank_in_another_subnet_of_ipv6_is_served(mode: Mode) {
    let cluster = cluster(mode, Topology::Routed(Router::default()));
    sums_are_right_in(&cluster, RANKS, "64K");
    cluster.stop();
}

fn a_rank_that_is_killed_over_ipv6_is_named(mode: Mode) {
    let cluster = cluster(mode, Topology::Star);
    let mut ranks = start(&cluster, &LONG);
    ranks[LOST].kill().unwrap();
    others_name_it(&mut ranks);
}

#[test]
fn the_software_data_plane_serves_ipv6() {
    needs_racks!();
    let binaries = Binaries::for_test().unwrap();
    for topology in [Topology::Star, Topology::Routed(Router::default())] {
        let options =
            RackOptions { workers: RANKS, topology, ip: Ip::V6, ..RackOptions::default() };
        let rack = Rack::new(options).unwrap();
        let aggregator = Aggregator::software_in_rack(&binaries, &rack).unwrap();
        let cluster = Cluster { binaries: binaries.clone(), aggregator, rack, ranks_of_host: 1 };
        sums_are_right_in(&cluster, RANKS, "1M");
        cluster.aggregator.stop().unwrap();
    }
}

/// By default the daemon serves both IP versions, and has jobs of both at the same time.
#[test]
fn one_daemon_has_jobs_of_both_kinds_of_ip() {
    let binaries = Binaries::for_test().unwrap();
    let host = Namespace::of_host().unwrap();
    let aggregator = Aggregator::on_loopback_by_both(&binaries, &host).unwrap();
    let port = aggregator.control().rsplit_once(':').unwrap().1.to_owned();
    let fingerprint = aggregator.fingerprint().to_owned();
    let sum_by = |address: &str| {
        let job = |rank| {
            let aggregator = format!("{address}:{port}");
            let tls = ClientTls { fingerprint: Some(fingerprint.clone()), ..ClientTls::default() };
            std::thread::spawn(move || {
                let builder = Communicator::builder().aggregator(&aggregator).job(&aggregator);
                let communicator = builder.tls(tls).rank(rank).world_size(2).connect().unwrap();
                let mut values = vec![rank as i32 + 1; 100_000];
                communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
                assert!(values.iter().all(|&sum| sum == 3));
                communicator
            })
        };
        [job(0), job(1)].map(|rank| rank.join().unwrap())
    };
    let over_v4 = sum_by("127.0.0.1");
    let over_v6 = sum_by("[::1]");
    assert!(over_v4.iter().all(|rank| rank.info().stripes[0].aggregator.is_ipv4()));
    assert!(over_v6.iter().all(|rank| rank.info().stripes[0].aggregator.is_ipv6()));
    let mut command = Command::new(&binaries.aggregator);
    command.args([
        "jobs",
        "--connect",
        &format!("[::1]:{port}"),
        "--tls-fingerprint",
        &fingerprint,
    ]);
    let jobs = String::from_utf8(host.output(command).unwrap().stdout).unwrap();
    assert!(jobs.contains("127.0.0.1:") && jobs.contains("[::1]:"), "{jobs}");
    for rank in over_v4.into_iter().chain(over_v6) {
        rank.close().unwrap();
    }
    aggregator.stop().unwrap();
}
