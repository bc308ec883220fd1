//! `switchml-worker rank`: one rank of `cargo xtask bench`, like those with Gloo and MPI in
//! `xtask/src/bench/peers`. A file says what to measure, so that ranks of all methods can take
//! turns. `team.rs`, `share.rs` and `jobs.rs` in `xtask/src/bench` have the commands and the
//! output.

use std::fmt::Display;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use half::f16;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use switchml_cli::say;
use switchml_pattern::{Pattern, Zeros, wrong_elements};
use switchml_worker::{CallStats, Communicator, Error, ReduceOp, Reduction};

use super::Failure;
use super::bench::{Progress, Replay};
use super::job::Job;
use super::step::{Chosen, StepOptions};

/// Measures what a file of commands says
#[derive(clap::Args)]
pub struct Rank {
    #[command(flatten)]
    job: Job,
    #[command(flatten)]
    step: StepOptions,
    /// File of commands, one a line
    commands: PathBuf,
}

impl Rank {
    /// Runs one rank's part.
    pub fn run(&self) -> Result<(), Failure> {
        let step = self.step.load()?;
        let communicator = self.job.settings()?.connect().map_err(Failure::joining)?;
        let usage =
            |error: &dyn Display| Failure::Usage(format!("{}: {error}", self.commands.display()));
        let file = File::open(&self.commands).map_err(|error| usage(&error))?;
        for line in BufReader::new(file).lines() {
            let line = line.map_err(|error| usage(&error))?;
            let command = Command::parse(&line, step.as_ref())
                .ok_or_else(|| usage(&format_args!("not a command: {line}")))?;
            let mut report = command.work.run(&communicator).map_err(Failure::Collective)?;
            report["command"] = command.number.into();
            if communicator.rank() == 0 {
                say(report);
            }
        }
        communicator.close().map_err(Failure::Collective)
    }
}

struct Command<'a> {
    number: u64,
    work: Work<'a>,
}

enum Work<'a> {
    Timed(Timed),
    Shared(Shared),
    Trained(Trained<'a>),
}

impl<'a> Command<'a> {
    /// A command; its steps are `chosen`'s.
    fn parse(line: &str, chosen: Option<&'a Chosen>) -> Option<Self> {
        let words: Vec<usize> = line.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        let (number, work) = match words[..] {
            [number, copies, count, warmup, iters, broadcast, dense, bits] => {
                let sum = match bits {
                    32 => Reduction::SUM,
                    16 => Reduction::SUM16,
                    8 => Reduction::SUM8,
                    _ => return None,
                };
                let broadcast = broadcast == 1;
                let timed = Timed { copies, count, warmup, iters, broadcast, dense, sum };
                (number, Work::Timed(timed))
            }
            [number, time, count, burst, pause] => {
                let time = Duration::from_millis(time as u64);
                (number, Work::Shared(Shared { time, count, burst, pause: pause as u64 }))
            }
            [number, steps] => (number, Work::Trained(Trained { steps, chosen: chosen? })),
            _ => return None,
        };
        Some(Self { number: number as u64, work })
    }
}

impl Work<'_> {
    fn run(&self, communicator: &Communicator) -> Result<Value, Error> {
        match self {
            Self::Timed(timed) => timed.run(communicator),
            Self::Shared(shared) => shared.run(communicator),
            Self::Trained(trained) => trained.run(communicator),
        }
    }
}

/// Calls that are timed.
struct Timed {
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
    sum: Reduction,
}

impl Timed {
    fn run(&self, communicator: &Communicator) -> Result<Value, Error> {
        let &Self { copies, warmup, iters, .. } = self;
        let lanes = communicator.info().chunk_lanes.into();
        let zeros = Zeros { share: 1.0 - 1.0 / self.dense as f64, chunk: lanes };
        // Values of an f16, so that sums of sums are exact in an f32.
        let pattern = Pattern::new::<f16>(1, communicator.world_size() as usize, zeros);
        let mut tensors = vec![self.elements(&pattern, communicator.rank()); copies];
        let mut stats = CallStats::default();
        let call = |tensor: &mut [f32]| {
            if self.broadcast {
                communicator.broadcast(tensor, 0)
            } else {
                communicator.all_reduce(tensor, self.sum)
            }
        };
        communicator.barrier()?;
        for i in 0..warmup {
            call(&mut tensors[i % copies])?;
        }
        communicator.barrier()?;
        let (ticks, cpu, begin) = (machine_ticks(), process_seconds(), Instant::now());
        for i in warmup..warmup + iters {
            stats += &call(&mut tensors[i % copies])?;
        }
        let seconds = begin.elapsed().as_secs_f64();
        let (cpu, ticks_after) = (process_seconds() - cpu, machine_ticks());
        let last = warmup + iters - 1;
        let wrong = self.wrong(communicator, &pattern, last / copies, &tensors[last % copies])?;
        let agree = |value: f64, op| -> Result<f64, Error> {
            let mut value = [value as f32];
            communicator.all_reduce(&mut value, op)?;
            Ok(value[0].into())
        };
        Ok(json!({
            "wrong": agree(wrong as f64, ReduceOp::Sum)? as u64,
            "seconds": agree(seconds, ReduceOp::Max)?,
            "reporter_seconds": seconds,
            "process_seconds": agree(cpu, ReduceOp::Sum)?,
            "idle_ticks": ticks_after[0] - ticks[0],
            "softirq_ticks": ticks_after[1] - ticks[1],
            "chunks": stats.chunks,
            "resent": stats.resent_by_timer + stats.resent_by_overtaking,
        }))
    }

