//! Several data threads, over loopback and through the real daemon: the same bits, errors and
//! statistics as with one.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use switchml_worker::control;
use switchml_worker::{Builder, Communicator, Error, Handle, ReduceOp, Reduction};

use switchml_rack::daemon::{Daemon, PATIENCE};

/// A number of elements that is cut into four parts of whole bundles and one that is not, whatever
/// the number of lanes in a chunk.
const LARGE: usize = 1_000_003;

/// Runs `rank` on every rank of a new job, with the number of data threads in `threads` for each.
/// Returns the results in the order of ranks.
fn with_ranks<R: Send>(
    daemon: &Daemon,
    job: &str,
    threads: &[u32],
    rank: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    with(daemon, job, threads, |builder| rank(builder.connect().unwrap()))
}

fn with<R: Send>(
    daemon: &Daemon,
    job: &str,
    threads: &[u32],
    rank: impl Fn(Builder) -> R + Sync,
) -> Vec<R> {
    let builder = |number| {
        let settings =
            Communicator::builder().aggregator(&daemon.address).job(job).deadline(PATIENCE);
        settings.rank(number as u32).world_size(threads.len() as u32).data_threads(threads[number])
    };
    thread::scope(|scope| {
        let (builder, rank) = (&builder, &rank);
        let ranks: Vec<_> =
            (0..threads.len()).map(|number| scope.spawn(move || rank(builder(number)))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Numbers of all magnitudes, so that sums are rounded.
pub fn wild(rank: u32, count: usize) -> Vec<f32> {
    let element =
        |i: u32| f32::from_bits(i.wrapping_add(rank << 20).wrapping_mul(0x9E37_79B1) & 0xBFFF_FFFF);
    (0..count as u32).map(element).collect()
}

#[test]
fn the_same_bits_with_any_number_of_threads() {
    let daemon = Daemon::start();
    let sums = |threads: u32| {
        with_ranks(&daemon, &format!("t{threads}"), &[threads; 3], |communicator| {
            assert_eq!(communicator.info().data_threads(), threads as usize);
            let rank = communicator.rank();
            let mut floats = wild(rank, LARGE);
            communicator.all_reduce(&mut floats, ReduceOp::Sum).unwrap();
            let mut doubles: Vec<_> = wild(rank, LARGE).into_iter().map(f64::from).collect();
            communicator.all_reduce(&mut doubles, ReduceOp::Avg).unwrap();
            let mut largest = wild(rank, LARGE);
            communicator.all_reduce(&mut largest, ReduceOp::Max).unwrap();
            let mut of_one = wild(rank, LARGE);
            communicator.broadcast(&mut of_one, 1).unwrap();
            let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let packed = [Reduction::AVG16, Reduction::SUM8, Reduction::SUM8].map(|reduction| {
                let mut values = wild(rank, LARGE);
                communicator.all_reduce(&mut values, reduction).unwrap();
                bits(values)
            });
            assert_ne!(packed[1], packed[2], "random numbers are those of the call");
            communicator.close().unwrap();
            let doubles: Vec<_> = doubles.into_iter().map(f64::to_bits).collect();
            (bits(floats), doubles, bits(largest), bits(of_one), packed)
        })
    };
    let one = sums(1);
    assert!(one[0].3 == wild(1, LARGE).into_iter().map(f32::to_bits).collect::<Vec<_>>());
    for threads in [2, 4] {
        assert!(sums(threads) == one, "{threads} threads");
    }
}

#[test]
fn calls_of_all_sizes_overlap() {
    let daemon = Daemon::start();
    with_ranks(&daemon, "overlap", &[4; 2], |communicator| {
        let sizes = [LARGE, 1, 1000, LARGE / 2, 0, LARGE, 33];
        let start = |size| {
            communicator.all_reduce_start(vec![1i32 << communicator.rank(); size], ReduceOp::Sum)
        };
        let handles = sizes.map(|size| start(size).unwrap());
        for (size, handle) in sizes.into_iter().zip(handles) {
            let (sum, stats) = handle.wait_with_stats().unwrap();
            assert!(sum == vec![3; size], "{size}");
            // One call, however many threads had a part of it.
            assert_eq!((stats.calls, stats.bytes), (1, 4 * size as u64));
        }
        // A handle that is dropped.
        drop(start(LARGE).unwrap());
        // The first thread's part of a barrier does not show whether the other threads are done:
        // their counters do.
        communicator.barrier().unwrap();
        switchml_rack::wait_until!(
            PATIENCE,
            communicator.stats().calls.calls >= sizes.len() as u64 + 2,
            "a call that nobody waits for is not counted"
        );
        let stats = communicator.stats();
        let sent = stats.calls.chunks;
        assert_eq!(stats.engine.chunks, stats.engine.results);
        let expected = stats.calls.bytes / (4 * u64::from(communicator.info().chunk_lanes));
        assert!((expected..expected + 20).contains(&sent), "{sent} chunks for {expected}");
        communicator.close().unwrap();
    });
}

#[test]
fn all_ranks_have_as_many_threads_as_the_one_that_wants_fewest() {
    let daemon = Daemon::start();
    let threads = with_ranks(&daemon, "fewest", &[8, 3, 4], |communicator| {
        let mut tensor = vec![1i32; LARGE];
        communicator.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
        assert!(tensor == vec![3; LARGE]);
        communicator.info().data_threads()
    });
    assert_eq!(threads, [2; 3]);
}

/// 8 ranks want 4 threads each, and the pool has slots for two.
#[test]
fn a_small_pool_makes_fewer_threads() {
    let daemon = Daemon::with_slots(1024);
    let slots = with_ranks(&daemon, "small", &[4; 8], |communicator| {
        let mut tensor = vec![1i32; LARGE];
        communicator.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
        assert!(tensor == vec![8; LARGE]);
        (communicator.info().data_threads(), communicator.info().stripes[0].slots)
    });
    assert_eq!(slots, [(2, 512); 8]);
}

/// The first call that differs is small on one rank: that rank's other threads have no part of it.
#[test]
fn the_first_call_that_differs_is_told() {
    let daemon = Daemon::start();
    let told = |job: &str, sizes: [[usize; 3]; 2], expected: &str| {
        with_ranks(&daemon, job, &[2; 2], |communicator| {
            communicator.all_reduce(&mut vec![1i32; LARGE], ReduceOp::Sum).unwrap();
            let sizes = sizes[communicator.rank() as usize];
            let handles =
                sizes.map(|size| communicator.all_reduce_start(vec![1i32; size], ReduceOp::Sum));
            let last = handles.into_iter().next_back().unwrap().and_then(Handle::wait).unwrap_err();
            let reason = format!(
                "ranks made different calls: {expected}; every rank must make the same calls in \
                 the same order"
            );
            assert_eq!(last.to_string(), reason);
            assert!(matches!(&last, Error::Control(control::Error::Mismatch { .. })));
            assert_eq!(communicator.close(), Err(last));
        });
    };
    told(
        "small first",
        [[500, LARGE, LARGE], [LARGE, 500, LARGE]],
        "call 2 of rank 0 is all_reduce(sum, i32, 500); call 2 of rank 1 is all_reduce(sum, i32, \
         1000003)",
    );
    // The first parts of the two calls are alike.
    told(
        "other length",
        [[LARGE, LARGE + 1, 7], [LARGE, LARGE, 7]],
        "call 3 of rank 0 is all_reduce(sum, i32, 1000004); call 3 of rank 1 is all_reduce(sum, \
         i32, 1000003)",
    );
}

#[test]
fn a_rank_that_does_not_call_is_named_within_the_timeout() {
    let daemon = Daemon::start();
    let timeout = Duration::from_secs(1);
    let over = Barrier::new(3);
    let waited = with(&daemon, "absent", &[4; 3], |builder| {
        let communicator = builder.timeout(timeout).connect().unwrap();
        communicator.barrier().unwrap();
        if communicator.rank() == 1 {
            // Rank 1 is present, but busy.
            over.wait();
            let error = communicator.barrier().unwrap_err();
            assert!(matches!(error, Error::Control(control::Error::Aborted { .. })), "{error}");
            return None;
        }
        let begin = Instant::now();
        let result = communicator.all_reduce(&mut vec![1f32; LARGE], ReduceOp::Sum);
        let waited = begin.elapsed();
        over.wait();
        let error = result.unwrap_err();
        assert!(error.to_string().contains("no contribution from rank 1"), "{error}");
        // The communicator is failed for good, with the same error.
        assert_eq!(communicator.barrier(), Err(error.clone()));
        assert_eq!(communicator.close(), Err(error));
        Some(waited)
    });
    // The first rank to give up ends the call for all, and other ranks may have called later.
    let waited = waited.into_iter().flatten().max().expect("two ranks waited");
    assert!((timeout * 9 / 10..timeout + PATIENCE).contains(&waited), "{waited:?}");
}
