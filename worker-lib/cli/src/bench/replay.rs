//! A training step whose computing is a sleep. As in torch's DistributedDataParallel, an all-reduce
//! starts once the gradients of its bucket are ready, while the backward pass goes on; the step is
//! over when all have their sums.

use std::mem;
use std::thread;
use std::time::{Duration, Instant};

use switchml_pattern::{Pattern, Tested, Zeros};
use switchml_step::{Step, buckets, buckets::Bucket};
use switchml_worker::{Communicator, Error, Handle, Reduction};

use super::agree;
use super::progress::Progress;

/// One rank's replay.
pub struct Replay<'a, T> {
    communicator: &'a Communicator,
    op: Reduction,
    buckets: Vec<Bucket>,
    compute: Duration,
    progress: Progress,
    /// This rank's contribution to each bucket, in steps that are timed.
    input: Vec<T>,
    /// The buckets' elements.
    tensors: Vec<Vec<T>>,
    /// Number of the next pattern.
    seed: u64,
}

impl<'a, T: Tested> Replay<'a, T> {
    /// The replay of a step.
    pub fn new(
        communicator: &'a Communicator,
        op: Reduction,
        step: &Step,
        progress: Progress,
    ) -> Self {
        let buckets = buckets::of(step, size_of::<T>());
        let largest = buckets.iter().map(|bucket| bucket.elements).max().unwrap_or_default();
        let tensors = buckets.iter().map(|bucket| vec![T::default(); bucket.elements]).collect();
        let (input, compute) = (vec![T::default(); largest], step.compute());
        Self { communicator, op, buckets, compute, progress, input, tensors, seed: 0 }
    }

    /// Steps that are not timed, and steps that are: milliseconds on the slowest rank, with
    /// computing and with communication alone, in turn.
    pub fn time(
        &mut self,
        warmup: usize,
        steps: usize,
        [with_computing, without]: [&mut Vec<f64>; 2],
    ) -> Result<(), Error> {
        self.next_input();
        for _ in 0..warmup {
            self.step(Duration::ZERO)?;
        }
        // The first one without computing warms up what the first with computing uses.
        for _ in 0..steps {
            without.push(self.step(Duration::ZERO)?);
            with_computing.push(self.step(self.compute)?);
        }
        Ok(())
    }

    /// So many steps, one after the other: their seconds on the slowest rank, wrong elements of the
    /// last one on all ranks, and whether two ranks have different bits.
    pub fn train(&mut self, steps: usize) -> Result<(f64, u64, bool), Error> {
        let pattern = self.next_input();
        let mut milliseconds = 0.0;
        for _ in 0..steps {
            milliseconds += self.step(self.compute)?;
        }
        let (mut wrong, mut differ) = (0, false);
        for tensor in &self.tensors {
            let (here, differs) = agree::on_result(self.communicator, &pattern, self.op, tensor)?;
            wrong += here;
            differ |= differs;
        }
        Ok((milliseconds / 1e3, wrong, differ))
    }

    /// A step in which each bucket has elements of its own: wrong ones on all ranks, and whether
    /// two ranks have different bits.
    pub fn check(&mut self) -> Result<(u64, bool), Error> {
        let rank = self.communicator.rank() as usize;
        let patterns: Vec<_> = (0..self.buckets.len()).map(|_| self.next_pattern()).collect();
        for (tensor, pattern) in self.tensors.iter_mut().zip(&patterns) {
            pattern.fill(rank, tensor);
        }
        self.run(self.compute)?;
        self.progress.advance(1);
        let (mut wrong, mut differ) = (0, false);
        for (tensor, pattern) in self.tensors.iter().zip(&patterns) {
            let (here, differs) = agree::on_result(self.communicator, pattern, self.op, tensor)?;
            wrong += here;
            differ |= differs;
        }
        Ok((wrong, differ))
    }

    /// A step of fresh values: sums of sums would soon be infinite.
    fn step(&mut self, compute: Duration) -> Result<f64, Error> {
        for tensor in &mut self.tensors {
            let count = tensor.len();
            tensor.copy_from_slice(&self.input[..count]);
        }
        let time = self.run(compute)?;
        self.progress.advance(1);
        Ok(1e3 * agree::on_time(self.communicator, time.as_secs_f64())?)
    }

    /// A step of so much computing: all of the step's, or none.
    fn run(&mut self, compute: Duration) -> Result<Duration, Error> {
        self.communicator.barrier()?;
        let begin = Instant::now();
        let mut calls = Vec::new();
        for (bucket, tensor) in self.buckets.iter().zip(mem::take(&mut self.tensors)) {
            sleep_until(begin + bucket.ready.min(compute));
            calls.push(self.communicator.all_reduce_start(tensor, self.op)?);
        }
        self.tensors = calls.into_iter().map(Handle::wait).collect::<Result<_, _>>()?;
        sleep_until(begin + compute);
        Ok(begin.elapsed())
    }

    /// Makes this rank's contribution to each bucket, of a pattern of its own.
    fn next_input(&mut self) -> Pattern {
        let pattern = self.next_pattern();
        pattern.fill(self.communicator.rank() as usize, &mut self.input);
        pattern
    }

    /// The next pattern: the same on all ranks, and different each time.
    fn next_pattern(&mut self) -> Pattern {
        self.seed += 1;
        Pattern::new::<T>(self.seed, self.communicator.world_size() as usize, Zeros::NONE)
    }
}

fn sleep_until(time: Instant) {
    thread::sleep(time.saturating_duration_since(Instant::now()));
}
