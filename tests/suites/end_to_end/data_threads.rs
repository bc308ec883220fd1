//! Several data threads in each rank, each with a shard of the job in the data plane.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;
use switchml_rack::{Mode, RackOptions, needs_racks, wait_until};

use crate::{Cluster, PATIENCE, report};

const RANKS: usize = 3;
/// The rank that is killed.
const LOST: usize = 2;
/// Exit code of `switchml-worker` for a collective that failed.
const COLLECTIVE_FAILED: i32 = 4;
/// Rule 23.4: for this time after a restart, the end of a connection is not the end of its rank.
const GRACE: Duration = Duration::from_secs(5);

fn cluster(workers: usize, mode: Mode) -> Cluster {
    Cluster::new(RackOptions { workers, mode, ..RackOptions::default() })
}

/// Sizes from one that stays whole to one that all threads have a part of, every element checked.
fn every_element_is_right(mode: Mode) {
    for (workers, threads) in [(2, "2"), (4, "4")] {
        let cluster = cluster(workers, mode);
        let report = report(cluster.bench(
            workers,
            "threads",
            &["-b", "4K", "-e", "4M", "-f", "32", "-n", "3", "--data-threads", threads],
        ));
        assert_eq!((&report["out_of_bounds"], &report["differing"]), (&json!(0), &json!([])));
        assert_eq!(report["data_threads"].to_string(), threads);
        // No job is left, and so no shard.
        assert_eq!(cluster.list_jobs().lines().count(), 1);
        assert!(cluster.has_all_slots_free());
        cluster.stop();
    }
}

#[test]
fn sums_of_several_threads_in_superpackets() {
    needs_racks!();
    every_element_is_right(Mode::Auto);
}

#[test]
fn sums_of_several_threads_frame_by_frame() {
    needs_racks!();
    every_element_is_right(Mode::Native);
}

/// The next daemon takes over all shards (otherwise the job would stop), and knows the ranks of
/// each.
#[test]
fn threads_outlive_the_daemon_and_name_a_rank_that_is_killed() {
    needs_racks!();
    let mut cluster = cluster(RANKS, Mode::Auto);
    let mut ranks = cluster.bench(
        RANKS,
        "long",
        &["-b", "4M", "-e", "4M", "-n", "100000", "--data-threads", "2"],
    );
    let progress = |cluster: &Cluster| {
        let (begin, before) = (Instant::now(), cluster.counter("completed"));
        while cluster.counter("completed") < before + 10_000 {
            assert!(begin.elapsed() < PATIENCE, "no progress");
            sleep(Duration::from_millis(20));
        }
    };
    progress(&cluster);
    cluster.aggregator.process().kill().unwrap();
    cluster.restart();
    cluster.wait_for_job(&["long", "started", "3 of 3"]);
    progress(&cluster);

    sleep(GRACE);
    progress(&cluster);

    ranks[LOST].kill().unwrap();
    let killed = Instant::now();
    for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != LOST) {
        let status = process.wait(Duration::from_secs(2).saturating_sub(killed.elapsed())).unwrap();
        let stderr = process.stderr();
        assert_eq!(
            (status.code(), stderr.lines().count()),
            (Some(COLLECTIVE_FAILED), 1),
            "rank {rank}: {stderr}"
        );
        assert!(stderr.contains(&format!("rank {LOST}")), "rank {rank}: {stderr}");
    }
    wait_until!(
        PATIENCE,
        cluster.has_all_slots_free(),
        "slots are lent still:\n{}",
        cluster.list_jobs()
    );
    cluster.stop();
}
