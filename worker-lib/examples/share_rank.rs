//! One rank of a job of `cargo xtask bench --share`: sums tensors for a given time, with or without
//! pauses, and prints the number of bytes. `xtask/src/bench/share.rs` has its commands.
//!
//! Arguments: the aggregator's control plane, name of the job, rank, number of ranks, file of
//! commands.

use std::error::Error;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;
use switchml_worker::{Communicator, ReduceOp};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [aggregator, job, rank, ranks, commands] = arguments.as_slice() else {
        return Err("arguments: control plane, job, rank, number of ranks, file of commands".into());
    };
    let communicator = Communicator::builder()
        .aggregator(aggregator)
        .job(job)
        .rank(rank.parse()?)
        .world_size(ranks.parse()?)
        .connect()?;
    for line in BufReader::new(File::open(commands)?).lines() {
        let line = line?;
        let words: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [number, milliseconds, elements, burst, pause] = words[..] else {
            return Err(format!("not a command: {line}").into());
        };
        let pause = |after: u64| {
            (burst > 0 && after.is_multiple_of(burst)).then(|| random(job, after, 2 * pause))
        };
        let time = Duration::from_millis(milliseconds);
        let (calls, seconds, wrong) = add_up(&communicator, elements as usize, time, pause)?;
        let bytes = calls * elements * 4;
        if communicator.info().rank == 0 {
            println!(
                "{}",
                json!({"command": number, "bytes": bytes, "seconds": seconds, "wrong": wrong})
            );
        }
    }
    Ok(communicator.close()?)
}

/// Adds up until the time is over; calls, seconds, and elements that were wrong. All ranks pause
/// after the same calls, and for as long.
fn add_up(
    communicator: &Communicator,
    elements: usize,
    time: Duration,
    pause: impl Fn(u64) -> Option<u64>,
) -> Result<(u64, f64, usize), Box<dyn Error>> {
    let info = communicator.info();
    let (rank, ranks) = (info.rank as i32, info.world_size as i32);
    communicator.barrier()?;
    let begin = Instant::now();
    let (mut calls, mut wrong) = (0, 0);
    loop {
        // The first element counts the ranks that want to stop.
        let mut values: Vec<i32> = (0..elements as i32).map(|i| i + rank).collect();
        values[0] = i32::from(begin.elapsed() >= time);
        communicator.all_reduce(&mut values, ReduceOp::Sum)?;
        let others = ranks * (ranks - 1) / 2;
        let sums = values.iter().zip(0..).skip(1);
        wrong += sums.filter(|&(sum, i)| *sum != ranks * i + others).count();
        if values[0] > 0 {
            return Ok((calls, begin.elapsed().as_secs_f64(), wrong));
        }
        calls += 1;
        sleep(Duration::from_millis(pause(calls).unwrap_or(0)));
    }
}

/// A number below `end`, the same on all ranks; 0 if that is 0.
fn random(job: &str, call: u64, end: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (job, call).hash(&mut hasher);
    hasher.finish().checked_rem(end).unwrap_or(0)
}
