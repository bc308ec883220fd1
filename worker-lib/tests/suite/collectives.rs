//! Collectives end to end: the public API, over loopback, through the real daemon. Expected values
//! are closed forms.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use half::{bf16, f16};
use switchml_worker::control::{self, MadeCall};
use switchml_worker::{CallStats, Communicator, Element, Error, Handle, ReduceOp, Reduction};

use switchml_rack::daemon::{Daemon, PATIENCE};

/// Runs `rank` on every rank of a new job, each in a thread. Returns the results in the order of
/// ranks.
fn with_ranks<R: Send>(
    daemon: &Daemon,
    job: &str,
    world_size: u32,
    rank: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    with_timeout(daemon, job, world_size, PATIENCE, rank)
}

fn with_timeout<R: Send>(
    daemon: &Daemon,
    job: &str,
    world_size: u32,
    timeout: Duration,
    rank: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let connect = |number| {
        let settings = Communicator::builder().aggregator(&daemon.address).job(job);
        settings
            .rank(number)
            .world_size(world_size)
            .deadline(PATIENCE)
            .timeout(timeout)
            .connect()
            .unwrap()
    };
    thread::scope(|scope| {
        let (connect, rank) = (&connect, &rank);
        let ranks: Vec<_> =
            (0..world_size).map(|number| scope.spawn(move || rank(connect(number)))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Element `i` of `rank`: an integer from -16 to 16, so that sums of four are exact in every type.
fn small(rank: u32, i: usize) -> i32 {
    ((i as i32).wrapping_mul(7919).wrapping_add(rank as i32 * 104_729)).rem_euclid(33) - 16
}

fn reduced(op: ReduceOp, world_size: u32, i: usize) -> f64 {
    let values = (0..world_size).map(|rank| f64::from(small(rank, i)));
    match op {
        ReduceOp::Sum => values.sum(),
        ReduceOp::Avg => values.sum::<f64>() / f64::from(world_size),
        ReduceOp::Max => values.fold(f64::MIN, f64::max),
        ReduceOp::Min => values.fold(f64::MAX, f64::min),
    }
}

/// Numbers of elements: single ones, odd ones, around a chunk of 768 lanes, and more than a window.
const SIZES: [usize; 8] = [1, 2, 33, 767, 768, 769, 5_000, 300_000];

fn check_all_sizes<T: Element + PartialEq + std::fmt::Debug>(
    communicator: &Communicator,
    ops: &[Reduction],
    from: impl Fn(f64) -> T,
) {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    for &op in ops {
        for size in SIZES {
            let mut tensor: Vec<T> = (0..size).map(|i| from(f64::from(small(rank, i)))).collect();
            communicator.all_reduce(&mut tensor, op).unwrap();
            for (i, found) in tensor.iter().enumerate() {
                assert_eq!(
                    *found,
                    from(reduced(op.op, world_size, i)),
                    "{op} of {size}, element {i}"
                );
            }
        }
    }
}

#[test]
fn every_type_and_operator() {
    const EXACT_OF_INTEGERS: &[Reduction] = &[
        Reduction::SUM,
        Reduction::AVG,
        Reduction::MAX,
        Reduction::MIN,
        Reduction::SUM16,
        Reduction::AVG16,
    ];
    let daemon = Daemon::start();
    for world_size in [1, 2, 4] {
        with_ranks(&daemon, &format!("n{world_size}"), world_size, |communicator| {
            check_all_sizes(&communicator, EXACT_OF_INTEGERS, |x| x as f32);
            check_all_sizes(&communicator, &[Reduction::SUM, Reduction::AVG], |x| x);
            check_all_sizes(&communicator, EXACT_OF_INTEGERS, f16::from_f64);
            check_all_sizes(&communicator, EXACT_OF_INTEGERS, bf16::from_f64);
            check_all_sizes(
                &communicator,
                &[Reduction::SUM, Reduction::MAX, Reduction::MIN],
                |x| x as i32,
            );
            communicator.close().unwrap();
        });
    }
}

/// In 8 bits, results are the same bits on all ranks and in a second session, and errors are as
/// documented.
#[test]
fn in_8_bits() {
    let daemon = Daemon::start();
    const COUNT: usize = 100_000;
    let element = |rank: u32, i: usize| ((i as f32 * 0.37).sin() + rank as f32 * 0.1) / 2.0;
    let run = |job: &str| {
        with_ranks(&daemon, job, 4, |communicator| {
            [Reduction::SUM8, Reduction::AVG8].map(|op| {
                let rank = communicator.rank();
                let mut tensor: Vec<f32> = (0..COUNT).map(|i| element(rank, i)).collect();
                communicator.all_reduce(&mut tensor, op).unwrap();
                tensor
            })
        })
    };
    let results = run("eight");
    assert!(run("again") == results, "sessions differ");
    assert!(results.iter().all(|result| *result == results[0]), "ranks differ");
    for (result, share) in results[0].iter().zip([1.0, 0.25]) {
        let truth = |i| (0..4).map(|rank| f64::from(element(rank, i))).sum::<f64>() * share;
        let squares: f64 = (0..COUNT).map(|i| (f64::from(result[i]) - truth(i)).powi(2)).sum();
        // K = 63; a rotated element's limit is below 17/16 * 6 * sqrt(128), for magnitudes up to 1.
        let bound = share * (4.0f64 / 3.0).sqrt() * 6.375 / 63.0;
        let error = (squares / COUNT as f64).sqrt();
        assert!(error < bound && error > bound / 100.0, "{error}, at most {bound} documented");
    }
}

#[test]
fn integers_wrap() {
    let daemon = Daemon::start();
    with_ranks(&daemon, "wrap", 3, |communicator| {
        let mut tensor = [i32::MAX, i32::MIN, -1];
        communicator.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
        assert_eq!(tensor, [i32::MAX.wrapping_mul(3), i32::MIN.wrapping_mul(3), -3]);
    });
}

#[test]
fn the_same_bits_on_every_rank_twice_in_a_row() {
    let daemon = Daemon::start();
    // Numbers of all magnitudes, so that the sums are rounded.
    let tensor = |rank: u32| -> Vec<f32> {
        let wild = |i: u32| {
            f32::from_bits((i.wrapping_add(rank << 20)).wrapping_mul(0x9E37_79B1) & 0xBFFF_FFFF)
        };
        (0..100_000).map(wild).collect()
    };
    let results = with_ranks(&daemon, "bits", 4, |communicator| {
        [(); 2].map(|()| {
            let mut tensor = tensor(communicator.rank());
            communicator.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
            tensor.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        })
    });
    for result in results.iter().flatten() {
        assert!(result == &results[0][0], "ranks or repetitions differ");
    }
    // The results are the sums in f64, within N 2^(L-31) M and half a unit of the result.
    let exact = |i: usize| (0..4).map(|rank| f64::from(tensor(rank)[i])).sum::<f64>();
    for chunk in [0, 99] {
        let elements = chunk * 768..(chunk + 1) * 768;
        let tensors: Vec<_> = (0..4).map(tensor).collect();
        let largest = elements
            .clone()
            .flat_map(|i| tensors.iter().map(move |tensor| tensor[i].abs()))
            .fold(0., f32::max);
        for i in elements.step_by(97) {
            let found = f64::from(f32::from_bits(results[0][0][i]));
            let bound = f64::from(largest) * 4.0 * 2f64.powi(2 - 31) + found.abs() * 2f64.powi(-24);
            assert!(
                (found - exact(i)).abs() <= bound,
                "element {i}: {found} instead of {}",
                exact(i)
            );
        }
    }
}

#[test]
fn only_chunks_with_something_in_them_are_sent() {
    let daemon = Daemon::start();
    with_ranks(&daemon, "sparse", 2, |communicator| {
        let lanes = usize::from(communicator.info().chunk_lanes);
        let mut tensor = vec![0f32; 100 * lanes];
        // Rank 0 has something in chunk 7, rank 1 in chunk 41; rank 0 has a NaN in chunk 50.
        if communicator.rank() == 0 {
            tensor[7 * lanes] = 0.5;
            tensor[50 * lanes + 3] = f32::NAN;
        } else {
            tensor[41 * lanes + 1] = -3.0;
        }
        communicator.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
        for (i, found) in tensor.iter().enumerate() {
            match i / lanes {
                50 => assert!(found.is_nan(), "element {i}"),
                7 if i == 7 * lanes => assert_eq!(*found, 0.5),
                41 if i == 41 * lanes + 1 => assert_eq!(*found, -3.0),
                _ => assert_eq!(found.to_bits(), 0, "element {i}"),
            }
        }
        // With only zeros, nothing but exponents travels.
        communicator.all_reduce(&mut vec![0f64; 50 * lanes], ReduceOp::Avg).unwrap();
        communicator.barrier().unwrap();
        let exponent_chunks = 100_u64.div_ceil(lanes as u64) * 2;
        // Two chunks of elements, one of the barrier.
        assert_eq!(communicator.stats().engine.chunks, exponent_chunks + 2 + 1);
    });
}

/// Data goes along with the exponents, and again if the ranks agree on other exponents.
#[test]
fn small_sums_take_one_round_trip_while_magnitudes_rest() {
    let daemon = Daemon::start();
    with_ranks(&daemon, "ahead", 3, |communicator| {
        let lanes = usize::from(communicator.info().chunk_lanes);
        let scale = [1.0, 1.0, 8.0, 8.0, 0.25, 0.25, 0.25];
        // The fourth of five chunks changes alone.
        let sums = scale.map(|scale| {
            let factor = |i: usize| if i / lanes == 3 { scale } else { 1.0 };
            let mut tensor: Vec<_> = (0..5 * lanes)
                .map(|i| factor(i) * small(communicator.rank(), i) as f32)
                .collect::<Vec<_>>();
            let stats = communicator.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
            for (i, found) in tensor.iter().enumerate() {
                let expected = reduced(ReduceOp::Sum, 3, i) * f64::from(factor(i));
                assert_eq!(f64::from(*found), expected, "element {i}, scale {scale}");
            }
            (stats.chunks, stats.speculative, stats.misspeculated)
        });
        // Each rank sees when its elements have become larger, but not when all ranks' have become
        // smaller.
        let (one, two) = ((6, 5, 0), (7, 5, 1));
        assert_eq!(sums, [one, one, one, one, two, one, one]);
        let total = communicator.stats();
        assert_eq!(
            (total.calls.speculative, total.calls.misspeculated, total.engine.chunks),
            (35, 1, 43)
        );
    });
}

/// The call waits for a rank that is alive, so only the abort can end it.
#[test]
fn an_aborted_call_ends_on_all_ranks() {
    let daemon = Daemon::start();
    let (begun, over) = (Barrier::new(3), Barrier::new(3));
    with_ranks(&daemon, "abort", 3, |communicator| {
        let rank = communicator.rank();
        communicator.barrier().unwrap();
        // The abort must not come before a rank has heard that all ranks are there.
        begun.wait();
        if rank != 2 {
            let call = communicator.all_reduce_start(vec![0f32; 5000], ReduceOp::Sum);
            if rank == 0 {
                communicator.abort();
            }
            // Rank 1 may hear of the abort before it starts the call.
            let error = call.and_then(Handle::wait).unwrap_err();
            match rank {
                0 => assert!(matches!(error, Error::AbortedHere), "{error}"),
                _ => assert_eq!(error.ranks(), [0], "{error}"),
            }
        }
        over.wait();
        assert!(communicator.barrier().is_err(), "no later call either");
    });
}

/// A rank that has its results may end at once, while another one has not looked for its own.
#[test]
fn results_that_came_before_the_end_of_another_rank_count() {
    let daemon = Daemon::start();
    with_ranks(&daemon, "ends", 2, |communicator| {
        let call = communicator.all_reduce_deferred(vec![1f32; 100], ReduceOp::Sum).unwrap();
        if communicator.rank() == 1 {
            assert_eq!(call.wait().unwrap(), [2.0; 100]);
            communicator.abort();
            return;
        }
        let has_heard = || {
            call.send();
            communicator.failure().is_some()
        };
        switchml_rack::wait_until!(PATIENCE, has_heard(), "rank 0 does not hear of the end");
        assert_eq!(call.wait().unwrap(), [2.0; 100]);
    });
}

#[test]
fn several_collectives_in_flight() {
    let daemon = Daemon::start();
    with_ranks(&daemon, "flight", 3, |communicator| {
        let start = |size: usize| {
            let tensor =
                (0..size).map(|i| small(communicator.rank(), i) as f32).collect::<Vec<_>>();
            communicator.all_reduce_start(tensor, ReduceOp::Sum).unwrap()
        };
        let mut floats: Vec<_> = [100_000, 1, 0, 5000, 40_000, 769].map(start).into();
        let integers = communicator
            .all_reduce_start(vec![communicator.rank() as i32; 9999], ReduceOp::Max)
            .unwrap();
        let mut last = [1f64];
        communicator.all_reduce(&mut last, ReduceOp::Avg).unwrap();
        assert_eq!(last, [1.0]);
        assert_eq!(integers.wait().unwrap(), vec![2; 9999]);
        while let Some(handle) = floats.pop() {
            let sums = handle.wait().unwrap();
            for (i, found) in sums.iter().enumerate() {
                assert_eq!(
                    f64::from(*found),
                    reduced(ReduceOp::Sum, 3, i),
                    "element {i} of {}",
                    sums.len()
                );
            }
        }
        let mut handle = start(10);
        switchml_rack::wait_until!(PATIENCE, handle.is_done(), "the handle is not done");
        assert_eq!(handle.wait().unwrap().len(), 10);
        // A handle that is dropped does no harm.
        drop(start(1000));
        communicator.close().unwrap();
    });
}

/// Whoever waits for them, and also if nobody does.
#[test]
fn deferred_collectives_end() {
    let daemon = Daemon::start();
    with_ranks(&daemon, "deferred", 3, |communicator| {
        let start = |size: usize| {
            communicator.all_reduce_deferred(vec![1f32; size], ReduceOp::Sum).unwrap()
        };
        for size in [0, 1, 1000, 100_000] {
            assert_eq!(start(size).wait().unwrap(), vec![3.0; size]);
        }
        // Whichever is waited for first.
        let (first, second) = (start(1000), start(2000));
        assert_eq!(second.wait().unwrap(), [3.0; 2000]);
        assert_eq!(first.wait().unwrap(), [3.0; 1000]);
        // Rank 0 only asks whether it is over, and rank 1 does not even do that.
        let mut handle = start(1000);
        match communicator.rank() {
            0 => {
                switchml_rack::wait_until!(PATIENCE, handle.is_done(), "the handle is not done");
            }
            1 => drop(handle),
            _ => assert_eq!(handle.wait().unwrap(), [3.0; 1000]),
        }
        // What is sent travels meanwhile.
        let handle = start(1000);
        handle.send();
        assert_eq!(handle.wait().unwrap(), [3.0; 1000]);
        let handle = start(100_000);
        handle.send();
        drop(handle);
        // All-gathers, too: each rank has its part.
        for size in [0, 3, 999, 99_999] {
            let mut tensor = vec![0i32; size];
            tensor[communicator.part(communicator.rank(), size)].fill(7);
            let gathered = communicator.all_gather_deferred(tensor).unwrap().wait().unwrap();
            assert_eq!(gathered, vec![7; size]);
        }
        // Whoever waits for too short a time leaves it to the data thread.
        let mut handle = start(1000);
        handle.wait_for(Duration::from_nanos(1));
        switchml_rack::wait_until!(PATIENCE, handle.is_done(), "the handle is not done");
        communicator.close().unwrap();
    });
}

#[test]
fn two_jobs_do_not_meet() {
    let daemon = Daemon::start();
    thread::scope(|scope| {
        for (job, factor) in [("a", 1), ("b", 1000)] {
            let daemon = &daemon;
            scope.spawn(move || {
                with_ranks(daemon, job, 2, |communicator| {
                    for round in 0..20 {
                        let mut tensor: Vec<i32> =
                            (0..20_000).map(|i| (i + round) * factor).collect();
                        communicator.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
                        let expected: Vec<i32> =
                            (0..20_000).map(|i| 2 * (i + round) * factor).collect();
                        assert!(tensor == expected, "job {job}, round {round}");
                    }
                })
            });
        }
    });
}

#[test]
fn broadcast_from_each_rank() {
    let daemon = Daemon::start();
    with_ranks(&daemon, "broadcast", 3, |communicator| {
        for root in 0..3 {
            for size in [1usize, 3, 770, 50_000] {
                // The elements have any bits: NaN payloads and signed zeros too.
                let value = |rank: u32, i: usize| {
                    f16::from_bits((i as u16).wrapping_mul(2749).wrapping_add(rank as u16 * 77))
                };
                let mut tensor: Vec<f16> =
                    (0..size).map(|i| value(communicator.rank(), i)).collect();
                communicator.broadcast(&mut tensor, root).unwrap();
                for (i, found) in tensor.iter().enumerate() {
                    assert_eq!(
                        found.to_bits(),
                        value(root, i).to_bits(),
                        "from {root}, element {i} of {size}"
                    );
                }
            }
        }
        // Broadcasts from all roots at once, each with its own tensor.
        let tensors = (0..3).map(|root| {
            communicator.broadcast_start(vec![(communicator.rank() + root) as i32; 5000], root)
        });
        for (root, tensor) in (0i32..).zip(tensors.collect::<Vec<_>>()) {
            assert_eq!(tensor.unwrap().wait().unwrap(), vec![2 * root; 5000]);
        }
        let error = communicator.broadcast(&mut [0f32], 3).unwrap_err();
        assert_eq!(error.to_string(), "broadcast from rank 3 of 3; 0 to 2 are allowed");
        communicator.barrier().unwrap();
    });
}

/// Parts of 100,000 elements: rank r of 3 has those from floor(100,000 * r / 3) on.
#[test]
fn parts_of_reduce_scatters_and_all_gathers() {
    const COUNT: usize = 100_000;
    let daemon = Daemon::start();
    with_ranks(&daemon, "parts", 3, |communicator| {
        let rank = communicator.rank() as usize;
        let parts = [0..33_333, 33_333..66_666, 66_666..COUNT];
        assert_eq!([0, 1, 2].map(|rank| communicator.part(rank, COUNT)), parts);
        assert_eq!([3, u32::MAX].map(|rank| communicator.part(rank, COUNT).len()), [0, 0]);
        let mine = || (0..COUNT).map(|i| (i * (rank + 1)) as i32);
        let mut sums: Vec<i32> = mine().collect();
        communicator.reduce_scatter(&mut sums, ReduceOp::Sum).unwrap();
        for i in parts[rank].clone() {
            assert_eq!(sums[i], 6 * i as i32, "rank {rank}, element {i}");
        }
        let mut gathered: Vec<i32> = mine().collect();
        communicator.all_gather(&mut gathered).unwrap();
        for (owner, part) in parts.iter().enumerate() {
            for i in part.clone() {
                assert_eq!(gathered[i], (i * (owner + 1)) as i32, "rank {rank}, element {i}");
            }
        }
        // Two parts of three, and one of three.
        let stats = communicator.stats().engine;
        assert!(stats.told > stats.results * 45 / 100, "{stats:?}");
    });
}

#[test]
fn a_barrier_waits_for_the_last() {
    let daemon = Daemon::start();
    let late = Duration::from_millis(300);
    let waited = with_ranks(&daemon, "barrier", 3, |communicator| {
        communicator.barrier().unwrap();
        let begin = Instant::now();
        if communicator.rank() == 1 {
            thread::sleep(late);
        }
        communicator.barrier().unwrap();
        begin.elapsed()
    });
    // All left the first barrier at about the same time.
    assert!(waited.iter().all(|waited| *waited > late / 2), "{waited:?}");
}

/// Chunks of a call over `elements` elements, `per_chunk` in each.
fn chunks(elements: usize, per_chunk: u16) -> u64 {
    elements.div_ceil(per_chunk.into()) as u64
}

#[test]
fn calls_tell_what_they_took() {
    let daemon = Daemon::start();
    with_ranks(&daemon, "statistics", 2, |communicator| {
        let lanes = communicator.info().chunk_lanes;
        let check = |stats: &CallStats, bytes, chunks| {
            assert_eq!((stats.calls, stats.bytes, stats.chunks), (1, bytes, chunks), "{stats:?}");
            assert_eq!(stats.round_trips.count(), chunks);
            // Longer than its slowest chunk, except the histogram's 1 %.
            assert!(stats.duration.mul_f64(1.01) >= stats.round_trips.max().unwrap(), "{stats:?}");
        };
        let integers = communicator.all_reduce(&mut [1i32; 10_000], ReduceOp::Sum).unwrap();
        check(&integers, 40_000, chunks(10_000, lanes));
        // One exponent a data chunk comes before the data.
        let data = chunks(100_000, lanes);
        let floats = communicator.all_reduce(&mut vec![1.5f32; 100_000], ReduceOp::Sum).unwrap();
        check(&floats, 400_000, data + chunks(data as usize, lanes));
        // Zeros are not sent, but their exponents are.
        let zeros = communicator.all_reduce(&mut vec![0f32; 100_000], ReduceOp::Sum).unwrap();
        check(&zeros, 400_000, chunks(data as usize, lanes));
        let nothing = communicator.all_reduce(&mut [0i32; 0], ReduceOp::Sum).unwrap();
        assert_eq!((nothing.calls, nothing.chunks, nothing.duration), (1, 0, Duration::ZERO));
        // Each chunk counts in its own call, even if calls overlap.
        let sizes = [1, 200_000, 5, 50_000];
        let handles = sizes
            .map(|size| communicator.all_reduce_start(vec![1i32; size], ReduceOp::Sum).unwrap());
        let mut sent = integers.chunks + floats.chunks + zeros.chunks;
        for (size, handle) in sizes.into_iter().zip(handles) {
            let (_, stats) = handle.wait_with_stats().unwrap();
            check(&stats, 4 * size as u64, chunks(size, lanes));
            sent += stats.chunks;
        }
        let total = communicator.stats();
        assert_eq!((total.calls.calls, total.calls.chunks, total.engine.chunks), (8, sent, sent));
        assert_eq!(total.calls.round_trips.count(), sent);
    });
}

/// The number of round trips that were reported to the daemon, as in `/metrics`.
fn told(daemon: &Daemon) -> u64 {
    let status: serde_json::Value = serde_json::from_str(&daemon.status(&["--json"])).unwrap();
    let buckets = status["round_trips"]["buckets"].as_array().unwrap();
    buckets.iter().map(|bucket| bucket["count"].as_u64().unwrap()).sum()
}

fn wait_until_told(daemon: &Daemon, expected: u64) {
    switchml_rack::wait_until!(
        PATIENCE,
        told(daemon) == expected,
        "{} of {expected}",
        told(daemon)
    );
}

/// The daemon's count is the ranks' own: of some calls while they are in their job, and of all once
/// they have left.
#[test]
fn the_daemon_is_told_how_long_round_trips_took() {
    let daemon = Daemon::start();
    let [in_time, all] = [AtomicU64::new(0), AtomicU64::new(0)];
    let counted = Barrier::new(2);
    with_ranks(&daemon, "round trips", 2, |communicator| {
        for size in [1, 1000, 100_000] {
            communicator.all_reduce(&mut vec![1i32; size], ReduceOp::Sum).unwrap();
        }
        let of_rank = || communicator.stats().calls.round_trips.count();
        in_time.fetch_add(of_rank(), Ordering::SeqCst);
        counted.wait();
        if communicator.rank() == 0 {
            wait_until_told(&daemon, in_time.load(Ordering::SeqCst));
        }
        counted.wait();
        for _ in 0..7 {
            communicator.all_reduce(&mut [1.5f32; 5000], ReduceOp::Sum).unwrap();
        }
        all.fetch_add(of_rank(), Ordering::SeqCst);
    });
    assert!(all.load(Ordering::SeqCst) > in_time.load(Ordering::SeqCst));
    wait_until_told(&daemon, all.into_inner());
}

#[test]
fn a_rank_that_comes_late_is_named_with_its_delay() {
    let daemon = Daemon::start();
    let late = Duration::from_millis(300);
    let stats = with_ranks(&daemon, "late", 3, |communicator| {
        communicator.barrier().unwrap();
        if communicator.rank() == 1 {
            thread::sleep(late);
        }
        communicator.all_reduce(&mut [1i32; 100_000], ReduceOp::Sum).unwrap()
    });
    for rank in [0, 2] {
        assert!(stats[rank].pending > 0 && stats[rank].probes > 0, "{:?}", stats[rank]);
        // The other rank may be late as well, on a busy machine, but not by as much.
        let (name, waited) =
            stats[rank].stragglers().max_by_key(|(_, straggler)| straggler.waited).unwrap();
        assert_eq!(name, 1);
        // All left the barrier at about the same time.
        assert!(waited.chunks > 0 && waited.waited > late / 2, "{waited:?}");
        assert!(waited.waited <= stats[rank].duration, "{:?}", stats[rank]);
    }
    assert!(stats[1].stragglers().all(|(_, straggler)| straggler.waited < late), "{:?}", stats[1]);
}

#[test]
fn an_unsupported_reduction_is_refused_and_nothing_else() {
    let daemon = Daemon::start();
    with_ranks(&daemon, "refused", 2, |communicator| {
        assert!(matches!(
            communicator.all_reduce(&mut [1f64], ReduceOp::Max),
            Err(Error::Unsupported(_))
        ));
        assert!(matches!(
            communicator.all_reduce_start(vec![1i32], ReduceOp::Avg),
            Err(Error::Unsupported(_))
        ));
        let mut tensor = [1i32];
        communicator.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
        assert_eq!(tensor, [2]);
    });
}

/// A call, and its name in errors.
type Call = (fn(&Communicator) -> Result<CallStats, Error>, &'static str);

const CALLS: [Call; 9] = [
    (|c| c.all_reduce(&mut [0f32; 100], ReduceOp::Sum), "all_reduce(sum, f32, 100)"),
    (|c| c.all_reduce(&mut [0f32; 101], ReduceOp::Sum), "all_reduce(sum, f32, 101)"),
    (|c| c.all_reduce(&mut [0f32; 100], ReduceOp::Avg), "all_reduce(avg, f32, 100)"),
    (|c| c.all_reduce(&mut [0f32; 100], ReduceOp::Max), "all_reduce(max, f32, 100)"),
    (|c| c.all_reduce(&mut [0i32; 100], ReduceOp::Max), "all_reduce(max, i32, 100)"),
    (|c| c.broadcast(&mut [0f32; 100], 0), "broadcast(from 0, f32, 100)"),
    (|c| c.broadcast(&mut [0f32; 100], 1), "broadcast(from 1, f32, 100)"),
    (|c| c.barrier(), "barrier()"),
    (|c| c.all_reduce(&mut [0i32; 1], ReduceOp::Sum), "all_reduce(sum, i32, 1)"),
];

/// Length, operator, element type, root, kind.
#[test]
fn different_calls_fail_on_every_rank_at_once_and_say_who_called_what() {
    let daemon = Daemon::start();
    for (zero, one) in [(0, 1), (0, 2), (3, 4), (5, 6), (7, 8)] {
        let ((zero, zero_name), (one, one_name)) = (CALLS[zero], CALLS[one]);
        let begin = Instant::now();
        with_ranks(&daemon, &format!("{zero_name} {one_name}"), 2, |communicator| {
            communicator.all_reduce(&mut [1f32; 1000], ReduceOp::Sum).unwrap();
            let call = if communicator.rank() == 0 { zero } else { one };
            let error = call(&communicator).unwrap_err();
            let expected = format!(
                "ranks made different calls: call 2 of rank 0 is {zero_name}; call 2 of rank 1 is \
                 {one_name}; \
                 every rank must make the same calls in the same order"
            );
            assert_eq!(error.to_string(), expected);
            let Error::Control(control::Error::Mismatch { calls, .. }) = &error else {
                panic!("{error:?}")
            };
            let made = |ranks: &[u16], call: &str| MadeCall {
                ranks: ranks.to_vec(),
                number: 2,
                call: call.to_owned(),
            };
            assert_eq!(*calls, [made(&[0], zero_name), made(&[1], one_name)]);
            // The communicator is failed for good, with the same error.
            assert_eq!(communicator.barrier(), Err(error.clone()));
            assert_eq!(
                communicator.all_reduce_start(vec![0f32], ReduceOp::Sum).err(),
                Some(error.clone())
            );
            assert_eq!(communicator.close(), Err(error));
        });
        assert!(begin.elapsed() < PATIENCE / 2, "at once, not at the deadline");
    }
}

/// With several calls in flight, packets of one call meet packets of another: the error names the
/// first call that differs.
#[test]
fn with_many_calls_in_flight_the_first_that_differs_is_told() {
    let daemon = Daemon::start();
    with_ranks(&daemon, "flight", 3, |communicator| {
        // Rank 2 makes the second and the third call in the other order.
        let sizes =
            if communicator.rank() == 2 { [500, 3000, 70_000, 9] } else { [500, 70_000, 3000, 9] };
        let handles =
            sizes.map(|size| communicator.all_reduce_start(vec![1i32; size], ReduceOp::Sum));
        // The first call may be done, or fail with the others.
        let last = handles.into_iter().next_back().unwrap().and_then(Handle::wait).unwrap_err();
        let expected = "ranks made different calls: call 2 of rank 2 is all_reduce(sum, i32, \
                        3000); \
                        call 2 of ranks 0 and 1 is all_reduce(sum, i32, 70000); \
                        every rank must make the same calls in the same order";
        assert_eq!(last.to_string(), expected);
    });
}

/// Rank 2 leaves normally after one call; the others make another, and need not wait for their
/// deadline.
#[test]
fn a_rank_that_leaves_too_early_is_named_soon() {
    let daemon = Daemon::start();
    // A collective cannot replace this barrier: a rank that is done may fail in its next call while
    // another still waits for its last results.
    let together = Barrier::new(3);
    let waited = with_ranks(&daemon, "early", 3, |communicator| {
        communicator.barrier().unwrap();
        together.wait();
        if communicator.rank() == 2 {
            communicator.close().unwrap();
            return None;
        }
        let begin = Instant::now();
        let error = communicator.all_reduce(&mut vec![1f32; 5000], ReduceOp::Sum).unwrap_err();
        assert!(
            error.to_string().contains("rank 2 left the job without making this call"),
            "{error}"
        );
        Some(begin.elapsed())
    });
    for waited in waited.into_iter().flatten() {
        assert!(waited < PATIENCE / 2, "{waited:?}");
    }
}

#[test]
fn a_rank_that_does_not_call_is_named_within_the_timeout() {
    let daemon = Daemon::start();
    let timeout = Duration::from_secs(1);
    let over = Barrier::new(3);
    let waited = with_timeout(&daemon, "absent", 3, timeout, |communicator| {
        communicator.barrier().unwrap();
        if communicator.rank() == 1 {
            // Rank 1 is present, but busy.
            over.wait();
            let error = communicator.barrier().unwrap_err();
            let Error::Control(control::Error::Aborted { reason, ranks }) = &error else {
                panic!("{error}")
            };
            let told = "failed: no contribution from rank 1";
            assert!(reason.contains(told), "it hears which rank says so: {reason}");
            assert_eq!(*ranks, [1], "{reason}");
            return None;
        }
        let begin = Instant::now();
        let result = communicator.all_reduce(&mut vec![1f32; 100_000], ReduceOp::Sum);
        let waited = begin.elapsed();
        over.wait();
        let error = result.unwrap_err();
        assert!(error.to_string().contains("no contribution from rank 1"), "{error}");
        // The error was reported by the other waiting rank, or by this one.
        assert_eq!(error.ranks(), [1], "{error}");
        Some(waited)
    });
    // The first rank to give up ends the call for all, and other ranks may have called later.
    let waited = waited.into_iter().flatten().max().expect("two ranks waited");
    assert!((timeout * 9 / 10..timeout + PATIENCE).contains(&waited), "{waited:?}");
}

/// A new timeout counts for calls in flight, too.
#[test]
fn a_timeout_that_is_set_later_ends_the_wait() {
    let daemon = Daemon::start();
    let hear_of_it = |communicator: Communicator| {
        communicator.barrier().unwrap();
        if communicator.rank() == 1 {
            // Calls until the other ranks have given up.
            let error = loop {
                thread::sleep(Duration::from_millis(20));
                if let Err(error) = communicator.all_reduce::<f32>(&mut [], ReduceOp::Sum) {
                    break error;
                }
            };
            assert_eq!(error.ranks(), [1], "{error}");
            return;
        }
        let handle = communicator.barrier_start().unwrap();
        let error = communicator.set_timeout(Duration::from_millis(99)).unwrap_err();
        assert_eq!(error.to_string(), "timeout is 0.099 s; it must be 0.1 s or more");
        communicator.set_timeout(Duration::from_secs(1)).unwrap();
        let error = handle.wait().unwrap_err();
        assert!(error.to_string().contains("no contribution from rank 1"), "{error}");
        assert_eq!(error.ranks(), [1], "{error}");
    };
    with_timeout(&daemon, "set later", 3, Duration::from_secs(1800), hear_of_it);
}

#[test]
fn a_rank_that_panics_ends_the_job_at_once() {
    let daemon = Daemon::start();
    let connected = Barrier::new(3);
    with_ranks(&daemon, "panic", 3, |communicator| {
        connected.wait();
        if communicator.rank() == 2 {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _communicator = communicator;
                std::panic::resume_unwind(Box::new("on purpose"));
            }));
            assert!(outcome.is_err());
            return;
        }
        let begin = Instant::now();
        // Refused when the news is here already.
        let handle = communicator.all_reduce_start(vec![1f32; 1000], ReduceOp::Sum);
        let error = handle.and_then(Handle::wait).unwrap_err();
        let Error::Control(control::Error::Aborted { reason, ranks }) = &error else {
            panic!("{error}")
        };
        assert_eq!(ranks, &[2]);
        assert!(reason.contains("panicked"), "{reason}");
        assert!(begin.elapsed() < PATIENCE / 2);
    });
}

/// Longer than the deadline by default, and than any time between two probes.
const LATE: Duration = Duration::from_secs(6);

/// Ranks beyond the first group of 32, and more than two lanes of a PENDING name: their sums; who
/// is late is waited for, and who is gone is named.
#[test]
fn a_hundred_ranks() {
    const RANKS: u32 = 100;
    const GONE: u32 = 65;
    let daemon = Daemon::start();
    let are_through = Barrier::new(RANKS as usize);
    let errors = with_ranks(&daemon, "many", RANKS, |communicator| {
        let rank = communicator.rank();
        for op in [ReduceOp::Sum, ReduceOp::Max] {
            let mut tensor: Vec<f32> = (0..2000).map(|i| (i as f32) + rank as f32).collect();
            communicator.all_reduce(&mut tensor, op).unwrap();
            // 0 + 1 + … + 99 = 4950
            let all = |i: usize| match op {
                ReduceOp::Max => (i as f32) + 99.0,
                _ => 100.0 * (i as f32) + 4950.0,
            };
            assert_eq!(tensor, (0..2000).map(all).collect::<Vec<_>>(), "{op}");
        }
        if [70, 99].contains(&rank) {
            thread::sleep(LATE);
        }
        communicator.barrier().unwrap();
        are_through.wait();
        if rank == GONE {
            communicator.close().unwrap();
            return None;
        }
        Some(communicator.barrier().unwrap_err())
    });
    let named: Vec<_> = errors.iter().flatten().map(Error::ranks).collect();
    assert_eq!(named.len(), 99);
    assert!(named.iter().all(|named| *named == [GONE as u16]), "{errors:?}");
}

#[test]
fn a_call_can_be_waited_for_a_while() {
    const WHILE: Duration = Duration::from_millis(20);
    let daemon = Daemon::start();
    // Calls of a few chunks, and of many chunks in several data threads.
    for size in [100, 1 << 20] {
        let waited = Barrier::new(2);
        with_ranks(&daemon, &format!("a while {size}"), 2, |communicator| {
            let start = || communicator.all_reduce_start(vec![1i32; size], ReduceOp::Sum).unwrap();
            if communicator.rank() == 1 {
                waited.wait();
                assert_eq!(start().wait().unwrap(), vec![2; size]);
                return;
            }
            let (mut handle, begin) = (start(), Instant::now());
            assert!(!handle.wait_for(WHILE), "rank 1 has not called yet");
            assert!(begin.elapsed() >= WHILE, "{:?}", begin.elapsed());
            assert!(!handle.is_done());
            waited.wait();
            assert!(handle.wait_for(PATIENCE));
            assert!(handle.is_done());
            assert_eq!(handle.wait().unwrap(), vec![2; size]);
        });
    }
}
