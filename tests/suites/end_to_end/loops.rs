//! Ranks that add up again and again, every element checked against arithmetic, until they are told
//! to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use switchml_rack::Namespace;
use switchml_worker::{Builder, Communicator, Error, ReduceOp};

use crate::{Cluster, PATIENCE, packed};

/// Elements of a tensor: some hundred packets.
const ELEMENTS: usize = 100_000;
/// Elements of a tensor in 16 and in 8 bits.
const PACKED_ELEMENTS: usize = 20_000;

/// All ranks of a job, each in its own thread and namespace.
pub struct Loops {
    ranks: Vec<JoinHandle<Ended>>,
    progress: Arc<Vec<AtomicU64>>,
    stop: Arc<AtomicBool>,
}

/// How a rank's loop ended.
pub struct Ended {
    /// Rounds in which all sums were right.
    pub rounds: u64,
    /// How it ended: cleanly, or with this error.
    pub result: Result<(), Error>,
    /// When it ended.
    pub at: Instant,
}

impl Loops {
    /// Starts the ranks of a job, one on each worker, and waits until they make progress.
    pub fn start(cluster: &Cluster, job: &'static str, deadline: Duration) -> Self {
        let workers = cluster.rack.workers();
        let settings = Communicator::builder().aggregator(cluster.aggregator.control());
        Self::start_with(&settings.own_hosts(false).job(job).deadline(deadline), workers)
    }

    /// Does so with these settings, on these workers.
    pub fn start_with(settings: &Builder, workers: &[Namespace]) -> Self {
        let progress: Arc<Vec<_>> = Arc::new(workers.iter().map(|_| AtomicU64::new(0)).collect());
        let stop = Arc::new(AtomicBool::new(false));
        let start = |rank: usize| {
            let builder = settings.clone().rank(rank as u32).world_size(workers.len() as u32);
            let (progress, stop) = (Arc::clone(&progress), Arc::clone(&stop));
            // A thread is in the namespace of the one that starts it.
            workers[rank].run(move || spawn(move || life(rank, builder, &progress, &stop)))
        };
        let loops = Self { ranks: (0..workers.len()).map(start).collect(), progress, stop };
        loops.wait_for_progress(5);
        loops
    }

    /// Waits until every rank has made `rounds` more all-reduces.
    pub fn wait_for_progress(&self, rounds: u64) {
        let before: Vec<_> =
            self.progress.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let begin = Instant::now();
        while self
            .progress
            .iter()
            .zip(&before)
            .any(|(count, before)| count.load(Ordering::Relaxed) < before + rounds)
        {
            assert!(begin.elapsed() < PATIENCE, "no progress beyond {before:?}");
            assert!(!self.ranks.iter().any(JoinHandle::is_finished), "a rank has ended");
            sleep(Duration::from_millis(5));
        }
    }

    /// Has the ranks stop together, say goodbye and end; how each did.
    pub fn stop(self) -> Vec<Ended> {
        self.stop.store(true, Ordering::Relaxed);
        self.wait()
    }

    /// Waits until all ranks have ended; how each did.
    pub fn wait(self) -> Vec<Ended> {
        self.ranks.into_iter().map(|rank| rank.join().expect("every element is right")).collect()
    }
}

fn life(rank: usize, builder: Builder, progress: &[AtomicU64], stop: &AtomicBool) -> Ended {
    let communicator = builder.connect().expect("connected");
    let (mut rounds, mut packed) = (0, 0);
    let result = loop {
        let stops = stop.load(Ordering::Relaxed);
        let stopped = add_up(&communicator, rank, rounds, packed, stops);
        let outcome = stopped.and_then(|stops| {
            packed = packed::add_up(&communicator, PACKED_ELEMENTS, rounds)?;
            Ok(stops)
        });
        match outcome {
            Ok(stops) => {
                rounds += 1;
                progress[rank].store(rounds, Ordering::Relaxed);
                if stops {
                    break communicator.close();
                }
            }
            Err(error) => break Err(error),
        }
    };
    Ended { rounds, result, at: Instant::now() }
}

/// One all-reduce, every element checked. Returns whether any rank wants to stop, which all ranks
/// learn in the same round. `packed` is a hash of the last round's sums in fewer bits, which must
/// be the same on all ranks.
fn add_up(
    communicator: &Communicator,
    rank: usize,
    round: u64,
    packed: i32,
    stops: bool,
) -> Result<bool, Error> {
    let ranks = communicator.world_size() as i32;
    let base = |i: i32| i.wrapping_mul(7).wrapping_add(round as i32);
    let mut values: Vec<i32> =
        (0..ELEMENTS as i32).map(|i| base(i).wrapping_add(rank as i32)).collect();
    (values[0], values[1]) = (i32::from(stops), packed);
    communicator.all_reduce(&mut values, ReduceOp::Sum)?;
    // The sum of all ranks' numbers is ranks * (ranks - 1) / 2.
    let expected = |i: i32| base(i).wrapping_mul(ranks).wrapping_add(ranks * (ranks - 1) / 2);
    assert_eq!(values[1], packed.wrapping_mul(ranks), "rank {rank}: other bits than other ranks");
    let wrong = (2..).zip(&values[2..]).find(|&(i, &value)| value != expected(i));
    assert_eq!(wrong, None, "rank {rank}, round {round}");
    Ok(values[0] > 0)
}
