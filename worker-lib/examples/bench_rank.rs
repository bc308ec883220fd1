//! One rank of `cargo xtask bench` with this library, like those with Gloo and MPI in
//! `xtask/src/bench/peers`. `xtask/src/bench/team.rs` has its commands and its output.
//!
//! Arguments: the aggregator's control plane, rank, number of ranks, file of commands; and the
//! fingerprint of the aggregator's certificate, if it has one.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use switchml_worker::control::ClientTls;
use switchml_worker::{CallStats, Communicator, Precision, ReduceOp, Reduction};

/// A measurement to make.
struct Command {
    number: i64,
    /// Tensors that the calls take turns on.
    copies: usize,
    /// Elements of a tensor.
    count: usize,
    warmup: usize,
    iters: usize,
    /// Whether calls are broadcasts from rank 0, and not sums.
    broadcast: bool,
    /// One in `dense` chunks is not zero.
    dense: usize,
    /// Bits of an element in packets.
    bits: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [aggregator, rank, ranks, commands, fingerprint @ ..] = arguments.as_slice() else {
        return Err("arguments: the aggregator's control plane, rank, number of ranks, file of \
                    commands[, fingerprint]"
            .into());
    };
    let tls = ClientTls { fingerprint: fingerprint.first().cloned(), ..ClientTls::default() };
    let communicator = Communicator::builder()
        .aggregator(aggregator)
        .tls(tls)
        .job("bench")
        .rank(rank.parse()?)
        .world_size(ranks.parse()?)
        .connect()?;
    for line in BufReader::new(File::open(commands)?).lines() {
        measure(&communicator, &Command::parse(&line?)?)?;
    }
    Ok(communicator.close()?)
}

impl Command {
    fn parse(line: &str) -> Result<Self, Box<dyn Error>> {
        let words: Vec<usize> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [number, copies, count, warmup, iters, broadcast, dense, bits] = words[..] else {
            return Err(format!("not a command: {line}").into());
        };
        let (number, broadcast) = (number as i64, broadcast == 1);
        Ok(Self { number, copies, count, warmup, iters, broadcast, dense, bits })
    }

    fn sum(&self) -> Result<Reduction, String> {
        match self.bits {
            32 => Ok(Reduction::SUM),
            16 => Ok(Reduction::SUM16),
            8 => Ok(Reduction::SUM8),
            bits => Err(format!("no sums in {bits} bits")),
        }
    }
}

fn measure(communicator: &Communicator, command: &Command) -> Result<(), Box<dyn Error>> {
    let &Command { number, copies, count, warmup, iters, broadcast, dense, .. } = command;
    let sum = command.sum()?;
    let info = communicator.info();
    let lanes = usize::from(info.chunk_lanes);
    let element = |rank, i| if i / lanes % dense == 0 { element(rank, i) } else { 0.0 };
    let mine: Vec<f32> = (0..count).map(|i| element(info.rank, i)).collect();
    let mut tensors = vec![mine.clone(); copies];
    let mut stats = CallStats::default();
    let call = |tensor: &mut [f32]| {
        if broadcast {
            communicator.broadcast(tensor, 0)
        } else {
            communicator.all_reduce(tensor, sum)
        }
    };
    communicator.barrier()?;
    for i in 0..warmup {
        call(&mut tensors[i % copies])?;
    }
    communicator.barrier()?;
    let (ticks, cpu, begin) = (machine_ticks()?, process_seconds(), Instant::now());
    for i in warmup..warmup + iters {
        stats += &call(&mut tensors[i % copies])?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let (cpu, ticks_after) = (process_seconds() - cpu, machine_ticks()?);
    let last = warmup + iters - 1;
    let exact = |i| (0..info.world_size).map(|rank| element(rank, i)).sum::<f32>();
    let wrong = if broadcast {
        let result = tensors[last % copies].iter().enumerate();
        result.filter(|&(i, &found)| found != element(0, i)).count()
    } else if sum == Reduction::SUM {
        let factor = (info.world_size as f32).powi((last / copies) as i32);
        let result = tensors[last % copies].iter().enumerate();
        result.filter(|&(i, &element)| element != exact(i) * factor).count()
    } else {
        // Errors of sums of sums add up, so this looks at one.
        let mut result = mine;
        communicator.all_reduce(&mut result, sum)?;
        let error = |(i, &element): (usize, &f32)| f64::from(element) - f64::from(exact(i));
        let errors: Vec<f64> = result.iter().enumerate().map(error).collect();
        too_far(&errors, sum.precision, info.world_size)
    };
    let agree = |value: f64, op| -> Result<f64, Box<dyn Error>> {
        let mut value = [value as f32];
        communicator.all_reduce(&mut value, op)?;
        Ok(value[0].into())
    };
    let report = json!({
        "command": number,
        "wrong": agree(wrong as f64, ReduceOp::Sum)? as u64,
        "seconds": agree(seconds, ReduceOp::Max)?,
        "reporter_seconds": seconds,
        "process_seconds": agree(cpu, ReduceOp::Sum)?,
        "idle_ticks": ticks_after.0 - ticks.0,
        "softirq_ticks": ticks_after.1 - ticks.1,
        "chunks": stats.chunks,
        "resent": stats.resent_by_timer + stats.resent_by_overtaking,
    });
    if info.rank == 0 {
        println!("{report}");
    }
    Ok(())
}

/// The number of elements whose error exceeds the documented bound. In 8 bits the variance of all
/// errors decides about all elements at once. Elements are below 1.
fn too_far(errors: &[f64], precision: Precision, world_size: u32) -> usize {
    let ranks = f64::from(world_size);
    if precision == Precision::Bits16 || world_size > 32 {
        let bound = ranks * 2f64.powi(world_size.next_power_of_two().ilog2() as i32 - 15);
        return errors.iter().filter(|error| error.abs() > bound).count();
    }
    // The limit of rotated elements that nearly all chunks keep, for elements of like magnitudes.
    let limit = 0.5 * 8.5 * 128f64.sqrt();
    let step = 2.0 * limit / f64::from(255 / world_size);
    let variance = errors.iter().map(|error| error * error).sum::<f64>() / errors.len() as f64;
    if variance > ranks * step * step / 12.0 / 128.0 { errors.len() } else { 0 }
}

/// Element i of a rank: sums of them are exact in f32.
fn element(rank: u32, i: usize) -> f32 {
    ((i as i64 * 40503 + i64::from(rank) * 9973) % 65521 - 32760) as f32 / 32768.0
}

/// Ticks that the machine's processors were not ours (idle, waiting, stolen), and ticks in softirq.
fn machine_ticks() -> Result<(u64, u64), Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/stat")?;
    let all = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let fields: Vec<u64> = all.map(str::parse).collect::<Result<_, _>>()?;
    Ok((fields[3] + fields[4] + fields[7], fields[6]))
}

fn process_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
