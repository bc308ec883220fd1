//! Ranks that wait use no processor time between calls, and little on a core that other threads
//! want. A separate program, because the tests measure the time that their process runs.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use switchml_rack::daemon::{Daemon, PATIENCE};
use switchml_worker::{Communicator, ReduceOp, WaitStats};

/// Runs one test at a time: they measure this process's time, and crowd a core.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn connect(daemon: &Daemon, rank: u32, world_size: u32) -> Communicator {
    let settings =
        Communicator::builder().aggregator(&daemon.address).job("waiting").deadline(PATIENCE);
    settings.rank(rank).world_size(world_size).connect().unwrap()
}

fn sum(communicator: &Communicator, calls: usize) {
    for _ in 0..calls {
        let mut tensor = [communicator.rank() as f32 + 0.5; 1000];
        communicator.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
        let ranks = communicator.world_size() as f32;
        assert_eq!(tensor, [ranks * ranks / 2.0; 1000]);
    }
}

/// CPU time of this process on all cores.
fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn between_calls_nothing_runs() {
    let _alone = alone();
    let daemon = Daemon::start();
    thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| {
            let daemon = &daemon;
            scope.spawn(move || {
                let communicator = connect(daemon, rank, 2);
                sum(&communicator, 20);
                // This call also gives the data thread something to do.
                let handle =
                    communicator.all_reduce_start(vec![1.0f32; 1000], ReduceOp::Sum).unwrap();
                assert_eq!(handle.wait().unwrap(), [2.0; 1000]);
                communicator
            })
        });
        let communicators = ranks.map(|rank| rank.join().unwrap());
        let (before, waits) =
            (process_time(), communicators.each_ref().map(|one| one.stats().waits));
        thread::sleep(Duration::from_secs(1));
        let busy = process_time() - before;
        assert!(busy < Duration::from_millis(50), "{busy:?} of a second in which nobody called");
        assert_eq!(communicators.each_ref().map(|one| one.stats().waits), waits);
        for communicator in communicators {
            scope.spawn(move || sum(&communicator, 1));
        }
    });
}

#[test]
fn more_ranks_than_cores_do_not_look_in_vain() {
    const RANKS: u32 = 4;
    let _alone = alone();
    let everywhere = sched_getaffinity(None).unwrap();
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|&core| everywhere.is_set(core)).unwrap());
    // Applies to this thread, and to all threads and processes that it starts.
    sched_setaffinity(None, &one).unwrap();
    let daemon = Daemon::start();
    let stats: Vec<WaitStats> = thread::scope(|scope| {
        let ranks: Vec<_> = (0..RANKS)
            .map(|rank| {
                let daemon = &daemon;
                scope.spawn(move || {
                    let communicator = connect(daemon, rank, RANKS);
                    sum(&communicator, 300);
                    communicator.stats().waits
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    println!("{stats:?}");
    for WaitStats { waits, looks, taken, sleeps } in stats {
        assert!(waits >= 100 && sleeps <= waits, "{waits} waits, {sleeps} sleeps");
        assert!(taken + sleeps > 0, "the others did not run?");
        assert!(looks <= 4 * waits, "{looks} looks in {waits} waits");
    }
}
