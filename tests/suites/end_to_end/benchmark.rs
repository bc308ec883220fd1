//! The benchmark checks every element on every rank against a closed form, and that all ranks hold
//! the same bits.

use std::process::Command;

use serde_json::Value;
use switchml_rack::{
    Aggregator, Binaries, Mode, Namespace, Rack, RackOptions, SWITCHED_ADDRESS, Shaping,
    SimpleSwitch, in_both_modes, leave_out, needs_racks,
};

use crate::{Cluster, report};

pub fn check(report: &Value, world_size: usize, lanes: usize, sizes: &[u64]) {
    assert_eq!(report["out_of_bounds"], 0, "{report}");
    assert_eq!(report["differing"].as_array().unwrap().len(), 0, "{report}");
    assert_eq!(report["world_size"], world_size);
    assert_eq!(report["lanes"], lanes);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["size"].as_u64().unwrap()).collect::<Vec<_>>(), sizes);
    for row in rows {
        assert_eq!(row["out_of_place"]["wrong"], 0, "{row}");
        assert_eq!(row["in_place"]["wrong"], 0, "{row}");
    }
}

in_both_modes! {
    two_workers,
}

const QUICK: [&str; 4] = ["-n", "1", "-w", "1"];

/// The test that `cargo xtask matrix` runs on every kernel.
fn two_workers(mode: Mode) {
    let mut cluster = Cluster::in_mode(2, mode);
    let hook = if mode == Mode::Native {
        "xdp: native XDP on p0, p1"
    } else {
        "xdp: bundles at tc ingress on p0, p1"
    };
    let log = cluster.aggregator.process().stderr();
    assert!(log.contains(hook), "{log}");
    let arguments = [&QUICK[..], &["-b", "8", "-e", "1M", "-f", "362"]].concat();
    check(&report(cluster.bench(2, "two", &arguments)), 2, 352, &[8, 2896, 1_048_352]);
    cluster.stop();
}

#[test]
fn four_workers_from_8_bytes_to_16_mib() {
    needs_racks!();
    let cluster = Cluster::of(4);
    let arguments = [&QUICK[..], &["-b", "8", "-e", "16M", "-f", "8"]].concat();
    let report = report(cluster.bench(4, "sizes", &arguments));
    check(&report, 4, 352, &[8, 64, 512, 4096, 32_768, 262_144, 2_097_152, 16_777_216]);
}

#[test]
fn one_two_and_eight_workers() {
    needs_racks!();
    for workers in [1, 2, 8] {
        let cluster = Cluster::of(workers);
        let arguments = [&QUICK[..], &["-b", "8", "-e", "1M", "-f", "362"]].concat();
        check(
            &report(cluster.bench(workers, "workers", &arguments)),
            workers,
            352,
            &[8, 2896, 1_048_352],
        );
    }
}

#[test]
fn every_type_and_operator() {
    needs_racks!();
    let cluster = Cluster::of(3);
    for (dtype, op) in [
        ("bf16", "sum"),
        ("f32", "max"),
        ("f16", "avg"),
        ("i32", "sum"),
        ("f64", "sum"),
        ("f32", "min"),
    ] {
        let arguments =
            [&QUICK[..], &["-b", "200000", "-e", "200000", "--dtype", dtype, "--op", op]].concat();
        check(&report(cluster.bench(3, &format!("{dtype} {op}"), &arguments)), 3, 352, &[200_000]);
    }
}

/// 14 bytes of Ethernet come on top of the MTU; the packet's headers take 28 + 32 of it.
#[test]
fn the_largest_chunk_follows_from_the_mtu() {
    needs_racks!();
    for (mtu, lanes) in [(3400, 768), (1500, 352), (1468, 352), (1467, 320), (576, 128)] {
        let cluster = Cluster::new(RackOptions { workers: 2, mtu, ..RackOptions::default() });
        let arguments = [&QUICK[..], &["-b", "1M", "-e", "1M"]].concat();
        check(&report(cluster.bench(2, "frames", &arguments)), 2, lanes, &[1 << 20]);
    }
}

/// A veth without an XDP program takes frames from XDP when GRO is on, but leaves frames sent by
/// XDP_TX in its queue.
#[test]
fn workers_without_an_xdp_program_are_answered() {
    needs_racks!();
    let cluster = Cluster::new(RackOptions {
        workers: 2,
        mode: Mode::NativeWithGro,
        ..RackOptions::default()
    });
    let arguments = [&QUICK[..], &["-b", "64K", "-e", "64K"]].concat();
    check(&report(cluster.bench(2, "gro", &arguments)), 2, 352, &[65_536]);
}

