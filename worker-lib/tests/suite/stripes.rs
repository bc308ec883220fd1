//! A job at several aggregators: the same bits as at one, shared work, and errors that name who is
//! at fault.

use std::thread;
use std::time::{Duration, Instant};

use switchml_worker::control::Error as ControlError;
use switchml_worker::{Builder, Communicator, Error, ReduceOp, Reduction};

use crate::data_threads::wild;
use switchml_rack::daemon::{Daemon, PATIENCE};

const RANKS: u32 = 3;
/// Elements of a tensor that is cut into parts for all aggregators.
const LARGE: usize = 1_000_003;

/// The addresses of daemons, as a rank takes them.
fn list(daemons: &[Daemon]) -> String {
    daemons.iter().map(|daemon| daemon.address.as_str()).collect::<Vec<_>>().join(",")
}

fn start<const N: usize>() -> [Daemon; N] {
    std::array::from_fn(|_| Daemon::start())
}

/// Runs `rank` on every rank of a new job, in threads. Returns the results in the order of ranks.
fn with_ranks<R: Send>(
    settings: impl Fn(u32) -> Builder + Sync,
    rank: impl Fn(Builder) -> R + Sync,
) -> Vec<R> {
    thread::scope(|scope| {
        let (settings, rank) = (&settings, &rank);
        let run = |number| move || rank(settings(number).rank(number).world_size(RANKS));
        let ranks: Vec<_> = (0..RANKS).map(|number| scope.spawn(run(number))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn at(aggregators: &str, job: &str) -> Builder {
    Communicator::builder()
        .aggregator(aggregators)
        .job(job)
        .deadline(PATIENCE)
        .join_timeout(PATIENCE)
}

/// The results of calls of many sizes and kinds, as bits.
fn bits(communicator: &Communicator) -> Vec<Vec<u32>> {
    let (rank, mut results) = (communicator.rank(), Vec::new());
    let mut keep = |values: Vec<f32>| results.push(values.into_iter().map(f32::to_bits).collect());
    for count in [1, 1000, 70_000, 300_000, LARGE] {
        for op in [Reduction::SUM, Reduction::AVG16, Reduction::SUM8, Reduction::MAX] {
            let mut values = wild(communicator.rank(), count);
            communicator.all_reduce(&mut values, op).unwrap();
            keep(values);
        }
        let mut values = wild(communicator.rank(), count);
        communicator.broadcast(&mut values, 1).unwrap();
        keep(values);
    }
    let mut values = wild(communicator.rank(), LARGE);
    communicator.all_gather(&mut values).unwrap();
    keep(values);
    // Of integers: which chunks floats are in depends on the cut (rule 17.9).
    let mut values: Vec<i32> = (0..LARGE as i32).map(|i| i * 31 + rank as i32).collect();
    communicator.reduce_scatter(&mut values, ReduceOp::Sum).unwrap();
    keep(values[communicator.part(rank, LARGE)].iter().map(|value| *value as f32).collect());
    let started: Vec<_> = [LARGE, 10, 200_000]
        .map(|count| wild(communicator.rank(), count))
        .map(|values| communicator.all_reduce_start(values, ReduceOp::Sum).unwrap())
        .into();
    started.into_iter().for_each(|handle| keep(handle.wait().unwrap()));
    results
}

#[test]
fn the_same_bits_as_at_one_aggregator() {
    let daemons = start::<3>();
    let all = list(&daemons);
    let run = |aggregators: &str, job: &str, weights: &[u32]| {
        with_ranks(
            |_| at(aggregators, job).weights(weights.iter().copied()),
            |builder| {
                let communicator = builder.connect().unwrap();
                let results = bits(&communicator);
                communicator.close().unwrap();
                results
            },
        )
    };
    let alone = run(&daemons[0].address, "alone", &[]);
    for (job, weights) in [("together", &[][..]), ("weighted", &[1, 20, 3])] {
        let found = run(&all, job, weights);
        for (rank, (found, expected)) in found.iter().zip(&alone).enumerate() {
            let differ = (0..expected.len()).find(|call| found[*call] != expected[*call]);
            assert_eq!(differ, None, "{job}: the first call that differs on rank {rank}");
        }
    }
}

/// Calls without elements send nothing, but a rank that makes one more is told with the next call.
#[test]
fn ranks_with_other_numbers_of_empty_calls_are_told() {
    let daemons = start::<2>();
    let begin = Instant::now();
    let told = with_ranks(
        |_| at(&list(&daemons), "empty"),
        |builder| {
            let communicator = builder.connect().unwrap();
            if communicator.rank() == 1 {
                communicator.all_reduce::<i32>(&mut [], ReduceOp::Sum).unwrap();
            }
            communicator.all_reduce(&mut [1i32; 10], ReduceOp::Sum).unwrap_err().to_string()
        },
    );
    assert!(told.iter().all(|error| error.contains("made different calls")), "{told:?}");
    assert!(begin.elapsed() < PATIENCE);
}

#[test]
fn each_takes_its_part_and_small_calls_in_turn() {
    let daemons = start::<3>();
    let chunks = |weights: [u32; 3], job: &str, counts: &[usize]| {
        let before: Vec<u64> = daemons.iter().map(|daemon| daemon.counter("completed")).collect();
        with_ranks(
            |_| at(&list(&daemons), job).weights(weights),
            |builder| {
                let communicator = builder.connect().unwrap();
                for count in counts {
                    let mut values = vec![1i32; *count];
                    communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
                    assert!(values.iter().all(|sum| *sum == RANKS as i32));
                }
                communicator.info().chunk_lanes
            },
        );
        let now = daemons.iter().map(|daemon| daemon.counter("completed"));
        now.zip(before).map(|(now, before)| now - before).collect::<Vec<_>>()
    };
    // One chunk each.
    assert_eq!(chunks([1, 1, 1], "small", &[10; 30]), [10; 3]);
    let parts = chunks([1, 2, 5], "large", &[8_000_000]);
    let whole: u64 = parts.iter().sum();
    for (part, weight) in parts.iter().zip([1, 2, 5]) {
        let share = *part as f64 / whole as f64;
        assert!((share - f64::from(weight) / 8.0).abs() < 0.02, "{parts:?}");
    }
}

/// Rule 36.8. Weights 1, 2 and 5 are eighths.
#[test]
fn ranks_and_operators_see_the_shares() {
    let daemons = start::<3>();
    with_ranks(
        |_| at(&list(&daemons), "shares").weights([1, 2, 5]),
        |builder| {
            let communicator = builder.connect().unwrap();
            let info = communicator.info();
            for (stripe, share) in info.stripes.iter().zip(info.shares()) {
                let given = daemons.iter().position(|daemon| daemon.address == stripe.control);
                let given = given.unwrap();
                assert_eq!(share, [0.125, 0.25, 0.625][given]);
                let percent = ["12.5", "25.0", "62.5"][given];
                let start = format!("aggregators  job \"shares\": 1 of 3, {percent} %, beside ");
                let status = daemons[given].status(&[]);
                let told = status.lines().find_map(|line| line.strip_prefix(&start));
                let mut told: Vec<_> = told.expect(&status).split(", ").collect();
                told.sort_unstable();
                let others = daemons.iter().map(|daemon| daemon.address.as_str());
                let mut others: Vec<_> = others.filter(|other| *other != stripe.control).collect();
                others.sort_unstable();
                assert_eq!(told, others, "{status}");
            }
            communicator.close().unwrap();
        },
    );
}

/// Ranks need not know in which order others give the aggregators.
#[test]
fn aggregators_may_be_given_in_any_order() {
    let daemons = start::<3>();
    let address = |i: u32| daemons[i as usize % 3].address.as_str();
    with_ranks(
        |rank| {
            let weights = (0..3).map(|i| [5, 1, 1][((rank + i) % 3) as usize]);
            let all = [address(rank), address(rank + 1), address(rank + 2)].join(",");
            at(&all, "any order").weights(weights)
        },
        |builder| {
            let communicator = builder.connect().unwrap();
            for count in [10, LARGE] {
                let mut values = vec![1i32; count];
                communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
                assert!(values.iter().all(|sum| *sum == RANKS as i32));
            }
        },
    );
}

#[test]
fn ranks_that_disagree_on_aggregators_are_told() {
    let daemons = start::<2>();
    let (both, one) = (list(&daemons), daemons[0].address.as_str());
    let refused = |settings: &(dyn Fn(u32) -> Builder + Sync), expected: &[&str]| {
        let begin = Instant::now();
        let errors = with_ranks(
            |rank| settings(rank).join_timeout(Duration::from_secs(3)),
            |builder| builder.connect().err().map(|error| error.to_string()),
        );
        let told = errors
            .iter()
            .flatten()
            .any(|error| expected.iter().any(|expected| error.contains(expected)));
        assert!(told, "{errors:?}");
        assert!(begin.elapsed() < PATIENCE);
    };
    refused(
        &|rank| at(if rank == 1 { one } else { &both }, "number"),
        &["has 2 aggregators, not 1 aggregator;", "has 1 aggregator, not 2 aggregators;"],
    );
    refused(
        &|rank| at(&both, "weight").weights([1, 1 + rank / 2]),
        &[
            "has 2 aggregators and weight 1 here, not 2 aggregators and weight 2 here;",
            "has 2 aggregators and weight 2 here, not 2 aggregators and weight 1 here;",
        ],
    );
    let twice = at(&format!("{one}, {one}"), "twice").rank(0).world_size(1).connect();
    let expected = ControlError::Twice { one: one.to_owned(), other: one.to_owned() };
    assert_eq!(twice.err(), Some(Error::Control(expected)));
    let weights = at(&both, "weights").weights([1]).rank(0).world_size(1).connect();
    assert_eq!(
        weights.err().map(|error| error.to_string()).unwrap_or_default(),
        "weights is [1] of 2 aggregators; give one of 1 or more for each aggregator"
    );
}

/// An aggregator that is not there is named at once, although ranks wait at the other one.
#[test]
fn an_aggregator_that_does_not_answer_is_named() {
    let daemon = Daemon::start();
    let both = format!("{},127.0.0.1:1", daemon.address);
    let begin = Instant::now();
    let error = at(&both, "half").rank(0).world_size(2).connect().err().unwrap();
    assert!(error.to_string().contains("no aggregator answers at 127.0.0.1:1"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(30));
}

#[test]
fn different_calls_are_told_apart() {
    let daemons = start::<2>();
    let errors = with_ranks(
        |_| at(&list(&daemons), "calls"),
        |builder| {
            let communicator = builder.connect().unwrap();
            // The first goes to one aggregator, the second to both.
            let count = if communicator.rank() == 1 { LARGE } else { 10 };
            let mut values = vec![1i32; count];
            communicator.all_reduce(&mut values, ReduceOp::Sum).err().map(|error| error.ranks())
        },
    );
    assert_eq!(errors, vec![Some(vec![1]); RANKS as usize]);
}

#[test]
fn a_rank_that_fails_is_named_at_all_aggregators() {
    let daemons = start::<2>();
    let errors = with_ranks(
        |_| at(&list(&daemons), "fails"),
        |builder| {
            let communicator = builder.connect().unwrap();
            // Others may still be in the barrier when it fails.
            let met = communicator.barrier();
            if communicator.rank() == 2 {
                met.unwrap();
                communicator.abort();
                return communicator.close().err().map(|error| error.ranks());
            }
            let mut values = vec![1i32; LARGE];
            let added = met.and_then(|_| communicator.all_reduce(&mut values, ReduceOp::Sum));
            added.err().map(|error| error.ranks())
        },
    );
    assert_eq!(errors, [Some(vec![2]), Some(vec![2]), Some(Vec::new())]);
}
