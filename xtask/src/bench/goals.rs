//! The goals, and whether they are met.

use std::fmt;

use super::measured::{Cell, Method, Results, Sample, Task};
use super::plan::{
    GIGABIT, HALF_GIGABIT, LARGE, NETWORKED, QUARTER_GIGABIT, SMALL, SPREAD, WORKERS, rate,
};
use crate::stats::Spread;

/// A promise about a ratio.
pub struct Goal {
    pub what: String,
    pub measured: Spread,
    limit: Limit,
}

#[derive(Clone, Copy)]
enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

/// How a measurement compares with a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The median meets the goal.
    Met,
    /// Only the better quartile of the repetitions meets the goal.
    WithinSpread,
    Missed,
}

impl Goal {
    pub fn verdict(&self) -> Verdict {
        let Spread { low, median, high } = self.measured;
        let (keeps, better_quartile) = match self.limit {
            Limit::AtLeast(limit) => (median >= limit, high >= limit),
            Limit::AtMost(limit) => (median <= limit, low <= limit),
        };
        match (keeps, better_quartile) {
            (true, _) => Verdict::Met,
            (false, true) => Verdict::WithinSpread,
            (false, false) => Verdict::Missed,
        }
    }

    /// The limit, as tables have it.
    pub fn limit(&self) -> String {
        match self.limit {
            Limit::AtLeast(limit) => format!("≥ {limit}"),
            Limit::AtMost(limit) => format!("≤ {limit}"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Met => "met",
            Self::WithinSpread => "missed, within the spread",
            Self::Missed => "**missed**",
        })
    }
}

/// By number of workers: the least ratio of Gloo's time to ours with large tensors, unshaped and
/// shaped; the least share of the link; the largest share of Gloo's processor time.
const BY_WORKERS: [(usize, f64, f64, f64, f64); 3] =
    [(2, 2.2, 0.97, 0.92, 0.6), (4, 2.0, 1.45, 0.93, 0.6), (8, 2.0, 1.68, 0.92, 0.5)];

/// By method in 16 and in 8 bits: the least ratio of Gloo's time in f32 to ours with large tensors,
/// shaped with 2, 4 and 8 workers, and unshaped.
const PACKED: [(Method, [f64; 3], f64); 2] =
    [(Method::Bits16, [1.9, 2.8, 3.2], 1.3), (Method::Bits8, [3.6, 5.5, 6.2], 2.0)];

/// The least ratio of Gloo's time to ours with small tensors.
const SMALL_RATIO: f64 = 3.0;

