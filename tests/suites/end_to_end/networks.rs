//! A switch host with a single port, at an Ethernet switch or a router: every element checked.

use serde_json::Value;
use switchml_rack::{Fabric, Mode, Multicast, RackOptions, Router, Topology, in_both_modes};

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
    let arguments = ["-b", "8", "-e", most, "-f", "362", "-n", "2", "-w", "1"];
    let report: Value = report(cluster.bench(RANKS, "train", &arguments));
    assert_eq!(report["out_of_bounds"], 0, "{report}");
    assert_eq!(report["differing"].as_array().unwrap().len(), 0, "{report}");
    for row in report["rows"].as_array().unwrap() {
        assert_eq!(row["out_of_place"]["wrong"], 0, "{row}");
        assert_eq!(row["in_place"]["wrong"], 0, "{row}");
    }
    cluster.stop();
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
