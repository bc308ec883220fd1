//! The daemon is killed: jobs continue without it, and the next daemon takes over; or another host
//! does, and every rank hears of it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use switchml_rack::{Mode, Process, in_both_modes, wait_until};
use switchml_worker::control;
use switchml_worker::{Error, ReduceOp};

use crate::loops::Loops;
use crate::{Cluster, PATIENCE, SOON};

in_both_modes! {
    collectives_go_on_without_the_daemon_and_with_the_next,
    a_job_that_ends_while_the_daemon_is_away_is_gone_after_it_is_back,
    a_rank_that_is_killed_after_a_restart_is_named,
    a_rank_that_is_killed_while_the_daemon_is_away_is_named,
    when_the_aggregator_is_replaced_ranks_hear_it_and_can_join_again,
    an_aggregator_that_is_gone_for_good_is_named_at_the_deadline,
    a_job_that_has_not_started_ends_with_the_daemon,
    a_data_plane_that_cannot_be_taken_over_is_left_alone,
    the_next_daemon_serves_the_interfaces_that_it_is_given,
    an_interface_that_was_made_again_without_a_daemon_is_named,
}

const RANKS: usize = 3;
/// The rank that is killed.
const LOST: usize = 2;
const DEADLINE: Duration = Duration::from_secs(5);
/// How long a restarted daemon waits for ranks to come back.
const GRACE: Duration = Duration::from_secs(5);
/// Exit code of `switchml-worker` for a collective that failed.
const COLLECTIVE_FAILED: i32 = 4;
const ALL_HERE: &str = "3 of 3";

fn kill(cluster: &mut Cluster) {
    cluster.aggregator.process().kill().unwrap();
}

/// Every rank has left cleanly, after at least this many sums.
fn all_went_well(ended: Vec<crate::loops::Ended>, rounds: u64) {
    for (rank, ended) in ended.into_iter().enumerate() {
        assert_eq!(ended.result, Ok(()), "rank {rank}");
        assert!(ended.rounds >= rounds, "rank {rank}: {} rounds", ended.rounds);
    }
}

fn collectives_go_on_without_the_daemon_and_with_the_next(mode: Mode) {
    let mut cluster = Cluster::in_mode(RANKS, mode);
    let loops = Loops::start(&cluster, "train", DEADLINE);
    cluster.wait_for_job(&["train", "started", ALL_HERE]);
    // The daemon is killed twice: a job that was taken over can be taken over again.
    for _ in 0..2 {
        kill(&mut cluster);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(2) {
            loops.wait_for_progress(3);
        }
        cluster.restart();
        cluster.wait_for_job(&["train", "started", ALL_HERE]);
        loops.wait_for_progress(3);
    }
    // No rank counts as dead after the time to come back.
    sleep(GRACE + Duration::from_secs(1));
    cluster.wait_for_job(&["train", "started", ALL_HERE]);
    all_went_well(loops.stop(), 15);
    assert_eq!(cluster.list_jobs().lines().count(), 1, "a line of headings, and no job");
    assert!(cluster.has_all_slots_free());

    // The next job is not affected by the first.
    let loops = Loops::start(&cluster, "train", DEADLINE);
    all_went_well(loops.stop(), 5);
    cluster.stop();
}

fn a_job_that_ends_while_the_daemon_is_away_is_gone_after_it_is_back(mode: Mode) {
    let mut cluster = Cluster::in_mode(RANKS, mode);
    let loops = Loops::start(&cluster, "train", DEADLINE);
    kill(&mut cluster);
    all_went_well(loops.stop(), 5);
    cluster.restart();
    wait_until!(SOON, !cluster.list_jobs().contains("train"), "its slots are lent still");
    assert!(cluster.has_all_slots_free());
    cluster.stop();
}

/// A benchmark that runs for long, as processes.
fn bench(cluster: &Cluster) -> Vec<Process> {
    let ranks = cluster.bench(RANKS, "long", &["-b", "1M", "-e", "1M", "-n", "100000"]);
    cluster.wait_for_job(&["long", "started", ALL_HERE]);
    sleep(Duration::from_millis(500));
    ranks
}

/// All ranks except the lost one end soon, each with one line that names it.
fn others_name_it(mut ranks: Vec<Process>) {
    let begin = Instant::now();
    for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != LOST) {
        let status = process.wait(SOON.saturating_sub(begin.elapsed())).unwrap();
        let stderr = process.stderr();
        assert_eq!(status.code(), Some(COLLECTIVE_FAILED), "rank {rank}: {stderr}");
        // Other lines say which ranks the process waited for.
        let reasons = stderr.lines().filter(|line| !line.starts_with("switchml: "));
        assert_eq!(reasons.count(), 1, "rank {rank}:\n{stderr}");
        assert!(stderr.contains(&format!("rank {LOST}")), "rank {rank}: {stderr}");
    }
}

