//! Ranks that have nothing to add leave their lanes out: a broadcast has one sender, on good links
//! and bad ones.

use std::thread;
use std::time::{Duration, Instant};

use switchml_rack::{Faults, Impairment, Mode, RackOptions, Shaping, in_both_modes, needs_racks};
use switchml_worker::engine::EngineStats;
use switchml_worker::{CallStats, Communicator};

use crate::Cluster;

in_both_modes! {
    a_broadcast_has_one_sender,
    zeros_get_lost_like_all_else,
}

const RANKS: usize = 4;
const ROOT: u32 = 2;
/// Elements of a call: 16 MiB.
const ELEMENTS: usize = 4 << 20;
/// Time that bad links may cost on a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);

/// The element `i` of a rank: exact in f32, as is the sum over all ranks.
fn element(rank: u32, i: usize) -> i32 {
    (i as u32).wrapping_mul(2_654_435_761).rotate_left(rank) as i32 >> 10
}

/// Broadcasts, and checks the result.
fn broadcast(communicator: &Communicator, elements: usize) -> CallStats {
    let rank = communicator.info().rank;
    let mut values: Vec<i32> = (0..elements).map(|i| element(rank, i)).collect();
    let stats = communicator.broadcast(&mut values, ROOT).unwrap();
    let right = values.iter().enumerate().all(|(i, value)| *value == element(ROOT, i));
    assert!(right, "broadcast to rank {rank}");
    stats
}

/// Bytes of frames that a call sent, except for resends.
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
    // In each round only the rank that comes last may be asked for lanes.
    assert!(rooms <= ranks[0].1.chunks + resent(&ranks), "{rooms}");
    assert!(cluster.counter("room") >= rooms);
    cluster.stop();
}

/// Resends of all ranks: each may have been answered by another ROOM.
fn resent(ranks: &[(u64, CallStats, Duration)]) -> u64 {
    let of = |stats: &CallStats| stats.resent_by_timer + stats.resent_by_overtaking + stats.probes;
    ranks.iter().map(|(_, stats, _)| of(stats)).sum()
}

/// A rank whose zeros come after the root's lanes is asked for its lanes. It must not resend later
/// chunks then, for which the root's lanes are still in flight.
#[test]
fn late_zeros_on_slow_links_cost_few_resends() {
    needs_racks!();
    let cluster = Cluster::of(RANKS);
    let shaping = Shaping::new(&cluster.rack, 500_000_000).unwrap();
    let ranks: Vec<(u64, CallStats, Duration)> =
        cluster.run_ranks(RANKS, "late", |rank, builder| {
            let communicator = builder.connect().unwrap();
            let mut stats = CallStats::default();
            let begin = Instant::now();
            for _ in 0..4 {
                if rank != ROOT {
                    thread::sleep(Duration::from_millis(5));
                }
                stats += &broadcast(&communicator, ELEMENTS / 4);
            }
            let told = (sent(&communicator, &stats), stats, begin.elapsed());
            communicator.close().unwrap();
            told
        });
    let rooms: u64 = ranks.iter().map(|(_, stats, _)| stats.rooms).sum();
    let chunks: u64 = ranks.iter().map(|(_, stats, _)| stats.chunks).sum();
    let resent = resent(&ranks);
    println!("{rooms} rooms, {resent} of {chunks} chunks resent, {:?}", ranks[0].1.duration);
    assert!(rooms > 0, "nobody was late");
    assert!(resent < chunks / 25, "{resent} of {chunks} chunks were sent again");
    drop(shaping);
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
        for _ in 0..3 {
            broadcast(&communicator, ELEMENTS / 8);
        }
        let stats = communicator.stats().engine;
        communicator.close().unwrap();
        stats
    });
    impairment.stop().unwrap();
    for (rank, stats) in (0..).zip(&ranks) {
        let leaves_out = stats.empty > 100 && stats.rooms > 0;
        assert!(leaves_out == (rank != ROOT) && stats.resent() > 0, "{rank}: {stats:?}");
        // The root has no use for its own lanes.
        assert!((stats.told > 100) == (rank == ROOT), "{rank}: {stats:?}");
    }
}
