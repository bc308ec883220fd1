//! Links that lose, double, reorder and corrupt: every sum is exact all the same, on every rank.
//! The impairment's own counts prove that the faults did happen.

use std::time::Duration;

use switchml_rack::{FaultCounts, Faults, Impairment, Ip, Mode, RackOptions, in_both_modes};
use switchml_worker::engine::{EngineStats, Ignored};
use switchml_worker::{ReduceOp, Stats};

use crate::Cluster;
use crate::multicast::block_multicast;

in_both_modes! {
    loss_of_one_in_a_thousand,
    loss_of_one_percent,
    loss_of_five_percent,
    loss_of_twenty_percent,
    five_percent_twice,
    heavy_reordering,
    corrupted_headers,
    flipped_bits_in_the_payload,
    everything_at_once,
    everything_at_once_where_all_get_copies,
    everything_at_once_where_some_get_copies,
    everything_at_once_over_ipv6,
    an_overflowing_queue_is_answered_by_smaller_windows,
    an_idle_link_loses_nothing_to_our_own_window,
}

const RANKS: usize = 4;
/// Time that bad links may cost on a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);

/// The outcome of a job on bad links.
struct Outcome {
    cluster: Cluster,
    /// Statistics of all ranks.
    workers: Vec<EngineStats>,
    /// Faults of all links, in both directions.
    faults: FaultCounts,
}

impl Outcome {
    /// Packets that workers refused, by reason.
    fn ignored(&self, reason: Ignored) -> u64 {
        self.workers.iter().map(|stats| stats.ignored(reason)).sum()
    }

    /// Asserts that a fault happened about as often as intended: to `count` of all frames, within
    /// five standard deviations.
    fn happened(&self, count: u64, probability: f64) {
        let frames = self.faults.frames as f64;
        let (expected, deviation) =
            (frames * probability, (frames * probability * (1.0 - probability)).sqrt());
        assert!(expected >= 20.0, "too few to tell: {:?}", self.faults);
        let off = (count as f64 - expected).abs() / deviation;
        assert!(off < 5.0, "{count} where {expected} were expected: {:?}", self.faults);
    }
}

/// Sums `elements` elements as i32 and as f32 over links with these faults, both ways, and checks
/// every one on every rank.
fn sum_over(mode: Mode, seed: u64, faults: Faults, elements: usize) -> Outcome {
    let cluster =
        Cluster::new(RackOptions { workers: RANKS, mode, wires: true, ..RackOptions::default() });
    sum_in(cluster, seed, faults, elements)
}

fn sum_in(cluster: Cluster, seed: u64, faults: Faults, elements: usize) -> Outcome {
    let mode = cluster.rack.mode();
    let impairment =
        Impairment::in_rack(&cluster.binaries, &cluster.rack, seed, |_, _| faults).unwrap();
    let workers = cluster.run_ranks(RANKS, "faults", move |rank, builder| {
        let communicator = builder.deadline(DEADLINE).connect().unwrap();
        // Elements of i32 may have any bits set, so that no flipped bit is rounded away.
        let value = |rank: u32, i: usize| {
            (i as u32).wrapping_mul(2_654_435_761).wrapping_add(rank << 7) as i32
        };
        let mut integers: Vec<i32> = (0..elements).map(|i| value(rank, i)).collect();
        communicator.all_reduce(&mut integers, ReduceOp::Sum).unwrap();
        for (i, sum) in integers.into_iter().enumerate() {
            let expected =
                (0..RANKS as u32).fold(0i32, |sum, rank| sum.wrapping_add(value(rank, i)));
            assert_eq!(sum, expected, "element {i} of rank {rank}");
        }
        // Whole numbers up to 4000: their sums have no rounding error.
        let value = |rank: u32, i: usize| ((i * 37 + rank as usize * 101) % 1000) as f32;
        let mut floats: Vec<f32> = (0..elements).map(|i| value(rank, i)).collect();
        communicator.all_reduce(&mut floats, ReduceOp::Sum).unwrap();
        for (i, sum) in floats.into_iter().enumerate() {
            let expected: f32 = (0..RANKS as u32).map(|rank| value(rank, i)).sum();
            assert_eq!(
                sum.to_bits(),
                expected.to_bits(),
                "element {i} of rank {rank}: {sum} for {expected}"
            );
        }
        let stats = communicator.stats().engine;
        communicator.close().unwrap();
        stats
    });
    let mut total = FaultCounts::default();
    impairment.stop().unwrap().into_iter().flatten().for_each(|counts| total += counts);
    assert_eq!(total.failed, 0, "{total:?}");
    println!("{faults:?} in mode {mode:?}: {total:?}");
    let outcome = Outcome { cluster, workers, faults: total };
    // XDP cuts off what has no part in an answer; a superpacket returns it as FILLERs.
    assert_eq!(
        outcome.ignored(Ignored::Filler) > 0,
        mode == Mode::Auto,
        "whether superpackets came to the aggregator"
    );
    outcome
}