fn a_rank_that_is_killed_after_a_restart_is_named(mode: Mode) {
    let mut cluster = Cluster::in_mode(RANKS, mode);
    let mut ranks = bench(&cluster);
    kill(&mut cluster);
    sleep(Duration::from_secs(1));
    cluster.restart();
    cluster.wait_for_job(&["long", "started", ALL_HERE]);
    ranks[LOST].kill().unwrap();
    others_name_it(ranks);
    cluster.stop();
}

/// Without a daemon, only the data plane tells which rank is missing, and nothing tells whether
/// that rank lives. A daemon that comes back hears nothing of that rank.
fn a_rank_that_is_killed_while_the_daemon_is_away_is_named(mode: Mode) {
    // One way in each mode; the mode makes no difference here.
    let comes_back = mode == Mode::Native;
    let mut cluster = Cluster::in_mode(RANKS, mode);
    let mut ranks = bench(&cluster);
    kill(&mut cluster);
    ranks[LOST].kill().unwrap();
    if comes_back {
        cluster.restart();
    }
    others_name_it(ranks);
    if comes_back {
        cluster.stop();
    }
}

/// Another daemon at the same address does not know the job, as if it ran on another host.
fn when_the_aggregator_is_replaced_ranks_hear_it_and_can_join_again(mode: Mode) {
    let mut cluster = Cluster::in_mode(RANKS, mode);
    let loops = Loops::start(&cluster, "train", 4 * DEADLINE);
    kill(&mut cluster);
    assert_eq!(cluster.ask(&["detach"]), "removed /sys/fs/bpf/switchml\n");
    assert_eq!(crate::left_behind(cluster.rack.switch()), "");
    cluster.restart();
    let up = Instant::now();
    for (rank, ended) in loops.wait().into_iter().enumerate() {
        let error = ended.result.expect_err("the job is gone");
        assert!(
            matches!(error, Error::Control(control::Error::Forgotten { .. })),
            "rank {rank}: {error}"
        );
        assert!(
            error.to_string().contains("has restarted, and does not know this job"),
            "rank {rank}: {error}"
        );
        assert!(ended.at.saturating_duration_since(up) < SOON, "rank {rank}");
    }
    let loops = Loops::start(&cluster, "train", DEADLINE);
    all_went_well(loops.stop(), 5);
    cluster.stop();
}

/// Without the data plane and without a new aggregator, the deadline ends the job.
fn an_aggregator_that_is_gone_for_good_is_named_at_the_deadline(mode: Mode) {
    let deadline = Duration::from_secs(2);
    let mut cluster = Cluster::in_mode(RANKS, mode);
    let loops = Loops::start(&cluster, "train", deadline);
    kill(&mut cluster);
    cluster.ask(&["detach"]);
    let begin = Instant::now();
    for (rank, ended) in loops.wait().into_iter().enumerate() {
        let error = ended.result.expect_err("nobody adds up");
        assert!(matches!(error, Error::AggregatorSilent { .. }), "rank {rank}: {error}");
        assert!(ended.at.saturating_duration_since(begin) < SOON, "rank {rank}");
    }
}

/// Ranks that wait for others, or for the start, need the daemon.
fn a_job_that_has_not_started_ends_with_the_daemon(mode: Mode) {
    let mut cluster = Cluster::in_mode(RANKS, mode);
    let builder = switchml_worker::Communicator::builder()
        .aggregator(cluster.aggregator.control())
        .job("half");
    let waiting = cluster.rack.worker(0).run(move || {
        std::thread::spawn(move || {
            builder.rank(0).world_size(RANKS as u32).connect().err().expect("nobody else comes")
        })
    });
    cluster.wait_for_job(&["half", "waiting"]);
    kill(&mut cluster);
    let error = waiting.join().unwrap();
    assert!(matches!(error, Error::Control(control::Error::Lost { .. })), "{error}");
    cluster.restart();
    assert!(!cluster.list_jobs().contains("half"));
    let sums = cluster.run_ranks(RANKS, "half", |rank, builder| {
        let communicator = builder.connect().unwrap();
        let mut values = vec![rank as i32; 1000];
        communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        communicator.close().unwrap();
        values
    });
    assert!(sums.iter().flatten().all(|&sum| sum == 3));
    cluster.stop();
}

