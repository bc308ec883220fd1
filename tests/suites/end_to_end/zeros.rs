//! Ranks that have zeros to add leave them out: a broadcast has one sender, a sparse sum few for
//! each chunk; on good links and bad ones.

use std::time::{Duration, Instant};

use switchml_rack::{Faults, Impairment, Mode, RackOptions, in_both_modes};
use switchml_worker::engine::EngineStats;
use switchml_worker::{CallStats, Communicator, ReduceOp};

use crate::Cluster;

in_both_modes! {
    a_broadcast_has_one_sender,
    a_sparse_sum_has_few,
    zeros_get_lost_like_all_else,
}

const RANKS: usize = 4;
const ROOT: u32 = 2;
/// Elements of a call: 16 MiB.
const ELEMENTS: usize = 4 << 20;
/// Elements that are zero or not together: some chunks' worth, whatever the frames.
const RUN: usize = 40_000;
/// What the links may cost on a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);

/// The element `i` of a rank: exact in f32, also when all are added up.
fn element(rank: u32, i: usize) -> i32 {
    (i as u32).wrapping_mul(2_654_435_761).rotate_left(rank) as i32 >> 10
}

/// Those of a rank in a sparse tensor: each rank has one run in a hundred, another than its
/// neighbour; and all have the first, so that some chunk is full on all.
fn sparse(rank: u32, i: usize) -> i32 {
    let run = i / RUN;
    if run == 0 || run % 100 == 7 * (1 + rank as usize) { element(rank, i) } else { 0 }
}

fn sum(i: usize) -> i32 {
    (0..RANKS as u32).map(|rank| sparse(rank, i)).sum()
}

/// Broadcasts, and checks what comes.
fn broadcast(communicator: &Communicator, elements: usize) -> CallStats {
    let rank = communicator.info().rank;
    let mut values: Vec<i32> = (0..elements).map(|i| element(rank, i)).collect();
    let stats = communicator.broadcast(&mut values, ROOT).unwrap();
    let right = values.iter().enumerate().all(|(i, value)| *value == element(ROOT, i));
    assert!(right, "broadcast to rank {rank}");
    stats
}

/// Adds up sparse integers and floats, and checks the sums.
fn add_up(communicator: &Communicator, elements: usize) -> [CallStats; 2] {
    let rank = communicator.info().rank;
    let mut integers: Vec<i32> = (0..elements).map(|i| sparse(rank, i)).collect();
    let mut floats: Vec<f32> = integers.iter().map(|value| *value as f32).collect();
    let of_integers = communicator.all_reduce(&mut integers, ReduceOp::Sum).unwrap();
    assert!(integers.iter().enumerate().all(|(i, value)| *value == sum(i)), "rank {rank}");
    let of_floats = communicator.all_reduce(&mut floats, ReduceOp::Sum).unwrap();
    assert!(floats.iter().enumerate().all(|(i, value)| *value == sum(i) as f32), "rank {rank}");
    [of_integers, of_floats]
}

/// Bytes of frames that a call sent, but for resends.
fn sent(communicator: &Communicator, stats: &CallStats) -> u64 {
    const HEADERS: u64 = 14 + 20 + 8 + 32;
    let lanes = u64::from(communicator.info().chunk_lanes);
    (stats.chunks + stats.rooms) * HEADERS + (stats.chunks - stats.empty + stats.rooms) * 4 * lanes
}

fn a_broadcast_has_one_sender(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    let ranks = cluster.run_ranks(RANKS, "broadcast", |_, builder| {
        let communicator = builder.connect().unwrap();
        broadcast(&communicator, ELEMENTS);
        let begin = Instant::now();
        let stats = broadcast(&communicator, ELEMENTS);
        let told = (sent(&communicator, &stats), stats, begin.elapsed());
        communicator.close().unwrap();
        told
    });
    for (rank, (bytes, stats, _)) in (0..).zip(&ranks) {
        println!(
            "{mode:?}, rank {rank}: {} chunks, {} empty, {} rooms, {bytes} bytes, {:?}",
            stats.chunks, stats.empty, stats.rooms, stats.duration
        );
        assert_eq!(stats.empty, if rank == ROOT { 0 } else { stats.chunks }, "rank {rank}");
        assert!(rank != ROOT || *bytes > 4 * ELEMENTS as u64);
    }
    let rooms: u64 = ranks.iter().map(|(_, stats, _)| stats.rooms).sum();
    // Each round has one rank that comes last.
    assert!(rooms <= ranks[0].1.chunks + resent(&ranks), "{rooms}");
    assert!(cluster.counter("room") >= rooms);
    cluster.stop();
}

/// Resends of all ranks: each may have been answered by a ROOM of its own.
fn resent(ranks: &[(u64, CallStats, Duration)]) -> u64 {
    let of = |stats: &CallStats| stats.resent_by_timer + stats.resent_by_overtaking + stats.probes;
    ranks.iter().map(|(_, stats, _)| of(stats)).sum()
}

fn a_sparse_sum_has_few(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    let ranks = cluster.run_ranks(RANKS, "sparse", |_, builder| {
        let communicator = builder.connect().unwrap();
        let stats = add_up(&communicator, ELEMENTS);
        let told = stats.map(|stats| (sent(&communicator, &stats), stats));
        communicator.close().unwrap();
        told
    });
    for (rank, [integers, floats]) in (0..).zip(&ranks) {
        for (name, (bytes, stats)) in [("i32", integers), ("f32", floats)] {
            println!(
                "{mode:?}, rank {rank}, {name}: {} chunks, {} empty, {} rooms, {bytes} bytes",
                stats.chunks, stats.empty, stats.rooms
            );
        }
        // Of 105 runs a rank has two or three. Floats that are zero everywhere are not sent at all.
        assert!(integers.1.empty > integers.1.chunks * 9 / 10);
        let expected = floats.1.chunks / 3;
        assert!(floats.1.empty > expected, "{} of {}", floats.1.empty, floats.1.chunks);
        assert!(floats.1.skipped > integers.1.chunks * 8 / 10);
    }
    cluster.stop();
}

fn zeros_get_lost_like_all_else(mode: Mode) {
    let cluster =
        Cluster::new(RackOptions { workers: RANKS, mode, wires: true, ..RackOptions::default() });
    let faults = Faults {
        loss: 0.01,
        duplication: 0.02,
        reordering: 0.05,
        distance: 32,
        corruption: 0.005,
        flips: 0.005,
    };
    let impairment =
        Impairment::in_rack(&cluster.binaries, &cluster.rack, 11, |_, _| faults).unwrap();
    let ranks: Vec<EngineStats> = cluster.run_ranks(RANKS, "bad links", |_, builder| {
        let communicator = builder.deadline(DEADLINE).connect().unwrap();
        broadcast(&communicator, ELEMENTS / 8);
        add_up(&communicator, ELEMENTS / 8);
        let stats = communicator.stats().engine;
        communicator.close().unwrap();
        stats
    });
    impairment.stop().unwrap();
    for (rank, stats) in ranks.iter().enumerate() {
        assert!(stats.empty > 100 && stats.rooms > 0 && stats.resent() > 0, "{rank}: {stats:?}");
    }
}