/// Elements that make some 3000 chunks.
const MILLION: usize = 1 << 20;

fn loss_of_one_in_a_thousand(mode: Mode) {
    let faults = Faults { loss: 0.001, ..Faults::default() };
    let outcome = sum_over(mode, 1, faults, MILLION);
    outcome.happened(outcome.faults.lost, 0.001);
}

fn loss_of_one_percent(mode: Mode) {
    let faults = Faults { loss: 0.01, ..Faults::default() };
    let outcome = sum_over(mode, 2, faults, MILLION);
    outcome.happened(outcome.faults.lost, 0.01);
}

fn loss_of_five_percent(mode: Mode) {
    let faults = Faults { loss: 0.05, ..Faults::default() };
    let outcome = sum_over(mode, 3, faults, MILLION / 4);
    outcome.happened(outcome.faults.lost, 0.05);
}

fn loss_of_twenty_percent(mode: Mode) {
    let faults = Faults { loss: 0.2, ..Faults::default() };
    let outcome = sum_over(mode, 4, faults, MILLION / 10);
    outcome.happened(outcome.faults.lost, 0.2);
}

fn five_percent_twice(mode: Mode) {
    let faults = Faults { duplication: 0.05, ..Faults::default() };
    let outcome = sum_over(mode, 5, faults, MILLION);
    outcome.happened(outcome.faults.duplicated, 0.05);
    // Duplicates belong to rounds that are over, for the workers, and come from ranks that are in,
    // for the aggregator.
    assert!(outcome.ignored(Ignored::NotOutstanding) > 0);
    assert!(outcome.cluster.counter("pending") + outcome.cluster.counter("replayed") > 0);
}

fn heavy_reordering(mode: Mode) {
    let faults = Faults { reordering: 0.2, distance: 64, ..Faults::default() };
    let outcome = sum_over(mode, 6, faults, MILLION / 8);
    let FaultCounts { reordered, no_room, released, .. } = outcome.faults;
    outcome.happened(reordered + no_room, 0.2);
    assert!(released > reordered * 9 / 10, "{:?}", outcome.faults);
}

fn corrupted_headers(mode: Mode) {
    let faults = Faults { corruption: 0.01, ..Faults::default() };
    let outcome = sum_over(mode, 7, faults, MILLION);
    outcome.happened(outcome.faults.corrupted, 0.01);
    // Corruption of fields that the check word covers, and of other fields.
    for counter in ["bad_check", "bad_ip_checksum", "bad_version"] {
        assert!(outcome.cluster.counter(counter) > 0, "{counter}");
    }
    for reason in [Ignored::Malformed, Ignored::Check] {
        assert!(outcome.ignored(reason) > 0, "{reason:?}");
    }
}

fn flipped_bits_in_the_payload(mode: Mode) {
    let faults = Faults { flips: 0.01, ..Faults::default() };
    let outcome = sum_over(mode, 8, faults, MILLION);
    outcome.happened(outcome.faults.flipped, 0.01);
    // The receiver of a packet notices every flipped bit; nothing else refuses these packets.
    let refused = outcome.cluster.counter("bad_check") + outcome.ignored(Ignored::Check);
    let late = outcome.ignored(Ignored::NotOutstanding);
    assert!(
        refused <= outcome.faults.flipped && refused + late >= outcome.faults.flipped,
        "{refused}, {late}"
    );
}

const EVERYTHING: Faults = Faults {
    loss: 0.01,
    duplication: 0.05,
    reordering: 0.1,
    distance: 32,
    corruption: 0.01,
    flips: 0.01,
};

fn everything_at_once(mode: Mode) {
    everything_happened(&sum_over(mode, 9, EVERYTHING, MILLION / 4));
}

fn everything_at_once_where_all_get_copies(mode: Mode) {
    everything_at_once_with_copies(mode, [true; RANKS]);
}

fn everything_at_once_where_some_get_copies(mode: Mode) {
    everything_at_once_with_copies(mode, [true, false, true, false]);
}

fn everything_at_once_with_copies(mode: Mode, have_copies: [bool; RANKS]) {
    let options = RackOptions { workers: RANKS, mode, wires: true, ..RackOptions::default() };
    let cluster = Cluster::new(options);
    let copied: Vec<_> = (0..RANKS).filter(|rank| have_copies[*rank]).collect();
    copied.iter().for_each(|rank| block_multicast(cluster.rack.worker(*rank)));
    let ranks: Vec<_> = copied.iter().map(ToString::to_string).collect();
    let mut outcome = sum_in(cluster, 10, EVERYTHING, MILLION / 4);
    everything_happened(&outcome);
    let line = format!("multicast does not reach: {}", ranks.join(", "));
    outcome.cluster.aggregator.process().wait_for_line(&line, DEADLINE).unwrap();
}