/// A limit of a method's time relative to another's, with tensors of 16 MiB: workers, name,
/// methods, the links' rate, and the limit.
type Compared = (usize, &'static str, [Method; 2], Option<u64>, Limit);

/// In networks.
const IN_NETWORKS: [Compared; 6] = {
    const N: usize = NETWORKED;
    const SHAPED: Option<u64> = Some(rate(NETWORKED));
    const SLOW: Option<u64> = Some(QUARTER_GIGABIT);
    use Limit::{AtLeast, AtMost};
    use Method::{Bundle, Copies, GlooOnePort, Native, NativeOnePort, OnePort, OnePortCopies};
    const NO_MULTICAST: &str = "shaped: one port without multicast to star";
    const TO_GLOO: &str = "shaped: one port without multicast, Gloo's time to ours";
    [
        (N, "unshaped: copies to multicast", [Copies, Bundle], None, AtMost(1.15)),
        (N, "shaped: copies to multicast", [Copies, Bundle], SHAPED, AtMost(1.05)),
        (N, "shaped: one port to star", [OnePort, Bundle], SHAPED, AtMost(1.1)),
        (N, NO_MULTICAST, [OnePortCopies, Bundle], SHAPED, AtMost(1.1)),
        (N, "0.25 Gb/s: one port to star, native", [NativeOnePort, Native], SLOW, AtMost(1.1)),
        (N, TO_GLOO, [GlooOnePort, OnePortCopies], SHAPED, AtLeast(1.4)),
    ]
};

/// In racks with uplinks.
const IN_RACKS: [Compared; 6] = {
    const N: usize = SPREAD;
    const FAST: Option<u64> = Some(GIGABIT);
    const SLOW: Option<u64> = Some(QUARTER_GIGABIT);
    use Limit::{AtLeast, AtMost};
    use Method::{Bundle, GlooInRacks, OpenMpiInRacks, Tree};
    [
        (N, "1 Gb/s: racks to one rack", [Tree, Bundle], FAST, AtMost(1.15)),
        (N, "1 Gb/s: Gloo in racks to ours", [GlooInRacks, Tree], FAST, AtLeast(1.5)),
        (N, "1 Gb/s: Open MPI in racks to ours", [OpenMpiInRacks, Tree], FAST, AtLeast(3.0)),
        (N, "0.25 Gb/s: racks to one rack", [Tree, Bundle], SLOW, AtMost(1.15)),
        (N, "0.25 Gb/s: Gloo in racks to ours", [GlooInRacks, Tree], SLOW, AtLeast(1.5)),
        (N, "0.25 Gb/s: Open MPI in racks to ours", [OpenMpiInRacks, Tree], SLOW, AtLeast(3.0)),
    ]
};

/// Bytes of an uplink each way, for each byte of a tensor: frames have headers, and maxima come on
/// top.
const UPLINK: f64 = 1.1;

/// All goals whose settings were measured.
pub fn all(results: &Results) -> Vec<Goal> {
    use Limit::{AtLeast, AtMost};
    let (seconds, cpu): (Quantity, Quantity) =
        (|sample| sample.seconds, |sample| sample.cpu_seconds);
    let sum = |workers, rate, size| Cell { workers, rate, size, task: Task::Sum };
    // A goal for the ratio of a quantity in two measurements.
    let ratio = |what, limit, quantity, [one, other]: [(Cell, Method); 2]| {
        let of = |(cell, method)| Some(results.get(cell, method)?.of(quantity));
        Some(Goal { what, limit, measured: Spread::of_ratios(&of(one)?, &of(other)?) })
    };
    // A goal for a figure of a measurement.
    let figure = |what, limit, cell, method, figure: &dyn Fn(&Sample) -> f64| {
        let measured = results.get(cell, method)?;
        Some(Goal { what, limit, measured: Spread::of(measured.of(figure)) })
    };
    let mut goals = Vec::new();
    for (n, unshaped_ratio, shaped_ratio, goodput, cpu_ratio) in BY_WORKERS {
        let [unshaped, shaped] = [None, Some(rate(n))].map(|rate| sum(n, rate, LARGE));
        for (name, cell, limit) in [
            ("16 MiB", unshaped, unshaped_ratio),
            ("16 MiB, shaped", shaped, shaped_ratio),
            ("64 KiB", sum(n, None, SMALL), SMALL_RATIO),
        ] {
            for (peer, limit) in [(Method::Gloo, limit), (Method::OpenMpi, 1.0)] {
                let what = format!("N={n}, {name}: {}'s time to ours", peer.name());
                let pair = [(cell, peer), (cell, Method::OURS)];
                goals.push(ratio(what, AtLeast(limit), seconds, pair));
            }
        }
        let what = format!("N={n}, 16 MiB, shaped: share of the link");
        let share = |sample: &Sample| goodput_share(shaped, sample);
        goals.push(figure(what, AtLeast(goodput), shaped, Method::OURS, &share));
        for (peer, limit) in [(Method::Gloo, cpu_ratio), (Method::OpenMpi, 1.0)] {
            let what = format!("N={n}, 16 MiB: our processor time to {}'s", peer.name());
            let pair = [(unshaped, Method::OURS), (unshaped, peer)];
            goals.push(ratio(what, AtMost(limit), cpu, pair));
        }
        let sparse = Cell { task: Task::SparseSum, ..shaped };
        let what = format!("N={n}, 16 MiB, shaped: 90 % zeros to dense");
        let pair = [sparse, shaped].map(|cell| (cell, Method::OURS));
        goals.push(ratio(what, AtMost(0.2), seconds, pair));
    }
    for (method, shaped, unshaped) in PACKED {
        for (n, limit) in WORKERS.into_iter().zip(shaped) {
            for (links, rate, limit) in
                [("shaped", Some(rate(n)), limit), ("unshaped", None, unshaped)]
            {
                let bits = method.bits();
                let what = format!("N={n}, 16 MiB, {links}, {bits} bits: Gloo's time to ours");
                let pair = [Method::Gloo, method].map(|method| (sum(n, rate, LARGE), method));
                goals.push(ratio(what, AtLeast(limit), seconds, pair));
            }
        }
    }
    for (n, what, methods, rate, limit) in IN_NETWORKS.into_iter().chain(IN_RACKS) {
        let pair = methods.map(|method| (sum(n, rate, LARGE), method));
        goals.push(ratio(format!("N={n}, 16 MiB, {what}"), limit, seconds, pair));
    }
    let most = |sample: &Sample| sample.uplink.map_or(f64::NAN, |[up, down]| up.max(down));
    let what = format!("N={SPREAD}, 16 MiB, 0.25 Gb/s: bytes of an uplink to a tensor's");
    let slow = sum(SPREAD, Some(QUARTER_GIGABIT), LARGE);
    goals.push(figure(what, AtMost(UPLINK), slow, Method::Tree, &most));
    let what = "16 MiB, 0.5 Gb/s: our time with N=8 to N=2".to_owned();
    let pair = [8, 2].map(|n| (sum(n, Some(HALF_GIGABIT), LARGE), Method::OURS));
    goals.push(ratio(what, AtMost(1.06), seconds, pair));
    goals.into_iter().flatten().collect()
}

/// What is compared of a sample.
type Quantity = fn(&Sample) -> f64;

/// Values per second and direction, as a share of the link's rate.
pub fn goodput_share(cell: Cell, sample: &Sample) -> f64 {
    cell.rate.map_or(f64::NAN, |rate| cell.size as f64 * 8.0 / sample.seconds / rate as f64)
}

#[cfg(test)]
mod tests;
