//! `--drop-rate`: the aggregator itself loses packets, in each of its data planes. Links that lose
//! them, both ways, are in [`crate::bad_links`].

use switchml_rack::{
    Aggregator, Binaries, Mode, Rack, RackOptions, SimpleSwitch, in_both_modes, leave_out,
    needs_racks,
};
use switchml_worker::ReduceOp;

use crate::Cluster;

in_both_modes! {
    a_twentieth_of_all_packets_is_lost,
}

const OPTIONS: [&str; 3] = ["--drop-rate", "0.05", "--for-tests"];

fn options(mode: Mode) -> RackOptions {
    RackOptions { workers: 4, mode, ..RackOptions::default() }
}

fn a_twentieth_of_all_packets_is_lost(mode: Mode) {
    check(Cluster::with_options(options(mode), &OPTIONS), 1 << 19, 5);
}

#[test]
fn a_twentieth_of_all_packets_is_lost_in_software() {
    needs_racks!();
    let (binaries, rack) = (Binaries::for_test().unwrap(), Rack::new(options(Mode::Auto)).unwrap());
    let software = [&["--data-plane", "software"], &OPTIONS[..]].concat();
    let aggregator = Aggregator::with_options(&binaries, &rack, &software).unwrap();
    check(Cluster { binaries, aggregator, rack, ranks_of_host: 1 }, 1 << 19, 5);
}

/// `simple_switch` takes some thousand packets a second, so there are fewer, and more are lost.
#[test]
fn a_fifth_of_all_packets_is_lost_by_bmv2() {
    needs_racks!();
    if let Some(obstacle) = SimpleSwitch::obstacle() {
        return leave_out("a_fifth_of_all_packets_is_lost_by_bmv2", &obstacle);
    }
    let options = ["--drop-rate", "0.2", "--for-tests"];
    check(Cluster::with_options(self::options(Mode::Bmv2), &options), 1 << 15, 20);
}

/// Every sum of so many elements of four ranks is right, and about as many packets are lost as they
/// should.
fn check(mut cluster: Cluster, elements: i32, percent: u32) {
    cluster.run_ranks(4, "lossy", move |rank, builder| {
        let communicator = builder.connect().unwrap();
        let mut values: Vec<i32> = (0..elements).map(|i| i * (rank as i32 + 1)).collect();
        communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        // 1 + 2 + 3 + 4
        assert!((0..).zip(&values).all(|(i, sum)| *sum == 10 * i), "rank {rank}");
        communicator.close().unwrap();
    });
    let counters = cluster.counters();
    let lost = counters["lost_for_tests"] as f64;
    // All that are for the aggregator.
    let passed_on = ["not_ours", "vlan", "ipv6", "ip_options", "fragment"];
    let of_jobs = counters.iter().filter(|(name, _)| !passed_on.contains(&name.as_str()));
    let all = of_jobs.map(|(_, packets)| packets).sum::<u64>() as f64;
    // By Bernstein's inequality, chance goes beyond eight standard deviations with a probability of
    // less than 1e-11: 2 exp(-32 v / (v + 8 sqrt(v) / 3)), with a variance v of 270 or more.
    let share = f64::from(percent) / 100.0;
    let variance = all * share * (1.0 - share);
    assert!(variance >= 270.0, "too few to tell: {counters:?}");
    assert!((lost - all * share).abs() < 8.0 * variance.sqrt(), "{lost} of {all} lost");
    let status = cluster.ask(&["status", "--connect", cluster.aggregator.control()]);
    let warning = format!("loses {percent} % of the packets that reach it");
    assert!(status.contains(&format!("FOR TESTS, it {warning}")), "{status}");
    let log = cluster.aggregator.process().stderr();
    let warning = format!("--drop-rate: this aggregator {warning}");
    assert!(log.contains("WARN") && log.contains(&warning), "{log}");
    cluster.stop();
}
