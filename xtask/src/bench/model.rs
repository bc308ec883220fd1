//! A model of an all-reduce's cost, from packets, bytes and processor time, and its distance from
//! the measurements.
//!
//! A rank's link carries each chunk once each way, for any number of workers; a chunk costs the
//! machine a fixed processor time per worker. The time of a large tensor is that of the link or of
//! the processors, whichever is longer, plus the least time of a call. The model takes two figures
//! from the measurements: the time of the smallest tensor for each number of workers, and the
//! processor time of a large one.

use std::thread::available_parallelism;

use super::measured::{Cell, Measured, Method, Results, Sample, Task};
use super::plan::{LARGE, WORKERS};
use crate::measure::{Table, or_dash};
use crate::stats::Spread;

/// Lanes of a full chunk at an MTU of 1500 bytes.
const LANES: usize = 352;

/// Bytes of a full frame as shapers count them: Ethernet, IPv4, UDP, and the protocol's headers,
/// and the lanes.
const FRAME: usize = 14 + 20 + 8 + 32 + 4 * LANES;

/// Workers of the setting from which the processor time of a chunk is taken.
const REFERENCE: usize = 4;

/// The two figures that come from measurements.
struct Model {
    /// Processor time of a chunk on its way through the whole system, for each worker, in seconds.
    chunk: f64,
    /// Time of the smallest call in seconds, by number of workers.
    call: Vec<(usize, f64)>,
}

/// Packets that a rank sends, and receives, in a call: data chunks and the exponents of all chunks.
fn packets(cell: Cell) -> usize {
    let chunks = (cell.size / 4).div_ceil(LANES);
    chunks.div_ceil(cell.task.dense()) + chunks.div_ceil(LANES)
}

/// Seconds for which a link is busy, each way; none if it is not shaped.
fn link(cell: Cell) -> f64 {
    cell.rate.map_or(0.0, |rate| (packets(cell) * FRAME * 8) as f64 / rate as f64)
}

fn median(measured: &Measured, quantity: impl Fn(&Sample) -> f64) -> f64 {
    Spread::of(measured.of(quantity)).median
}

/// Processor time for each chunk and worker in seconds.
fn per_chunk(measured: &Measured) -> f64 {
    let cell = measured.cell;
    median(measured, |sample| sample.cpu_seconds) / (packets(cell) * cell.workers) as f64
}

impl Model {
    /// The model; `None` if its two figures were not measured.
    fn of(results: &Results) -> Option<Self> {
        let ours = || results.0.iter().filter(|measured| measured.method == Method::OURS);
        let reference = Cell { workers: REFERENCE, rate: None, size: LARGE, task: Task::Sum };
        let smallest = |workers| {
            let unshaped = ours().filter(|measured| {
                measured.cell.workers == workers && measured.cell.rate.is_none()
            });
            let smallest = unshaped.min_by_key(|measured| measured.cell.size)?;
            Some((workers, median(smallest, |sample| sample.seconds)))
        };
        let call = WORKERS.into_iter().filter_map(smallest).collect();
        Some(Self { chunk: per_chunk(results.get(reference, Method::OURS)?), call })
    }

    /// Seconds for which the processors are busy, all at the same time.
    fn processors(&self, cell: Cell) -> f64 {
        let processors = available_parallelism().map_or(1, usize::from) as f64;
        (packets(cell) * cell.workers) as f64 * self.chunk / processors
    }

    /// Seconds of a call.
    fn time(&self, cell: Cell) -> Option<f64> {
        let call = self.call.iter().find(|(workers, _)| *workers == cell.workers)?.1;
        Some(call + link(cell).max(self.processors(cell)))
    }
}

/// Markdown; empty when too little was measured.
pub fn markdown(results: &Results) -> String {
    let Some(model) = Model::of(results) else { return String::new() };
    let mut table = Table::new([
        "workers",
        "Gb/s",
        "size",
        "packets each way",
        "link, ms",
        "processors, ms",
        "model, ms",
        "measured, ms",
        "measured to model",
    ]);
    let sums = |measured: &&Measured| {
        measured.method == Method::OURS && measured.cell.task != Task::Broadcast
    };
    for measured in results.0.iter().filter(sums) {
        let cell = measured.cell;
        let Some(time) = model.time(cell) else { continue };
        let seconds = median(measured, |sample| sample.seconds);
        let times = [link(cell) * 1e3, model.processors(cell) * 1e3, time * 1e3, seconds * 1e3];
        let [link, processors, time, measured] = times.map(|time| format!("{time:.2}"));
        let rate = or_dash(cell.rate.map(|rate| rate as f64 / 1e9));
        let (size, packets) = (cell.size_text(), packets(cell));
        let ratio = format!("{:.2}", times[3] / times[2]);
        table.row(&[
            &cell.workers,
            &rate,
            &size,
            &packets,
            &link,
            &processors,
            &time,
            &measured,
            &ratio,
        ]);
    }
    let chunk = model.chunk * 1e6;
    let title =
        format!("Model: {chunk:.2} CPU-us for each chunk and worker, frames of {FRAME} bytes");
    format!("\n{title}.\n\n{table}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: Cell =
        Cell { workers: 4, rate: Some(1_000_000_000), size: 16 << 20, task: Task::Sum };

    #[test]
    fn packets_of_a_tensor() {
        // 4,194,304 elements in chunks of 352 are 11,916; their exponents fill 34.
        assert_eq!(packets(CELL), 11_916 + 34);
        assert_eq!(packets(Cell { task: Task::SparseSum, ..CELL }), 1_192 + 34);
        assert_eq!(packets(Cell { size: 4, ..CELL }), 2);
    }

    #[test]
    fn links_are_busy_for_all_frames() {
        assert!((link(CELL) - 11_950.0 * 1482.0 * 8.0 / 1e9).abs() < 1e-9);
        assert_eq!(link(Cell { rate: None, ..CELL }), 0.0);
    }

    #[test]
    fn the_slower_of_link_and_processors_counts() {
        let model = Model { chunk: 1e-6, call: vec![(4, 1e-4)] };
        let processors = model.processors(CELL);
        assert!(processors < link(CELL));
        assert_eq!(model.time(CELL), Some(1e-4 + link(CELL)));
        assert_eq!(model.time(Cell { rate: None, ..CELL }), Some(1e-4 + processors));
        assert_eq!(model.time(Cell { workers: 3, ..CELL }), None);
    }
}
