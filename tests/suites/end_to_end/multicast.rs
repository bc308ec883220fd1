//! A network that does not bring the group's packets to some or all of the ranks, or stops to:
//! these get copies. Where the operator insists on multicast, such a rank asks for each result, and
//! all are slow.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use switchml_rack::{Mode, Namespace, Process, RackOptions, in_both_modes};

use crate::loops::Loops;
use crate::{Cluster, PATIENCE, in_words, report};

in_both_modes! {
    a_rank_that_gets_no_multicast_gets_copies,
    without_multicast_all_get_copies_also_after_a_restart,
    a_rank_that_multicast_stops_reaching_gets_copies,
    a_rank_that_misses_the_group_of_one_thread_gets_copies_in_all,
    status_says_how_results_reach_which_rank_and_why,
    a_rank_that_gets_no_multicast_says_so_once,
    the_operator_and_the_doctor_learn_which_rank_it_is,
}

const RANKS: usize = 3;
/// The rank without multicast.
const CUT_OFF: usize = 1;

/// Drops frames that come in for a multicast MAC, like a switch that knows no listener at that
/// port: the lowest bit of the address's first byte tells. Broadcasts pass.
pub fn block_multicast(worker: &Namespace) {
    drop_frames(worker, "4,48 0 0 0,21 0 1 1,6 0 0 2,6 0 0 4294967295");
}

/// Drops frames that come in for the MAC of a shard's group, 239.255.x.y: the first two of its last
/// four bytes are the same for all groups.
fn block_group(worker: &Namespace, shard: u32) {
    let mac = 0x5e7f_0000 | shard;
    drop_frames(worker, &format!("4,32 0 0 2,21 0 1 {mac},6 0 0 2,6 0 0 4294967295"));
}

/// Drops multicast from the aggregator, and from no other host.
pub fn block_multicast_of_the_aggregator(worker: &Namespace) {
    let mac = 0x0000_00fe;
    let program = "6,48 0 0 0,21 0 3 1,32 0 0 8,21 0 1";
    drop_frames(worker, &format!("{program} {mac},6 0 0 2,6 0 0 4294967295"));
}

/// Drops frames that come in if the program returns 2.
fn drop_frames(worker: &Namespace, program: &str) {
    for arguments in [
        ["qdisc", "add", "dev", "eth0", "clsact"].as_slice(),
        &["filter", "add", "dev", "eth0", "ingress", "bpf", "da", "bytecode", program],
    ] {
        let mut command = Command::new("tc");
        command.args(arguments);
        worker.output(command).unwrap();
    }
}

/// Runs a benchmark of more than a second. Returns the standard error of each rank.
fn said(cluster: &Cluster) -> Vec<String> {
    let arguments = ["-b", "256K", "-e", "256K", "-n", "40", "-w", "1"];
    let mut ranks = cluster.bench(RANKS, "train", &arguments);
    for rank in &mut ranks {
        rank.wait_success(PATIENCE).unwrap();
    }
    ranks.iter().map(Process::stderr).collect()
}

/// An aggregator that sends results only by multicast.
fn insisting(mode: Mode) -> Cluster {
    let options = RackOptions { workers: RANKS, mode, ..RackOptions::default() };
    Cluster::with_options(options, &["--fanout", "multicast"])
}

/// The number of results that ranks asked for again. Ranks ask for results that got lost; here none
/// does.
fn asked_again(cluster: &Cluster) -> u64 {
    cluster.counter("replayed")
}

/// The daemon's lines about copies; jobs without copies have none.
pub fn lines_of_copies(cluster: &mut Cluster) -> Vec<String> {
    let log = cluster.aggregator.process();
    let lines = [log.stdout(), log.stderr()].concat();
    lines.lines().filter(|line| line.contains("copies")).map(str::to_owned).collect()
}

/// How results reach ranks, as `switchml-aggregator status` prints it.
fn ways(cluster: &Cluster) -> Vec<String> {
    let status = cluster.ask(&["status", "--connect", cluster.aggregator.control()]);
    let lines = status.lines().filter_map(|line| line.strip_prefix("results "));
    lines.map(|line| line.trim().to_owned()).collect()
}

