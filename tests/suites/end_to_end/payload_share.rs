//! How much of a link's bytes are values, with packets of 64 and of 256 lanes through a switch in
//! P4. The table in `docs/research/tofino.md` has what is expected.

use std::fs;

use switchml_rack::{
    Aggregator, Binaries, Mode, Rack, RackOptions, SWITCHED_ADDRESS, SimpleSwitch, leave_out,
    needs_racks,
};
use switchml_worker::{Builder, CallStats, ReduceOp};

use crate::Cluster;

/// Two ranks sum this many elements of four bytes.
const ELEMENTS: u64 = 1 << 15;
/// Headers of Ethernet, IPv4, UDP and the protocol (rule 2.1).
const HEADERS: u64 = 14 + 20 + 8 + 32;

#[test]
fn of_links_to_bmv2() {
    needs_racks!();
    if let Some(obstacle) = SimpleSwitch::obstacle() {
        return leave_out("of_links_to_bmv2", &obstacle);
    }
    for (program, lanes) in [("bmv2.p4", 64), ("bmv2_256.p4", 256)] {
        let options = RackOptions { workers: 2, mode: Mode::Bmv2, ..RackOptions::default() };
        let rack = Rack::new(options).unwrap();
        let ports = rack.ports_of_simple_switch();
        let _switch = SimpleSwitch::start(rack.switch(), &ports, program, &[]).unwrap();
        let binaries = Binaries::for_test().unwrap();
        let address = SWITCHED_ADDRESS.to_string();
        let control = "10.88.0.254:48865";
        let options = ["--data-plane", "bmv2", "--data-address", &address, "--control", control];
        let aggregator = Aggregator::on_host(&binaries, rack.switch(), &options).unwrap();
        let cluster = Cluster { binaries, aggregator, rack, ranks_of_host: 1 };
        for (call, sent, received) in cluster.run_ranks(2, "share", |_, builder| sum(builder)) {
            check(lanes, &call, sent, received);
        }
        cluster.stop();
    }
}

/// What a call took, and the bytes that this rank's link carried meanwhile, there and back.
fn sum(builder: Builder) -> (CallStats, u64, u64) {
    let bytes = |way| {
        let counter = fs::read_to_string(format!("/sys/class/net/eth0/statistics/{way}_bytes"));
        counter.unwrap().trim().parse::<u64>().unwrap()
    };
    let communicator = builder.connect().unwrap();
    let mut values = vec![1; ELEMENTS as usize];
    let before = (bytes("tx"), bytes("rx"));
    let call = communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
    let after = (bytes("tx"), bytes("rx"));
    communicator.close().unwrap();
    assert_eq!(values, [2; ELEMENTS as usize]);
    (call, after.0 - before.0, after.1 - before.1)
}

/// A chunk is a frame each way. What is sent again, and the control plane's messages, are little.
fn check(lanes: u64, call: &CallStats, sent: u64, received: u64) {
    let frame = HEADERS + 4 * lanes;
    let least = ELEMENTS / lanes * frame;
    let again = (call.resent_by_timer + call.resent_by_overtaking + call.probes) * frame;
    let share = |bytes: u64| 100.0 * 4.0 * ELEMENTS as f64 / bytes as f64;
    println!(
        "{lanes} lanes: values are {:.1} % of the bytes sent, {:.1} % of those received, and \
         {again} bytes were sent again",
        share(sent - again),
        share(received)
    );
    // An answer to what was sent again may be as long.
    for bytes in [sent - again, received.saturating_sub(again).max(least)] {
        assert!((least..least + least / 20).contains(&bytes), "{bytes} for {least} at least");
    }
    assert!(received >= least, "{received} for {least} at least");
}
