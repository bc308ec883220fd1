//! A switch host with a single port, at an Ethernet switch or a router: every element checked.

use serde_json::Value;
use switchml_rack::{
    Fabric, Mode, Multicast, Rack, RackOptions, Router, Topology, can_build_racks, in_both_modes,
};

use crate::{Cluster, report};

in_both_modes! {
    one_port_at_a_switch_that_floods,
    one_port_at_a_switch_that_snoops,
    one_port_at_a_switch_with_a_querier,
    one_port_at_a_switch_without_multicast,
    one_port_at_a_router_with_multicast,
    one_port_at_a_router_without_multicast,
    one_port_at_a_router_with_nat,
}

const RANKS: usize = 4;

/// A benchmark of up to `most` bytes in a rack like that, all of whose sums are right.
fn sums_are_right(mode: Mode, topology: Topology, most: &str) {
    let options = RackOptions { workers: RANKS, mode, topology, ..RackOptions::default() };
    let cluster = Cluster::new(options);
    sums_are_right_in(&cluster, RANKS, most);
    cluster.stop();
}

fn sums_are_right_in(cluster: &Cluster, ranks: usize, most: &str) {
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
    sums_are_right(mode, fabric(Multicast::Blocked), "64K");
}

fn one_port_at_a_router_with_multicast(mode: Mode) {
    sums_are_right(mode, Topology::Routed(Router { multicast: true, nat: false }), "64K");
}

fn one_port_at_a_router_without_multicast(mode: Mode) {
    sums_are_right(mode, Topology::Routed(Router { multicast: false, nat: false }), "64K");
}

fn one_port_at_a_router_with_nat(mode: Mode) {
    sums_are_right(mode, Topology::Routed(Router { multicast: false, nat: true }), "64K");
}

#[test]
fn the_switch_host_is_a_worker_too() {
    if !can_build_racks("the_switch_host_is_a_worker_too") {
        return;
    }
    for topology in [Topology::Star, fabric(Multicast::Flooded)] {
        let options =
            RackOptions { workers: 2, topology, own_host: true, ..RackOptions::default() };
        let Cluster { binaries, aggregator, rack } = Cluster::new(options);
        let accepts_local = |rack: &Rack| {
            let read = || std::fs::read_to_string("/proc/sys/net/ipv4/conf/lo/accept_local");
            rack.switch().run(read).unwrap()
        };
        assert_eq!(accepts_local(&rack), "1\n");
        let cluster = Cluster { binaries, aggregator, rack };
        sums_are_right_in(&cluster, 3, "64K");
        let Cluster { aggregator, rack, .. } = cluster;
        aggregator.stop().unwrap();
        assert_eq!(accepts_local(&rack), "0\n", "as it was");
    }
}
