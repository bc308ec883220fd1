//! The results of a benchmark: the table and the JSON are two views of them.

use serde::Serialize;
use std::time::Duration;
use switchml_worker::interface::Interface;
use switchml_worker::{CallStats, RoundTrips, Straggler, WaitStats};

use crate::Failure;

/// The whole run.
#[derive(Serialize)]
pub struct Report {
    #[serde(flatten)]
    pub setup: Setup,
    pub rows: Vec<Row>,
    /// Wrong elements of all rows and ranks.
    pub out_of_bounds: u64,
    /// Mean of both columns over all rows, in 1e9 bytes per second.
    pub avg_busbw: f64,
    /// Sizes in bytes at which two ranks' results were not the same bits.
    pub differing: Vec<usize>,
    /// One line on the values' share of the link.
    pub goodput: String,
    /// Statistics of all calls on the reporting rank, including warm-up and checks.
    pub sent: Calls,
    /// How the reporting rank waited in these calls.
    pub waits: Waits,
}

/// The percentages of chunks for which [`Calls::finished_us`] has a time.
const FINISHED: [f64; 23] = [
    0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 45.0, 50.0, 55.0, 60.0, 65.0, 70.0, 75.0,
    80.0, 85.0, 90.0, 95.0, 99.0, 99.9, 100.0,
];

/// Statistics of calls on the reporting rank.
#[derive(Default, Serialize)]
pub struct Calls {
    pub calls: u64,
    pub chunks: u64,
    /// Chunks of zeros, sent first as headers alone.
    pub empty: u64,
    /// Chunks of zeros that the aggregator asked for in full.
    pub rooms: u64,
    /// Chunks sent again because no answer came in time.
    pub resent_by_timer: u64,
    /// Chunks sent again because later results came first.
    pub resent_by_overtaking: u64,
    /// Chunks sent again to ask whether a late rank has come.
    pub probes: u64,
    /// Answers that say that the aggregator waits for a late rank.
    pub pending: u64,
    /// Chunks sent before the ranks had agreed on exponents.
    pub speculative: u64,
    /// Speculative chunks whose results did not count.
    pub misspeculated: u64,
    /// Time from a chunk's first transmission to its result; none when nothing had to be sent.
    pub rtt_us: Option<Quantiles>,
    /// Percentages of a call's chunks, and the time by which they had their result, in microseconds
    /// from the call's first packet.
    pub finished_us: Vec<(f64, f64)>,
    /// The ranks that were waited for.
    pub stragglers: Vec<Late>,
}

/// See [`WaitStats`].
#[derive(Default, Serialize)]
pub struct Waits {
    pub waits: u64,
    pub looks: u64,
    /// Looks before which others took the core.
    pub taken: u64,
    pub sleeps: u64,
}

impl From<WaitStats> for Waits {
    fn from(stats: WaitStats) -> Self {
        let WaitStats { waits, looks, taken, sleeps } = stats;
        Self { waits, looks, taken, sleeps }
    }
}

/// Quantiles, in microseconds.
#[derive(Serialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// A rank that was waited for.
#[derive(Serialize)]
pub struct Late {
    pub rank: u32,
    /// Chunks that waited for the rank.
    pub chunks: u64,
    /// Total time that chunks waited for the rank, in microseconds.
    pub waited_us: f64,
}

impl Report {
    pub fn new(setup: Setup) -> Self {
        Self {
            setup,
            rows: vec![],
            out_of_bounds: 0,
            avg_busbw: 0.0,
            differing: vec![],
            goodput: String::new(),
            sent: Calls::default(),
            waits: Waits::default(),
        }
    }

    /// Draws the conclusions of the rows. `interface` is this rank's way to the aggregator.
    pub fn conclude(&mut self, interface: Option<&Interface>) {
        let measured = || self.rows.iter().flat_map(Row::measured);
        self.out_of_bounds = measured().filter_map(|measured| measured.wrong).sum();
        self.avg_busbw =
            measured().map(|measured| measured.busbw).sum::<f64>() / measured().count() as f64;
        self.goodput = self.best().map(|row| goodput(row, interface)).unwrap_or_default();
    }

    /// The row with the most values per second.
    fn best(&self) -> Option<&Row> {
        self.rows.iter().max_by(|a, b| a.in_place.algbw.total_cmp(&b.in_place.algbw))
    }

