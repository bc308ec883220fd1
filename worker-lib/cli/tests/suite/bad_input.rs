//! Errors around a job: each is a line that says what to do, and an exit code for its kind.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use switchml_rack::daemon::{Daemon, PATIENCE, failure};

const USAGE: i32 = 2;
const JOIN: i32 = 3;
const COLLECTIVE: i32 = 4;

/// Few and small tensors.
const QUICK: [&str; 6] = ["-b", "64", "-e", "64", "-n", "2"];
/// Runs until something happens.
const LONG: [&str; 6] = ["-b", "1M", "-e", "1M", "-n", "1000000"];

/// Arguments of a single rank, its exit code, and its line, in which DAEMON is the aggregator.
const ALONE: &[(&[&str], i32, &str)] = &[
    (&["bench"], USAGE, "error: rank is not set; give this process's, or set RANK"),
    (
        &["bench", "--rank", "0"],
        USAGE,
        "error: world_size is not set; give the number of ranks, or set WORLD_SIZE",
    ),
    (&["bench", "--rank", "-1"], USAGE, "error: unexpected argument '-1' found (see --help)"),
    (
        &["bench", "--rank", "0", "--world-size", "0"],
        USAGE,
        "error: invalid value '0' for '--world-size <N>': 1 to 1024 are allowed (see --help)",
    ),
    (
        &["bench", "--rank", "0", "--world-size", "1025"],
        USAGE,
        "error: invalid value '1025' for '--world-size <N>': 1 to 1024 are allowed (see --help)",
    ),
    (
        &["bench", "--rank", "2", "--world-size", "2"],
        USAGE,
        "error: rank is 2 of 2; 0 to world size - 1 are allowed",
    ),
    (
        &["bench", "--rank", "0", "--world-size", "1", "--aggregator", "127.0.0.1:1"],
        JOIN,
        "error: no aggregator answers at 127.0.0.1:1 (Connection refused (os error 111)); start \
         switchml-aggregator there, \
             or give the address where it runs",
    ),
    (
        &["bench", "--rank", "0", "--world-size", "1", "--aggregator", "127.0.0.1:x"],
        USAGE,
        "error: aggregator address \"127.0.0.1:x\": \"x\" is not a port from 1 to 65535; give \
         host, host:port, an IP address or [IPv6]:port",
    ),
    (
        &["bench", "--rank", "1", "--world-size", "4", "--join-timeout", "0.5", "--job", "lonely"],
        JOIN,
        "error: job \"lonely\" did not start within the timeout of 0.5 s: ranks 0, 2 and 3 of 4 \
         are missing at the aggregator DAEMON; start them with the same job name, world size and \
         aggregators",
    ),
    (
        &["bench", "-b", "2M", "-e", "1M"],
        USAGE,
        "error: --minbytes 2097152 is more than --maxbytes 1048576",
    ),
    (
        &["bench", "-b", "2"],
        USAGE,
        "error: --minbytes 2 is too small: one f32 takes 4 bytes; give that or more",
    ),
    (
        &["bench", "--dtype", "f64", "--op", "max"],
        USAGE,
        "error: max of f64 is not available; convert to f32 to reduce with \
         max",
    ),
    (
        &["bench", "--rank", "0", "--world-size", "1", "--json", "/no/such/folder/x"],
        USAGE,
        "error: --json /no/such/folder/x: No such file or directory (os error 2)",
    ),
];

#[test]
fn one_rank_alone() {
    let daemon = Daemon::start();
    for &(arguments, code, line) in ALONE {
        assert_eq!(
            failure(&mut daemon.worker(arguments)),
            (code, line.replace("DAEMON", &daemon.address)),
            "{arguments:?}"
        );
    }
}

#[test]
fn no_aggregator_for_the_doctor() {
    let daemon = Daemon::start();
    let mut doctor = daemon.worker(&["doctor", "--aggregator", "127.0.0.1:1"]);
    assert_eq!(
        failure(&mut doctor),
        (JOIN, "error: the check of the control plane failed".to_owned())
    );
    let text = doctor.stdout();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert_eq!(lines[2], "WHY   nobody listens: 127.0.0.1 is up, and refuses TCP to port 1");
    assert_eq!(
        lines[3],
        "FIX   on 127.0.0.1: switchml-aggregator --iface INTERFACE --control 0.0.0.0:1"
    );
    assert!(lines[0].starts_with("ok ") && lines[1].starts_with("FAIL"), "{text}");
    assert!(lines[1].contains("no aggregator answers at 127.0.0.1:1"), "{text}");
}

