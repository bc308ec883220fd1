//! Ranks that make different calls: each soon hears which rank called what.

use std::sync::{Arc, Barrier};
use std::thread::sleep;
use std::time::{Duration, Instant};

use switchml_rack::{Mode, in_both_modes};
use switchml_worker::control::{self, MadeCall};
use switchml_worker::{CallStats, Communicator, Error, Handle, ReduceOp, Reduction};

use crate::Cluster;

in_both_modes! {
    every_rank_hears_which_rank_called_what,
    a_rank_in_no_call_hears_of_it_at_its_next,
    a_rank_that_left_is_named_long_before_the_deadline,
}

const RANKS: usize = 4;
/// The rank that calls something else.
const ODD: u32 = 2;
/// Time within which every rank must hear of the mismatch.
const BOUND: Duration = Duration::from_secs(2);

type Call = fn(&Communicator) -> Result<CallStats, Error>;

/// The call of the odd rank and the call of the others, and their names in errors.
const CASES: [(&str, Call, &str, Call, &str); 8] = [
    (
        "length",
        |c| c.all_reduce(&mut vec![1f32; 99_999], ReduceOp::Sum),
        "all_reduce(sum, f32, 99999)",
        |c| c.all_reduce(&mut vec![1f32; 100_000], ReduceOp::Sum),
        "all_reduce(sum, f32, 100000)",
    ),
    (
        "type",
        |c| c.all_reduce(&mut vec![1i32; 5000], ReduceOp::Sum),
        "all_reduce(sum, i32, 5000)",
        |c| c.all_reduce(&mut vec![1f32; 5000], ReduceOp::Sum),
        "all_reduce(sum, f32, 5000)",
    ),
    (
        "operator",
        |c| c.all_reduce(&mut [1f32; 8], ReduceOp::Max),
        "all_reduce(max, f32, 8)",
        |c| c.all_reduce(&mut [1f32; 8], ReduceOp::Min),
        "all_reduce(min, f32, 8)",
    ),
    (
        "precision",
        |c| c.all_reduce(&mut vec![1f32; 5000], Reduction::SUM8),
        "all_reduce(sum8, f32, 5000)",
        |c| c.all_reduce(&mut vec![1f32; 5000], Reduction::SUM16),
        "all_reduce(sum16, f32, 5000)",
    ),
    (
        "exact or not",
        |c| c.all_reduce(&mut vec![1f32; 100], Reduction::AVG),
        "all_reduce(avg, f32, 100)",
        |c| c.all_reduce(&mut vec![1f32; 100], Reduction::AVG8),
        "all_reduce(avg8, f32, 100)",
    ),
    (
        "root",
        |c| c.broadcast(&mut vec![1f32; 5000], 1),
        "broadcast(from 1, f32, 5000)",
        |c| c.broadcast(&mut vec![1f32; 5000], 0),
        "broadcast(from 0, f32, 5000)",
    ),
    (
        "kind",
        Communicator::barrier,
        "barrier()",
        |c| c.all_reduce(&mut [1i32; 1], ReduceOp::Sum),
        "all_reduce(sum, i32, 1)",
    ),
    (
        "order",
        |c| in_flight(c, [7000, 400]),
        "all_reduce(sum, i32, 7000)",
        |c| in_flight(c, [400, 7000]),
        "all_reduce(sum, i32, 400)",
    ),
];

/// A call with another in flight.
fn in_flight(communicator: &Communicator, sizes: [usize; 2]) -> Result<CallStats, Error> {
    let before = communicator.all_reduce_start(vec![1i32; sizes[0]], ReduceOp::Sum);
    let last = communicator.all_reduce(&mut vec![1i32; sizes[1]], ReduceOp::Sum);
    before.and_then(Handle::wait).and(last)
}

