//! The control plane's client against the real daemon.

use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, process, thread};

use switchml_rack::Signal;
use switchml_worker::control::{Assigned, Error, Membership, status};
use switchml_worker::{Communicator, Error as AnyError, ReduceOp};

use switchml_rack::daemon::{Daemon, PATIENCE};

/// All ranks of a job, joined.
fn join_all(daemon: &Daemon, job: &str, world_size: u32) -> Vec<(Membership, Assigned)> {
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..world_size)
            .map(|rank| {
                scope.spawn(move || {
                    Membership::join(&daemon.address, job, rank, world_size, Some(1), PATIENCE)
                        .unwrap()
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Receives the reason for a session's end.
fn end_of(session: &Membership) -> mpsc::Receiver<Error> {
    let (sender, reasons) = mpsc::channel();
    session.on_end(move |reason| sender.send(reason).unwrap());
    reasons
}

#[test]
fn all_ranks_get_the_same_job_and_secrets_of_their_own() {
    let daemon = Daemon::start();
    let joined = join_all(&daemon, "a", 3);
    let first = &joined[0].1;
    assert_eq!(first.data_address.ip().to_string(), "127.0.0.1");
    assert!(first.slots > 0 && first.max_lanes > 0 && first.epoch > 0);
    for (_, assigned) in &joined[1..] {
        let Assigned { hello_secret, control_secret, .. } = *first;
        assert_eq!(&Assigned { hello_secret, control_secret, ..assigned.clone() }, first);
        assert_ne!(assigned.hello_secret, hello_secret);
        assert_ne!(assigned.control_secret, control_secret);
    }
    let again = Membership::join(&daemon.address, "b", 0, 1, Some(1), PATIENCE).unwrap().1;
    assert_ne!((again.job, again.epoch), (first.job, first.epoch));
}

#[test]
fn missing_ranks_are_named() {
    let daemon = Daemon::start();
    let waited = Duration::from_millis(300);
    let error = Membership::join(&daemon.address, "a", 1, 4, Some(1), waited).err().unwrap();
    let (job, ranks, at) = ("a".into(), vec![0, 2, 3], Some(daemon.address.clone()));
    assert_eq!(error, Error::Missing { job, world_size: 4, waited, ranks, at });
}

#[test]
fn ranks_without_a_data_path_are_named() {
    let daemon = Daemon::start();
    let joining = thread::scope(|scope| {
        let silent = scope
            .spawn(|| Membership::join(&daemon.address, "a", 1, 2, Some(1), PATIENCE).unwrap());
        let rank =
            Communicator::builder().aggregator(&daemon.address).job("a").rank(0).world_size(2);
        let error = rank.join_timeout(Duration::from_secs(2)).connect().err().unwrap();
        drop(silent.join().unwrap());
        error
    });
    let waited = Duration::from_secs(2);
    assert_eq!(
        joining,
        AnyError::Control(Error::NotReady { job: "a".into(), waited, ranks: vec![1] })
    );
}

#[test]
fn nobody_is_ready_without_hello() {
    let daemon = Daemon::start();
    let (session, _) = Membership::join(&daemon.address, "a", 0, 1, Some(1), PATIENCE).unwrap();
    let error = session.ready(32, false).unwrap_err();
    assert!(matches!(&error, Error::Refused { why, .. } if why.contains("no HELLO")), "{error}");
}

#[test]
fn a_goodbye_disturbs_nobody() {
    let daemon = Daemon::start();
    let connect = |rank| {
        let settings =
            Communicator::builder().aggregator(&daemon.address).job("a").rank(rank).world_size(2);
        settings.connect().unwrap()
    };
    thread::scope(|scope| {
        scope.spawn(|| connect(1).close().unwrap());
        let stays = connect(0);
        daemon.wait_for_job("a", "1 of 2");
        // Longer than the news of a failure would take.
        thread::sleep(Duration::from_millis(300));
        stays.close().unwrap();
    });
}

#[test]
fn a_rank_that_leaves_with_an_error_ends_the_job_for_all() {
    let daemon = Daemon::start();
    let mut joined = join_all(&daemon, "a", 2);
    let reasons = end_of(&joined[0].0);
    joined.pop().unwrap().0.fail("out of paper", Vec::new());
    let Error::Aborted { reason, ranks } = reasons.recv_timeout(PATIENCE).unwrap() else {
        panic!("not aborted")
    };
    assert_eq!(ranks, [1]);
    assert!(reason.contains("out of paper"), "{reason}");
    // A callback that is set later gets the same reason.
    let late = end_of(&joined[0].0).recv().unwrap();
    assert_eq!(late, Error::Aborted { reason, ranks });
}

/// The environment variable of the process that ends with its call: the aggregator's address.
const ENDS_WITH_ITS_CALL: &str = "SWITCHML_TEST_ENDS_WITH_ITS_CALL";
/// The test that this process runs, by its name in the test program.
const CALLS_AND_ENDS: &str =
    "control::others_hear_why_a_call_failed_even_if_its_process_ends_at_once";

#[test]
fn others_hear_why_a_call_failed_even_if_its_process_ends_at_once() {
    let rank = |aggregator: &str, rank| {
        let settings = Communicator::builder().aggregator(aggregator).job("a").rank(rank);
        settings.world_size(2).timeout(Duration::from_millis(300)).connect().unwrap()
    };
    if let Ok(aggregator) = env::var(ENDS_WITH_ITS_CALL) {
        let communicator = rank(&aggregator, 0);
        let failed = communicator.all_reduce(&mut [1.0f32], ReduceOp::Sum);
        // The process exits without dropping the communicator, which would wait until the job is
        // left.
        process::exit(if failed.is_err() { 0 } else { 1 });
    }
    let daemon = Daemon::start();
    let mut calls = Command::new(env::current_exe().unwrap())
        .args(["--exact", CALLS_AND_ENDS])
        .env(ENDS_WITH_ITS_CALL, &daemon.address)
        // The output would show that a test begins, but not how it ended.
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let other = rank(&daemon.address, 1);
    assert!(calls.wait().unwrap().success());
    let AnyError::Control(Error::Aborted { reason, ranks }) = other.barrier().unwrap_err() else {
        panic!("not aborted")
    };
    assert_eq!(ranks, [1], "{reason}");
    assert!(reason.contains("no contribution from rank 1"), "{reason}");
}

/// Waits until ranks have completed some rounds.
fn wait_for_rounds(daemon: &Daemon) {
    let begin = Instant::now();
    let completed = || {
        let status = daemon.status(&[]);
        let line = status.lines().find(|line| line.trim_start().starts_with("completed "));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0u64)
    };
    while completed() < 10 {
        assert!(begin.elapsed() < PATIENCE, "{}", daemon.status(&[]));
        thread::sleep(Duration::from_millis(10));
    }
}

/// The daemon has taken the ranks for dead, and remembers that.
#[test]
fn ranks_that_were_frozen_hear_why_when_they_go_on() {
    let daemon = Daemon::start();
    let mut ranks =
        [0, 1].map(|rank| daemon.bench("a", rank, 2, &["-b", "1M", "-e", "1M", "-n", "1000000"]));
    daemon.wait_for_job("a", "started");
    // The wait ensures that they have heard of the start. A rank that has not would wait for an
    // answer as long as the daemon waits for the rank.
    wait_for_rounds(&daemon);
    ranks.iter_mut().for_each(|rank| rank.signal(Signal::STOP).unwrap());
    daemon.wait_for_the_end_of("a");
    ranks.iter_mut().for_each(|rank| rank.signal(Signal::CONT).unwrap());
    for rank in &mut ranks {
        rank.wait(PATIENCE).unwrap();
        let stderr = rank.stderr();
        let said = stderr.lines().last().unwrap_or_default();
        assert!(said.contains("this process stood still for"), "{stderr}");
        assert!(said.contains("its job allows 3 s (SWITCHML_STANDSTILL)"), "{stderr}");
    }
}

#[test]
fn an_aggregator_that_dies_is_noticed() {
    let mut daemon = Daemon::start();
    let joined = join_all(&daemon, "a", 1);
    let reasons = end_of(&joined[0].0);
    daemon.aggregator.process().kill().unwrap();
    let error = reasons.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(&error, Error::Lost { address, .. } if *address == daemon.address), "{error}");
}

#[test]
fn an_aggregator_says_what_it_is() {
    let daemon = Daemon::start();
    let status = status(&daemon.address, PATIENCE).unwrap();
    assert_eq!((status.address, status.data_plane.as_str()), (daemon.address.clone(), "software"));
    assert_eq!(status.slots_free, status.slots_total);
    // No program listens on port 1, and the data port belongs to something else than a control
    // plane.
    assert!(matches!(
        switchml_worker::control::status("127.0.0.1:1", PATIENCE),
        Err(Error::Unreachable { .. })
    ));
}