/// Two and four workers, through the P4 program.
#[test]
fn two_and_four_workers_on_bmv2() {
    needs_racks!();
    if let Some(obstacle) = SimpleSwitch::obstacle() {
        return leave_out("two_and_four_workers_on_bmv2", &obstacle);
    }
    for workers in [2, 4] {
        let cluster = Cluster::in_mode(workers, Mode::Bmv2);
        for (dtype, op) in
            [("f32", "sum"), ("bf16", "avg"), ("f16", "max"), ("f64", "sum"), ("i32", "min")]
        {
            let arguments =
                [&QUICK[..], &["-b", "8", "-e", "8K", "-f", "1024", "--dtype", dtype, "--op", op]]
                    .concat();
            check(
                &report(cluster.bench(workers, &format!("{dtype} {op}"), &arguments)),
                workers,
                64,
                &[8, 8192],
            );
        }
        // Packets that were not added up were at least admitted.
        assert_eq!(
            ["bad_check", "bad_lanes", "bad_op", "mismatch"].map(|name| cluster.counter(name)),
            [0; 4]
        );
        cluster.stop();
    }
}

/// Packets of up to 256 lanes, which take several passes through the P4 program.
#[test]
fn two_workers_on_bmv2_of_256_lanes() {
    needs_racks!();
    if let Some(obstacle) = SimpleSwitch::obstacle() {
        return leave_out("two_workers_on_bmv2_of_256_lanes", &obstacle);
    }
    const CONTROL: &str = "10.88.0.254:48865";
    let options = RackOptions { workers: 2, mode: Mode::Bmv2, ..RackOptions::default() };
    let rack = Rack::new(options).unwrap();
    let ports = rack.ports_of_simple_switch();
    let _switch = SimpleSwitch::start(rack.switch(), &ports, "bmv2_256.p4", &[]).unwrap();
    let binaries = Binaries::for_test().unwrap();
    let address = SWITCHED_ADDRESS.to_string();
    let options = ["--data-plane", "bmv2", "--data-address", &address, "--control", CONTROL];
    let _aggregator = Aggregator::on_host(&binaries, rack.switch(), &options).unwrap();
    for (dtype, op) in [("f32", "sum"), ("f16", "max"), ("i32", "min")] {
        let start = |rank: usize| {
            let mut command = Command::new(&binaries.worker);
            command.args(["bench", "--aggregator", CONTROL, "--job", dtype, "--json", "-"]);
            command.args(["--rank", &rank.to_string(), "--world-size", "2", "--own-hosts", "0"]);
            command.args(QUICK).args(["-b", "8", "-e", "8K", "-f", "1024"]);
            command.args(["--dtype", dtype, "--op", op]);
            rack.worker(rank).spawn(&format!("worker {rank}"), command).unwrap()
        };
        check(&report((0..2).map(start).collect()), 2, 256, &[8, 8192]);
    }
}

/// Bytes that have passed the shaper of arriving packets.
fn shaped_bytes(worker: &Namespace) -> u64 {
    let bytes =
        worker.run(|| std::fs::read_to_string("/sys/class/net/ifb0/statistics/tx_bytes")).unwrap();
    bytes.trim().parse().unwrap()
}

/// Packets that XDP redirects bypass the queues of the switch's ports, so links are not shaped
/// there.
#[test]
fn shaped_links_bound_native_xdp_each_way() {
    needs_racks!();
    let cluster = Cluster::in_mode(2, Mode::Native);
    let arguments = [&QUICK[..], &["-b", "4M", "-e", "4M"]].concat();
    let _shaping = Shaping::new(&cluster.rack, 200_000_000).unwrap();
    let report = report(cluster.bench(2, "shaped", &arguments));
    check(&report, 2, 352, &[4 << 20]);
    let goodput = report["rows"][0]["in_place"]["algbw"].as_f64().unwrap() * 8e9;
    assert!(goodput < 200e6, "{goodput} b/s of values");
    // The benchmark runs timed and checked calls in place and out of place, and a warm-up call.
    assert!(shaped_bytes(cluster.rack.worker(0)) > 5 * (4 << 20));
}