fn a_rank_that_gets_no_multicast_gets_copies(mode: Mode) {
    let mut cluster = Cluster::in_mode(RANKS, mode);
    block_multicast(cluster.rack.worker(CUT_OFF));
    assert_eq!(said(&cluster), [""; RANKS], "all is well");
    let line = "copies of results for ranks that multicast does not reach: 1";
    cluster.aggregator.process().wait_for_line(line, PATIENCE).unwrap();
    let loops = Loops::start(&cluster, "train", PATIENCE);
    cluster.wait_for_job(&["train", "(copies: 1)"]);
    for ended in loops.stop() {
        assert_eq!(ended.result, Ok(()));
    }
    let (code, text) = doctor(&cluster, CUT_OFF);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("copies for this rank alone: multicast does not reach it"), "{text}");
    let (completed, asked) = (cluster.counter("completed"), asked_again(&cluster));
    assert!(asked * 20 < completed, "{asked} of {completed} results were asked for again");
    let of_jobs = lines_of_copies(&mut cluster);
    let of_train = of_jobs.iter().filter(|line| line.contains("\"train\""));
    assert_eq!(of_train.count(), 2, "one for each job of that name: {of_jobs:?}");
    cluster.stop();
}

/// The job is slow for half a second, not for the rest of its time.
fn a_rank_that_multicast_stops_reaching_gets_copies(mode: Mode) {
    let mut cluster = Cluster::in_mode(RANKS, mode);
    let endless = ["-b", "256K", "-e", "256K", "-n", "1000000", "-w", "1"];
    let mut ranks = cluster.bench(RANKS, "train", &endless);
    cluster.wait_for_job(&["train", "started", "3 of 3"]);
    assert_eq!(lines_of_copies(&mut cluster), [""; 0]);
    block_multicast(cluster.rack.worker(CUT_OFF));
    cluster.wait_for_job(&["train", "(copies: 1)"]);
    assert_eq!(
        ways(&cluster),
        [
            "job \"train\", ranks 0 2: by multicast",
            "job \"train\", ranks 1: by copies (multicast stopped reaching them)",
        ]
    );
    let (completed, asked) = (cluster.counter("completed"), asked_again(&cluster));
    let begin = Instant::now();
    let since = loop {
        let since = cluster.counter("completed") - completed;
        if since > 20_000 {
            break since;
        }
        assert!(begin.elapsed() < PATIENCE, "{since} rounds in {PATIENCE:?}");
        sleep(Duration::from_millis(20));
    };
    let asked = asked_again(&cluster) - asked;
    assert!(asked * 20 < since, "{asked} of {since} results were asked for again");
    for rank in &mut ranks {
        rank.kill().unwrap();
    }
    // The rank may also report that another one was killed.
    let said = ranks[CUT_OFF].stderr();
    let said: Vec<_> = said.lines().filter(|line| line.contains("multicast")).collect();
    let line = "switchml: rank 1 of job \"train\": results of group 239.255.0.0, UDP port 48866, \
                no longer come by multicast; this rank asks the aggregator for copies";
    assert!(said.len() == 1 && said[0].starts_with(line), "{said:?}");
    let [line] = &lines_of_copies(&mut cluster)[..] else { panic!("one line") };
    let lost = format!("{} gets no results by multicast any more", in_words(1, "10.88.0.2"));
    assert!(line.contains(&lost), "{line}");
    cluster.stop();
}

/// Rule 11.7: it is enough that one of two groups does not arrive.
fn a_rank_that_misses_the_group_of_one_thread_gets_copies_in_all(mode: Mode) {
    let mut cluster = Cluster::in_mode(RANKS, mode);
    // Further shards have the highest numbers.
    let last = switchml_protocol::bpf_types::maps::MAX_SHARDS as u32 - 1;
    block_group(cluster.rack.worker(CUT_OFF), last);
    let arguments = ["-b", "1M", "-e", "1M", "-n", "40", "-w", "1", "--data-threads", "2"];
    let report = report(cluster.bench(RANKS, "train", &arguments));
    assert_eq!(report["data_threads"], 2);
    for row in report["rows"].as_array().unwrap() {
        let wrong = [&row["out_of_place"]["wrong"], &row["in_place"]["wrong"]];
        assert_eq!(wrong, [0, 0], "{row}");
    }
    let line = "copies of results for ranks that multicast does not reach: 1";
    cluster.aggregator.process().wait_for_line(line, PATIENCE).unwrap();
    let (completed, asked) = (cluster.counter("completed"), asked_again(&cluster));
    assert!(asked * 20 < completed, "{asked} of {completed} results were asked for again");
    cluster.stop();
}