/// A second daemon with the same folder is refused, and so is one that cannot continue with the
/// state there; both say what to do.
fn a_data_plane_that_cannot_be_taken_over_is_left_alone(mode: Mode) {
    let mut cluster = Cluster::in_mode(RANKS, mode);
    let loops = Loops::start(&cluster, "train", DEADLINE);
    let refusal = |cluster: &Cluster, arguments: &[&str]| {
        let mut command = std::process::Command::new(&cluster.binaries.aggregator);
        command
            .args(["--control", "10.88.0.254:0", "--iface", "p0", "--mode", mode.argument()])
            .args(arguments);
        let mut other = cluster.rack.switch().spawn("another aggregator", command).unwrap();
        assert_eq!(other.wait(PATIENCE).unwrap().code(), Some(1));
        other.stderr().lines().last().unwrap_or_default().to_owned()
    };
    let second = refusal(&cluster, &[]);
    assert!(second.contains("another aggregator runs with \"/sys/fs/bpf/switchml\""), "{second}");
    let mut detach = std::process::Command::new(&cluster.binaries.aggregator);
    detach.arg("detach");
    let mut detach = cluster.rack.switch().spawn("detach", detach).unwrap();
    assert_eq!(detach.wait(PATIENCE).unwrap().code(), Some(1));
    assert!(detach.stderr().contains("an aggregator runs with"), "{}", detach.stderr());

    kill(&mut cluster);
    let other = refusal(&cluster, &["--data-port", "5000"]);
    assert!(other.contains("with data port 48864, not 5000;"), "{other}");
    assert!(
        other.contains("`switchml-aggregator detach --pin-dir /sys/fs/bpf/switchml`"),
        "{other}"
    );
    let nowhere = refusal(&cluster, &["--pin-dir", "/tmp/switchml"]);
    assert!(nowhere.contains("\"/tmp/switchml\" is in no BPF file system"), "{nowhere}");
    // None of these disturbs the job.
    loops.wait_for_progress(3);
    cluster.restart();
    cluster.wait_for_job(&["train", "started", ALL_HERE]);
    all_went_well(loops.stop(), 8);
    cluster.stop();
}

/// The list of interfaces may change with the daemon: interfaces that are left out are no longer
/// served.
fn the_next_daemon_serves_the_interfaces_that_it_is_given(mode: Mode) {
    let mut cluster = Cluster::in_mode(RANKS, mode);
    // Rank 1 hears from the next daemon why nobody answers it, however late that is on a busy
    // machine; it does not give up before.
    let loops = Loops::start(&cluster, "train", PATIENCE);
    kill(&mut cluster);
    let control = cluster.aggregator.control().to_owned();
    let mut command = std::process::Command::new(&cluster.binaries.aggregator);
    command.args([
        "--control",
        &control,
        "--iface",
        "p0",
        "--iface",
        "p2",
        "--mode",
        mode.argument(),
    ]);
    let mut daemon = cluster.rack.switch().spawn("aggregator", command).unwrap();
    daemon.wait_for_line("ready: control", PATIENCE).unwrap();
    let links = crate::left_behind(cluster.rack.switch());
    assert!(links.contains("p0") && links.contains("p2") && !links.contains("p1"), "{links}");
    for (rank, ended) in loops.wait().into_iter().enumerate() {
        let error = ended.result.expect_err("rank 1 is not served any more").to_string();
        assert!(error.contains("rank 1"), "rank {rank}: {error}");
    }
    daemon.terminate(PATIENCE).unwrap();
    assert_eq!(crate::left_behind(cluster.rack.switch()), "");
}

/// A driver that is loaded again makes its interfaces anew, with other numbers.
fn an_interface_that_was_made_again_without_a_daemon_is_named(mode: Mode) {
    let mut cluster = Cluster::in_mode(RANKS, mode);
    let loops = Loops::start(&cluster, "train", SOON / 2);
    kill(&mut cluster);
    let mut command = std::process::Command::new("sh");
    // The other end of p1 in its namespace goes with it.
    let commands = "ip link delete p1 && ip link add p1 type veth peer name far && \
                    ip link set p1 master br0 up && ip link set far up && \
                    ethtool -K far gro off && ethtool -K far gro on";
    command.args(["-c", commands]);
    cluster.rack.switch().output(command).unwrap();
    cluster.restart();
    let begin = Instant::now();
    for (rank, ended) in loops.wait().into_iter().enumerate() {
        let error = ended.result.expect_err("rank 1 is cut off").to_string();
        let took = ended.at.saturating_duration_since(begin);
        assert!(took < SOON, "rank {rank}: {took:?}: {error}");
        let text = "interface p1 of the aggregator was made again while no aggregator ran";
        let is_told = error.contains(text) && error.contains("rank 1");
        assert!(rank == 1 || is_told, "rank {rank}: {error}");
    }
    cluster.stop();
}