#[test]
fn a_rank_twice() {
    let daemon = Daemon::start();
    let mut first = daemon.bench("twice", 0, 2, &QUICK);
    daemon.wait_for_job("twice", "1 of 2");
    let (code, line) = failure(&mut daemon.bench("twice", 0, 2, &QUICK));
    assert_eq!(code, JOIN);
    let start = "error: job \"twice\" already has rank 0, from 127.0.0.1, host ";
    assert!(line.starts_with(start), "{line}");
    // The job goes on as if nothing had been.
    daemon.bench("twice", 1, 2, &QUICK).wait_success(PATIENCE).unwrap();
    first.wait_success(PATIENCE).unwrap();
}

#[test]
fn two_jobs_of_one_name_with_different_sizes() {
    let daemon = Daemon::start();
    let mut first = daemon.bench("same", 0, 2, &QUICK);
    daemon.wait_for_job("same", "1 of 2");
    let (code, line) = failure(&mut daemon.bench("same", 1, 3, &QUICK));
    assert_eq!(code, JOIN);
    assert!(line.starts_with("error: job \"same\" has world size 2, not 3;"), "{line}");
    daemon.bench("same", 1, 2, &QUICK).wait_success(PATIENCE).unwrap();
    first.wait_success(PATIENCE).unwrap();
}

#[test]
fn different_calls() {
    let daemon = Daemon::start();
    let mut ranks = [
        daemon.bench("a", 0, 2, &QUICK),
        daemon.bench("a", 1, 2, &["-b", "64", "-e", "64", "-n", "2", "--op", "max"]),
    ];
    for rank in &mut ranks {
        let (code, line) = failure(rank);
        assert_eq!(code, COLLECTIVE, "{line}");
        assert!(line.contains("made different calls"), "{line}");
    }
}

#[test]
fn a_rank_dies() {
    let daemon = Daemon::start();
    let mut ranks: Vec<_> = (0..3).map(|rank| daemon.bench("dies", rank, 3, &LONG)).collect();
    daemon.wait_for_job("dies", "started");
    std::thread::sleep(Duration::from_millis(300));
    ranks.pop().unwrap().kill().unwrap();
    let begin = Instant::now();
    for rank in &mut ranks {
        let (code, line) = failure(rank);
        assert_eq!(code, COLLECTIVE, "{line}");
        assert!(line.contains("rank 2"), "{line}");
    }
    assert!(begin.elapsed() < PATIENCE / 2, "not at the timeout, which is 30 minutes");
}

#[test]
fn a_rank_hangs() {
    let daemon = Daemon::start();
    let arguments = [&LONG[..], &["--deadline", "1"]].concat();
    let mut ranks: Vec<_> = (0..3).map(|rank| daemon.bench("hangs", rank, 3, &arguments)).collect();
    daemon.wait_for_job("hangs", "started");
    std::thread::sleep(Duration::from_millis(300));
    ranks[1].signal(Signal::STOP).unwrap();
    for rank in [0, 2] {
        let (code, line) = failure(&mut ranks[rank]);
        assert_eq!(code, COLLECTIVE, "{line}");
        assert!(line.contains("rank 1"), "{line}");
    }
}

#[test]
fn the_aggregator_dies() {
    let mut daemon = Daemon::start();
    let mut ranks: Vec<_> = (0..2).map(|rank| daemon.bench("orphans", rank, 2, &LONG)).collect();
    daemon.wait_for_job("orphans", "started");
    std::thread::sleep(Duration::from_millis(300));
    daemon.aggregator.process().kill().unwrap();
    for rank in &mut ranks {
        let (code, line) = failure(rank);
        assert_eq!(code, COLLECTIVE, "{line}");
        assert!(
            line.contains(&format!("lost the connection to the aggregator at {}", daemon.address)),
            "{line}"
        );
    }
}

/// Of sizes, and of a training step: 2^42 bytes, and 10^12 elements.
#[test]
fn tensors_that_no_memory_holds() {
    let daemon = Daemon::start();
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "layer_index,numel,forward_pass_ns,backward_pass_ns\na,1000000000000,1,1\n";
    std::fs::write(&file, text).unwrap();
    let step = ["--trace", file.path().to_str().unwrap()];
    for (tensors, bytes) in
        [(&["-b", "4096G", "-e", "4096G"][..], 4_398_046_511_104_u64), (&step, 4_000_000_000_000)]
    {
        let alone = ["bench", "--rank", "0", "--world-size", "1"];
        let (code, line) = failure(&mut daemon.worker(&[&alone, tensors].concat()));
        let start =
            format!("error: the tensors take {bytes} bytes on each rank, and this host has");
        assert!(code == USAGE && line.starts_with(&start), "{code}: {line}");
    }
}
