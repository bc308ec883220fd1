//! The measurement: every rank runs the same calls in the same order.

use std::time::{Duration, Instant};

use switchml_pattern::{Pattern, Tested, Zeros};
use switchml_worker::{CallStats, Communicator, Error, Reduction, Stats};

use super::agree;
use super::progress::Progress;
use super::report::{Measured, Row};

/// Bytes of values that the in-place iterations of small sizes take turns on.
const ROTATION: usize = 64 << 20;

/// One rank's benchmark.
pub struct Runner<T> {
    communicator: Communicator,
    op: Reduction,
    iters: usize,
    check: usize,
    zeros: Zeros,
    progress: Progress,
    /// This rank's contribution.
    input: Vec<T>,
    /// The tensors to reduce: one tensor, or many copies of a small one.
    buffer: Vec<T>,
    /// Number of the next pattern.
    seed: u64,
}

/// Where a result goes.
#[derive(Clone, Copy)]
enum Way {
    OutOfPlace,
    InPlace,
}

impl<T: Tested> Runner<T> {
    /// A runner for tensors of up to `largest` elements.
    pub fn new(
        communicator: Communicator,
        op: Reduction,
        iters: usize,
        check: usize,
        zeros: Zeros,
        largest: usize,
        progress: Progress,
    ) -> Self {
        let rotation = largest.max(ROTATION / size_of::<T>());
        let (input, buffer) = (vec![T::default(); largest], vec![T::default(); rotation]);
        Self { communicator, op, iters, check, zeros, progress, input, buffer, seed: 0 }
    }

    /// Untimed iterations at these sizes.
    pub fn warm_up(&mut self, counts: &[usize], iterations: usize) -> Result<(), Error> {
        for &count in counts {
            self.fill_input(count);
            for _ in 0..iterations {
                self.reduce_copy(count)?;
            }
        }
        Ok(())
    }

    /// Measures and checks a size, both ways. Adds it to `differing` when the ranks' results are
    /// not the same bits.
    pub fn row(&mut self, count: usize, differing: &mut Vec<usize>) -> Result<Row, Error> {
        let size = count * size_of::<T>();
        self.progress.describe(size);
        let mut measure = |way| -> Result<Measured, Error> {
            let (seconds, calls) = self.time(way, count)?;
            let (wrong, differ) = self.check(way, count)?;
            if differ && differing.last() != Some(&size) {
                differing.push(size);
            }
            Ok(Measured::new(size, seconds, self.communicator.world_size() as usize, wrong, &calls))
        };
        let (out_of_place, in_place) = (measure(Way::OutOfPlace)?, measure(Way::InPlace)?);
        Ok(Row {
            size,
            count,
            dtype: T::NCCL_NAME,
            redop: self.op.name(),
            root: -1,
            out_of_place,
            in_place,
        })
    }

    /// Prints something without the progress bar in its way.
    pub fn print(&self, print: impl FnOnce()) {
        self.progress.suspend(print);
    }

    /// Leaves the job normally. Returns the statistics of its calls.
    pub fn finish(self) -> Result<Stats, Error> {
        let stats = self.communicator.stats();
        self.communicator.close()?;
        Ok(stats)
    }

    /// Mean time of an iteration in seconds, on the slowest rank, and the statistics of the
    /// iterations on this rank.
    fn time(&mut self, way: Way, count: usize) -> Result<(f64, CallStats), Error> {
        self.fill_input(count);
        let mut calls = CallStats::default();
        let total = match way {
            Way::OutOfPlace => self.time_out_of_place(count, &mut calls)?,
            Way::InPlace => self.time_in_place(count, &mut calls)?,
        };
        let mean = agree::on_time(&self.communicator, total.as_secs_f64() / self.iters as f64)?;
        Ok((mean, calls))
    }

    fn time_out_of_place(
        &mut self,
        count: usize,
        calls: &mut CallStats,
    ) -> Result<Duration, Error> {
        self.communicator.barrier()?;
        let begin = Instant::now();
        for _ in 0..self.iters {
            *calls += &self.reduce_copy(count)?;
            self.progress.advance(1);
        }
        Ok(begin.elapsed())
    }

    /// Every iteration reduces fresh values: a sum of sums of sums would soon be infinite, and
    /// infinities are not sent. The values are laid out in advance, as many as the buffer holds;
    /// that is not timed.
    fn time_in_place(&mut self, count: usize, calls: &mut CallStats) -> Result<Duration, Error> {
        let mut total = Duration::ZERO;
        let mut left = self.iters;
        while left > 0 {
            let turns = left.min(self.buffer.len() / count);
            let turns_of_buffer = self.buffer.chunks_exact_mut(count).take(turns);
            turns_of_buffer.for_each(|tensor| tensor.copy_from_slice(&self.input[..count]));
            self.communicator.barrier()?;
            let begin = Instant::now();
            for tensor in self.buffer.chunks_exact_mut(count).take(turns) {
                *calls += &self.communicator.all_reduce(tensor, self.op)?;
                self.progress.advance(1);
            }
            total += begin.elapsed();
            left -= turns;
        }
        Ok(total)
    }

    /// Wrong elements over all ranks and iterations (none when nothing is to be checked), and
    /// whether two ranks have different bits.
    fn check(&mut self, way: Way, count: usize) -> Result<(Option<u64>, bool), Error> {
        let (mut wrong, mut differ) = (0, false);
        for _ in 0..self.check {
            let pattern = self.next_pattern();
            let rank = self.communicator.rank() as usize;
            match way {
                Way::OutOfPlace => {
                    pattern.fill(rank, &mut self.input[..count]);
                    self.reduce_copy(count)?;
                }
                Way::InPlace => {
                    pattern.fill(rank, &mut self.buffer[..count]);
                    self.communicator.all_reduce(&mut self.buffer[..count], self.op)?;
                }
            }
            let result = &self.buffer[..count];
            let (here, differs) = agree::on_result(&self.communicator, &pattern, self.op, result)?;
            wrong += here;
            differ |= differs;
            self.progress.advance(1);
        }
        // Elements that differ between ranks are wrong on one of them, even if no single one is out
        // of bounds.
        Ok(((self.check > 0).then_some(wrong.max(differ.into())), differ))
    }

    /// Reduces a copy of the input.
    fn reduce_copy(&mut self, count: usize) -> Result<CallStats, Error> {
        let tensor = &mut self.buffer[..count];
        tensor.copy_from_slice(&self.input[..count]);
        self.communicator.all_reduce(tensor, self.op)
    }

    fn fill_input(&mut self, count: usize) {
        let pattern = self.next_pattern();
        pattern.fill(self.communicator.rank() as usize, &mut self.input[..count]);
    }

    /// The next pattern: the same on all ranks, and different each time.
    fn next_pattern(&mut self) -> Pattern {
        self.seed += 1;
        Pattern::new::<T>(self.seed, self.communicator.world_size() as usize, self.zeros)
    }
}