    fn elements(&self, pattern: &Pattern, rank: u32) -> Vec<f32> {
        let mut elements = vec![f16::ZERO; self.count];
        pattern.fill(rank as usize, &mut elements);
        elements.into_iter().map(f32::from).collect()
    }

    /// The wrong elements of a tensor that has been through this many calls, and one more.
    fn wrong(
        &self,
        communicator: &Communicator,
        pattern: &Pattern,
        calls_before: usize,
        result: &[f32],
    ) -> Result<usize, Error> {
        let ranks = communicator.world_size() as usize;
        if !self.broadcast && self.sum != Reduction::SUM {
            // Errors of sums of sums add up, so this looks at one.
            let pattern = Pattern::new::<f32>(2, ranks, Zeros::NONE);
            let mut tensor = vec![0f32; self.count];
            pattern.fill(communicator.rank() as usize, &mut tensor);
            communicator.all_reduce(&mut tensor, self.sum)?;
            return Ok(wrong_elements(&pattern, self.sum, ranks, &tensor));
        }
        let unlike = |expected: &dyn Fn(usize) -> f64| {
            result.iter().enumerate().filter(|&(i, &found)| f64::from(found) != expected(i)).count()
        };
        Ok(if self.broadcast {
            let roots = self.elements(pattern, 0);
            unlike(&|i| roots[i].into())
        } else {
            let sum = pattern.expected::<f16>(ReduceOp::Sum);
            let factor = (ranks as f64).powi(calls_before as i32);
            unlike(&|i| sum(i) * factor)
        })
    }
}

/// Sums for a given time, one call after the other or with pauses.
struct Shared {
    time: Duration,
    /// Elements of a tensor.
    count: usize,
    /// Calls between two pauses; 0 without.
    burst: usize,
    /// Mean length of a pause in milliseconds.
    pause: u64,
}

impl Shared {
    /// All ranks pause after the same calls, and for as long.
    fn run(&self, communicator: &Communicator) -> Result<Value, Error> {
        let ranks = communicator.world_size() as usize;
        let pattern = Pattern::new::<i32>(1, ranks, Zeros::NONE);
        let mut mine = vec![0; self.count];
        pattern.fill(communicator.rank() as usize, &mut mine);
        let mut tensor = mine.clone();
        let (mut calls, mut wrong) = (0, 0);
        communicator.barrier()?;
        let begin = Instant::now();
        loop {
            tensor.copy_from_slice(&mine);
            // The last element counts the ranks that want to stop.
            tensor[self.count - 1] = i32::from(begin.elapsed() >= self.time);
            communicator.all_reduce(&mut tensor, ReduceOp::Sum)?;
            let (stop, sums) = (tensor[self.count - 1] > 0, &tensor[..self.count - 1]);
            wrong += wrong_elements(&pattern, Reduction::SUM, ranks, sums);
            if stop {
                let seconds = begin.elapsed().as_secs_f64();
                return Ok(
                    json!({"bytes": calls * self.count * 4, "seconds": seconds, "wrong": wrong}),
                );
            }
            calls += 1;
            if self.burst > 0 && calls.is_multiple_of(self.burst) {
                let pause = random(&communicator.info().job, calls, 2 * self.pause);
                sleep(Duration::from_millis(pause));
            }
        }
    }
}

/// Training steps, one after the other.
struct Trained<'a> {
    steps: usize,
    chosen: &'a Chosen,
}

impl Trained<'_> {
    fn run(&self, communicator: &Communicator) -> Result<Value, Error> {
        let (step, progress) = (&self.chosen.step, Progress::new(false, self.steps));
        let mut replay = Replay::<f32>::new(communicator, Reduction::SUM, step, progress);
        let (seconds, wrong, differ) = replay.train(self.steps)?;
        Ok(json!({"seconds": seconds, "wrong": wrong.max(differ.into())}))
    }
}

/// A number below `end`, the same on all ranks; 0 if that is 0.
fn random(job: &str, call: usize, end: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (job, call).hash(&mut hasher);
    hasher.finish().checked_rem(end).unwrap_or(0)
}

/// Ticks that the machine's processors were not ours (idle, waiting, stolen), and ticks in softirq.
fn machine_ticks() -> [u64; 2] {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let words = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let fields: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
    let field = |i: usize| fields.get(i).copied().unwrap_or_default();
    [field(3) + field(4) + field(7), field(6)]
}

fn process_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
