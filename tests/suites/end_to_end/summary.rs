//! The line that rank 0 writes when its job starts. Its numbers are those that
//! [`local_results`](crate::local_results) measures.

use std::process::Command;

use switchml_rack::{Aggregator, Binaries, Ip, Process, Rack, needs_racks};

use crate::PATIENCE;
use crate::local_results::rack;

/// Runs a benchmark with so many ranks on each host, and returns what each rank writes to the
/// standard error stream.
fn written(rack: &Rack, per_host: &[usize], summary: &str, options: &[&str]) -> Vec<String> {
    let binaries = Binaries::for_test().unwrap();
    let hosts = per_host.iter().enumerate().flat_map(|(host, ranks)| vec![host; *ranks]);
    let world_size = per_host.iter().sum::<usize>().to_string();
    let start = |(rank, host): (usize, usize)| {
        let mut command = Command::new(&binaries.worker);
        command.env_remove("SWITCHML_AGGREGATOR").env("SWITCHML_SUMMARY", summary);
        command.env("MASTER_ADDR", Rack::worker_address(0).to_string()).env("MASTER_PORT", "29500");
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", &world_size);
        command.args(["bench", "-b", "1M", "-e", "1M", "-n", "1", "-w", "0", "--json", "-"]);
        command.args(options);
        rack.worker(host).spawn(&format!("rank {rank}"), command).unwrap()
    };
    let mut ranks: Vec<Process> = hosts.enumerate().map(start).collect();
    let end = |rank: &mut Process| {
        rank.wait_success(PATIENCE).unwrap();
        rank.stderr()
    };
    ranks.iter_mut().map(end).collect()
}

/// Rank 0 writes one line, and the others none.
fn is_written(found: &[String], line: &str) {
    assert_eq!(found[0], format!("switchml: {line}\n"));
    assert!(found[1..].iter().all(String::is_empty), "{found:?}");
}

/// 2 * (2 - 1) / 2, and 2 * (4 - 1) / 4; 24 / 18 with a spare machine.
#[test]
fn ranks_without_an_aggregator_say_what_their_links_carry() {
    needs_racks!();
    let load = "In a sum, the link of each host carries";
    let halved = "times the tensor each way. Sums in 16 bits carry half of that.";
    let two = rack(2, Ip::V4);
    is_written(
        &written(&two, &[2, 2], "1", &[]),
        &format!(
            "4 ranks on 2 hosts serve each other; ranks of a host share memory. {load} 1.00 \
             {halved}"
        ),
    );
    is_written(
        &written(&two, &[2, 2], "1", &["--local-sums", "0"]),
        &format!(
            "4 ranks on 2 hosts serve each other; each rank sends for itself, because local sums \
             are switched off. {load} 2.00 {halved} With shared memory it is 1.00 times."
        ),
    );
    is_written(
        &written(&rack(4, Ip::V4), &[1, 1, 1, 1], "1", &[]),
        &format!(
            "4 ranks on 4 hosts serve each other. {load} 1.50 {halved} An aggregator on a spare \
             machine lowers it to 1.33 times. An aggregator on a switch host with a port for each \
             host lowers it to 1.00 times."
        ),
    );
}

#[test]
fn ranks_of_one_host_say_that_they_need_no_link() {
    needs_racks!();
    let found = written(&rack(1, Ip::V4), &[4], "1", &[]);
    is_written(&found, "4 ranks on 1 host add up in shared memory. No link carries values.");
}

/// The aggregator has a port for each host.
#[test]
fn ranks_with_an_aggregator_say_what_all_links_carry() {
    needs_racks!();
    let rack = rack(2, Ip::V4);
    let aggregator = Aggregator::software_in_rack(&Binaries::for_test().unwrap(), &rack).unwrap();
    let control = aggregator.control();
    let options = ["--aggregator", control, "--own-hosts", "0"];
    is_written(
        &written(&rack, &[2, 2], "1", &options),
        &format!(
            "4 ranks on 2 hosts use the aggregator {control}; ranks of a host share memory. In a \
             sum, the link of each host carries 1.00 times the tensor each way, each link of an \
             aggregator 1.00 times. Sums in 16 bits carry half of that."
        ),
    );
}

#[test]
fn the_line_may_be_switched_off() {
    needs_racks!();
    let found = written(&rack(1, Ip::V4), &[2], "0", &[]);
    assert!(found.iter().all(String::is_empty), "{found:?}");
}