    pub fn to_json(&self) -> String {
        // Reports have only strings, numbers and lists of these, which JSON can always represent.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// # Errors
    ///
    /// [`Failure::Wrong`] when elements are wrong, or when the ranks' bits differ.
    pub fn verdict(&self) -> Result<(), Failure> {
        if self.is_right() {
            return Ok(());
        }
        let (wrong, differing) = (self.out_of_bounds, self.differing.len());
        Err(Failure::Wrong(format!(
            "{wrong} elements are wrong; the ranks' bits differ at {differing} sizes"
        )))
    }

    /// Whether all elements are right and the same bits on all ranks.
    pub fn is_right(&self) -> bool {
        self.out_of_bounds == 0 && self.differing.is_empty()
    }
}

/// Values per second and rank, and their share of the link.
fn goodput(row: &Row, interface: Option<&Interface>) -> String {
    let bits = row.in_place.algbw * 8e9;
    let share = match interface {
        Some(Interface { name, speed: Some(speed), .. }) => {
            format!("{:.1} % of {name}'s {} Gb/s", bits / speed * 100.0, speed / 1e9)
        }
        Some(Interface { name, speed: None, .. }) => {
            format!("share of the link n/a ({name} has no link speed)")
        }
        None => "share of the link n/a (its interface is unknown)".to_owned(),
    };
    format!(
        "Goodput: {:.2} Gb/s of values each way per rank at {} B; {share}",
        bits / 1e9,
        row.size
    )
}

/// The parameters of the benchmark and its environment.
#[derive(Serialize)]
pub struct Setup {
    pub version: &'static str,
    pub aggregator: String,
    pub data_plane: String,
    pub attachment: String,
    pub world_size: usize,
    /// Lanes of a full chunk.
    pub lanes: usize,
    /// Data threads of each rank.
    pub data_threads: usize,
    #[serde(rename = "type")]
    pub dtype: &'static str,
    pub redop: &'static str,
    pub minbytes: usize,
    pub maxbytes: usize,
    pub step: String,
    pub warmup_iters: usize,
    pub iters: usize,
    pub check: usize,
    /// Share of the chunks that are zero on all ranks.
    pub sparsity: f64,
}

/// One size.
#[derive(Serialize)]
pub struct Row {
    /// Size in bytes.
    pub size: usize,
    /// Number of elements.
    pub count: usize,
    #[serde(rename = "type")]
    pub dtype: &'static str,
    pub redop: &'static str,
    /// The root rank; -1, since an all-reduce has none.
    pub root: i32,
    pub out_of_place: Measured,
    pub in_place: Measured,
}

/// One size, done one way.
#[derive(Serialize)]
pub struct Measured {
    /// Mean of the iterations on the slowest rank, in microseconds.
    pub time_us: f64,
    /// Size over time, in 1e9 bytes per second.
    pub algbw: f64,
    /// 2(n-1)/n times `algbw`.
    pub busbw: f64,
    /// Wrong elements on all ranks; none when it was not checked.
    pub wrong: Option<u64>,
    /// The timed iterations on the reporting rank.
    pub sent: Calls,
}

impl Measured {
    /// The measurement from the time of one all-reduce of `size` bytes over `world_size` ranks.
    pub fn new(
        size: usize,
        seconds: f64,
        world_size: usize,
        wrong: Option<u64>,
        calls: &CallStats,
    ) -> Self {
        let ranks = world_size as f64;
        let algbw = size as f64 / 1e9 / seconds;
        // nccl-tests, doc/PERFORMANCE.md: of an all-reduce, each link carries 2(n-1)/n of the
        // values.
        Self {
            time_us: seconds * 1e6,
            algbw,
            busbw: algbw * 2.0 * (ranks - 1.0) / ranks,
            wrong,
            sent: calls.into(),
        }
    }
}

impl From<&CallStats> for Calls {
    fn from(stats: &CallStats) -> Self {
        let CallStats {
            calls, chunks, resent_by_timer, resent_by_overtaking, probes, pending, ..
        } = *stats;
        let CallStats { empty, rooms, speculative, misspeculated, .. } = *stats;
        let rtt_us = Quantiles::of(&stats.round_trips);
        let finished =
            |percent| Some((percent, microseconds(stats.finished.quantile(percent / 100.0)?)));
        let finished_us = FINISHED.iter().copied().filter_map(finished).collect();
        let late = |(rank, late): (u32, Straggler)| Late {
            rank,
            chunks: late.chunks,
            waited_us: microseconds(late.waited),
        };
        let stragglers = stats.stragglers().map(late).collect();
        Self {
            calls,
            chunks,
            empty,
            rooms,
            resent_by_timer,
            resent_by_overtaking,
            probes,
            pending,
            speculative,
            misspeculated,
            rtt_us,
            finished_us,
            stragglers,
        }
    }
}

impl Quantiles {
    fn of(times: &RoundTrips) -> Option<Self> {
        let at = |share| times.quantile(share).map(microseconds);
        let (p50, p90, p99, p999) = (at(0.5)?, at(0.9)?, at(0.99)?, at(0.999)?);
        Some(Self { p50, p90, p99, p999, max: times.max().map(microseconds)? })
    }
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl Row {
    pub fn measured(&self) -> [&Measured; 2] {
        [&self.out_of_place, &self.in_place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(size: usize, seconds: f64) -> Row {
        let measured = || Measured::new(size, seconds, 2, Some(0), &CallStats::default());
        Row {
            size,
            count: size / 4,
            dtype: "float",
            redop: "sum",
            root: -1,
            out_of_place: measured(),
            in_place: measured(),
        }
    }

    #[test]
    fn goodput_is_a_share_of_a_known_link() {
        let interface = |speed| Interface { name: "eth0".into(), mac: None, mtu: 1500, speed };
        // 125 MB in 0.5 s are 2 Gb/s.
        let row = row(125_000_000, 0.5);
        assert_eq!(
            goodput(&row, Some(&interface(Some(2.5e9)))),
            "Goodput: 2.00 Gb/s of values each way per rank at 125000000 B; 80.0 % of eth0's 2.5 \
             Gb/s"
        );
        assert!(
            goodput(&row, Some(&interface(None)))
                .ends_with("share of the link n/a (eth0 has no link speed)")
        );
    }

    #[test]
    fn bandwidths() {
        let measured = Measured::new(16_000_000, 0.1, 4, None, &CallStats::default());
        assert_eq!((measured.time_us, measured.algbw, measured.busbw), (100_000.0, 0.16, 0.24));
        assert_eq!(Measured::new(8, 1e-6, 1, None, &CallStats::default()).busbw, 0.0);
    }
}