/// The kernels of the ranks drop damaged answers, if their UDP checksum was filled in before the
/// damage.
fn everything_at_once_over_ipv6(mode: Mode) {
    let (wires, ip) = (true, Ip::V6);
    let options = RackOptions { workers: RANKS, mode, wires, ip, ..RackOptions::default() };
    let outcome = sum_in(Cluster::new(options), 11, EVERYTHING, MILLION / 4);
    each_fault_happened(&outcome);
    assert!(outcome.cluster.counter("bad_check") > 0);
}

fn everything_happened(outcome: &Outcome) {
    each_fault_happened(outcome);
    assert!(outcome.cluster.counter("bad_check") > 0 && outcome.ignored(Ignored::Check) > 0);
}

fn each_fault_happened(outcome: &Outcome) {
    let FaultCounts { lost, duplicated, reordered, corrupted, flipped, .. } = outcome.faults;
    for happened in [lost, duplicated, reordered, corrupted, flipped] {
        assert!(happened >= 20, "{:?}", outcome.faults);
    }
}

/// A queue that overflows differs from a bad link: it loses packets until less is sent.
fn an_overflowing_queue_is_answered_by_smaller_windows(mode: Mode) {
    // About half of the window that a rank begins with.
    let (ranks, _) = sum_through_queues(mode, "70k");
    for (Stats { engine: stats, .. }, _) in &ranks {
        // If windows did not shrink, each would lose about half.
        assert!(stats.window_cuts > 0, "{stats:?}");
        assert!(stats.resent() < stats.chunks / 4, "{stats:?}");
    }
}

/// A growing window does not overflow a queue that holds what may wait before the window stops
/// growing: 192 KiB, in frames that are 3 % longer, and what an idle path holds. The timer does not
/// resend packets that wait there either, though HELLO came back a hundred times as fast.
fn an_idle_link_loses_nothing_to_our_own_window(mode: Mode) {
    // HELLO measures how long an idle path takes. If HELLO was late, because the machine is busy,
    // the window is too large.
    const IDLE: Duration = Duration::from_millis(2);
    // 192 KiB of packets of 1440 bytes, and 34 packets that leave in the time IDLE: 246 KiB of
    // frames.
    const MOST: u32 = 136 + 34;
    // A queue of 256 KiB holds these. Packets that a busy machine delays beyond the reordering
    // window are sent again, some 50 chunks here.
    let (ranks, dropped) = sum_through_queues(mode, "320k");
    for (Stats { window, .. }, hello_rtt) in
        ranks.into_iter().filter(|(_, hello_rtt)| *hello_rtt <= IDLE)
    {
        assert!(window <= MOST, "a window of {window}, HELLO took {hello_rtt:?}");
    }
    assert_eq!(dropped, [0; RANKS]);
}

/// Two million sums over links of 200 Mb/s with upward queues of `limit` bytes. Returns each rank's
/// statistics and HELLO time, and the packets that each queue dropped.
fn sum_through_queues(mode: Mode, limit: &str) -> (Vec<(Stats, Duration)>, Vec<u64>) {
    let cluster =
        Cluster::new(RackOptions { workers: RANKS, mode, wires: true, ..RackOptions::default() });
    let wires = cluster.rack.wires().unwrap();
    let tc = |arguments: &str| {
        let mut command = std::process::Command::new("tc");
        command.args(arguments.split(' '));
        wires.output(command).unwrap()
    };
    for rank in 0..RANKS {
        tc(&format!("qdisc add dev s{rank} root tbf rate 200mbit burst 16k limit {limit}"));
    }
    let impairment =
        Impairment::in_rack(&cluster.binaries, &cluster.rack, 1, |_, _| Faults::default()).unwrap();
    let ranks = cluster.run_ranks(RANKS, "congestion", move |rank, builder| {
        let communicator = builder.deadline(DEADLINE).connect().unwrap();
        let mut values: Vec<i32> = (0..2 * MILLION as i32).map(|i| i + rank as i32).collect();
        communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        // 4 i + 0 + 1 + 2 + 3
        assert!((0i32..).zip(values).all(|(i, sum)| sum == 4 * i + 6), "rank {rank}");
        let told = (communicator.stats(), communicator.info().hello_rtt);
        communicator.close().unwrap();
        told
    });
    let dropped = (0..RANKS).map(|rank| {
        let shown = tc(&format!("-s qdisc show dev s{rank}"));
        let shown = String::from_utf8(shown.stdout).unwrap();
        let (_, dropped) = shown.split_once("(dropped ").unwrap();
        dropped.split(',').next().unwrap().parse().unwrap()
    });
    let dropped = dropped.collect();
    impairment.stop().unwrap();
    (ranks, dropped)
}