fn status_says_how_results_reach_which_rank_and_why(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    block_multicast(cluster.rack.worker(CUT_OFF));
    assert_eq!(ways(&cluster), [""; 0]);
    let loops = Loops::start(&cluster, "train", PATIENCE);
    assert_eq!(
        ways(&cluster),
        [
            "job \"train\", ranks 0 2: by multicast",
            "job \"train\", ranks 1: by copies (multicast did not reach them when they joined)",
        ]
    );
    drop(loops.stop());
    let results = cluster.run_ranks(RANKS, "again", |_, builder| {
        let communicator = builder.connect().unwrap();
        let results = communicator.info().stripes[0].results();
        communicator.close().unwrap();
        results
    });
    let by_group = "by multicast to 239.255.0.0:48866";
    let by_copies = "by copies for this rank alone: multicast does not reach it";
    assert_eq!(results, [by_group, by_copies, by_group]);
    cluster.stop();

    let options = RackOptions { workers: RANKS, mode, ..RackOptions::default() };
    let cluster = Cluster::with_options(options, &["--fanout", "unicast"]);
    let loops = Loops::start(&cluster, "train", PATIENCE);
    let line = "job \"train\", ranks 0 1 2: by copies (all ranks get their own)";
    assert_eq!(ways(&cluster), [line]);
    drop(loops.stop());
    cluster.stop();
}

fn without_multicast_all_get_copies_also_after_a_restart(mode: Mode) {
    let mut cluster = Cluster::in_mode(RANKS, mode);
    cluster.rack.workers().iter().for_each(block_multicast);
    let loops = Loops::start(&cluster, "train", PATIENCE);
    cluster.wait_for_job(&["train", "(copies: 0 1 2)"]);
    cluster.aggregator.process().kill().unwrap();
    cluster.restart();
    cluster.wait_for_job(&["train", "(copies: 0 1 2)"]);
    loops.wait_for_progress(5);
    for ended in loops.stop() {
        assert_eq!(ended.result, Ok(()));
    }
    cluster.stop();
}

fn a_rank_that_gets_no_multicast_says_so_once(mode: Mode) {
    let cluster = insisting(mode);
    assert_eq!(said(&cluster), [""; RANKS], "all is well");
    block_multicast(cluster.rack.worker(CUT_OFF));
    let said = said(&cluster);
    for (rank, said) in said.iter().enumerate() {
        if rank == CUT_OFF {
            let begin = "switchml: rank 1 of job \"train\": no result comes by multicast; this \
                         rank has to ask for a copy of each";
            assert!(said.starts_with(begin) && said.lines().count() == 1, "{said}");
            assert!(said.contains("Make the network deliver group 239."), "{said}");
        } else {
            assert_eq!(said, "", "rank {rank}");
        }
    }
    cluster.stop();
}

fn doctor(cluster: &Cluster, rank: usize) -> (Option<i32>, String) {
    let mut command = Command::new(&cluster.binaries.worker);
    command.args(["doctor", "--aggregator", cluster.aggregator.control()]);
    let mut doctor = cluster.rack.worker(rank).spawn("doctor", command).unwrap();
    let status = doctor.wait(PATIENCE).unwrap();
    (status.code(), doctor.stdout())
}

fn the_operator_and_the_doctor_learn_which_rank_it_is(mode: Mode) {
    let mut cluster = insisting(mode);
    let (code, text) = doctor(&cluster, 0);
    assert_eq!(code, Some(0), "{text}");
    block_multicast(cluster.rack.worker(CUT_OFF));
    let loops = Loops::start(&cluster, "train", PATIENCE);
    cluster.wait_for_job(&["train", "(no multicast: 1)"]);
    let ways = ways(&cluster);
    assert!(ways[0] == "job \"train\", ranks 0 2: by multicast" && ways.len() == 2, "{ways:?}");
    assert!(ways[1].starts_with("job \"train\", ranks 1: by replays, slowly ("), "{ways:?}");
    let line = format!("\"train\": {} gets no results by multicast", in_words(1, "10.88.0.2"));
    cluster.aggregator.process().wait_for_line(&line, PATIENCE).unwrap();
    let (code, text) = doctor(&cluster, 0);
    assert_eq!(code, Some(1), "{text}");
    let failed = text.lines().find(|line| line.starts_with("FAIL  other ranks")).expect("a step");
    let expected = "results by multicast do not arrive at rank 1 (10.88.0.2) of job \"train\"";
    assert!(failed.contains(expected), "{text}");
    assert!(text.contains("\nFIX   on the aggregator's host: switchml-aggregator --fanout auto "));
    let (code, text) = doctor(&cluster, CUT_OFF);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("\nFAIL  results"), "{text}");
    for ended in loops.stop() {
        assert_eq!(ended.result, Ok(()));
    }
    cluster.stop();
}