/// The ranks that an error lists for each call, after a check of everything else in it.
fn listed(error: &Error, odd: &str, even: &str) -> (Vec<u16>, Vec<u16>) {
    let Error::Control(control::Error::Mismatch { reason, calls }) = error else {
        panic!("{error}")
    };
    let [
        MadeCall { ranks: alone, number: 2, call: odd_call },
        MadeCall { ranks: others, number: 2, call: even_call },
    ] = &calls[..]
    else {
        panic!("{error}")
    };
    assert_eq!((odd_call.as_str(), even_call.as_str()), (odd, even), "{error}");
    assert!(
        reason.starts_with(&format!("ranks made different calls: call 2 of rank {ODD} is {odd}; ")),
        "{reason}"
    );
    assert!(!reason.contains('\n'), "{reason}");
    (alone.clone(), others.clone())
}

/// A barrier where the ranks meet after a call that must succeed on all of them. A collective
/// cannot replace it: a rank that is done may fail in its next call while another still waits for
/// its last results, and makes that one fail in the wrong call.
fn together() -> Arc<Barrier> {
    Arc::new(Barrier::new(RANKS))
}

fn every_rank_hears_which_rank_called_what(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    for (name, odd, odd_name, even, even_name) in CASES {
        let together = together();
        let outcomes = cluster.run_ranks(RANKS, name, move |rank, builder| {
            let communicator = builder.connect().unwrap();
            communicator.barrier().unwrap();
            together.wait();
            let begin = Instant::now();
            let error =
                if rank == ODD { odd(&communicator) } else { even(&communicator) }.unwrap_err();
            // The communicator has failed for good.
            assert_eq!(communicator.barrier(), Err(error.clone()));
            (error, begin.elapsed())
        });
        for (error, elapsed) in outcomes {
            let (alone, others) = listed(&error, odd_name, even_name);
            assert_eq!((alone, others), (vec![ODD as u16], vec![0, 1, 3]), "{name}: {error}");
            assert!(elapsed < BOUND, "{name}: {elapsed:?}");
        }
    }
}

/// A rank that computes meanwhile has nothing to report, delays nobody for long, and hears of the
/// mismatch when it calls.
fn a_rank_in_no_call_hears_of_it_at_its_next(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    let together = together();
    let outcomes = cluster.run_ranks(RANKS, "computing", move |rank, builder| {
        let communicator = builder.connect().unwrap();
        communicator.barrier().unwrap();
        together.wait();
        if rank == 3 {
            sleep(BOUND);
        }
        let begin = Instant::now();
        let size = if rank == ODD { 10 } else { 11 };
        let error = communicator.all_reduce(&mut vec![1i32; size], ReduceOp::Sum).unwrap_err();
        (error, begin.elapsed())
    });
    for (rank, (error, elapsed)) in outcomes.into_iter().enumerate() {
        let lists = listed(&error, "all_reduce(sum, i32, 10)", "all_reduce(sum, i32, 11)");
        assert_eq!(lists, (vec![ODD as u16], vec![0, 1]), "{error}");
        // The aggregator has gathered the other ranks' calls, which takes half a second.
        let bound = if rank == 3 { Duration::from_millis(400) } else { BOUND };
        assert!(elapsed < bound, "rank {rank}: {elapsed:?}");
    }
}

/// The rank has its results and has left; the others wait for it in a call that it never makes.
fn a_rank_that_left_is_named_long_before_the_deadline(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    let together = together();
    let outcomes = cluster.run_ranks(RANKS, "left", move |rank, builder| {
        let communicator = builder.deadline(Duration::from_secs(60)).connect().unwrap();
        communicator.all_reduce(&mut vec![1f32; 10_000], ReduceOp::Sum).unwrap();
        together.wait();
        if rank == ODD {
            communicator.close().unwrap();
            return None;
        }
        let begin = Instant::now();
        let error = communicator.all_reduce(&mut vec![1f32; 10_000], ReduceOp::Sum).unwrap_err();
        Some((error, begin.elapsed()))
    });
    for (error, elapsed) in outcomes.into_iter().flatten() {
        assert!(
            error.to_string().contains("rank 2 left the job without making this call"),
            "{error}"
        );
        assert!(elapsed < BOUND, "{elapsed:?}");
    }
}
