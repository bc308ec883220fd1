//! The goals, and whether they are met.

use std::fmt;

use super::measured::{Cell, Measured, Method, Results, Sample, Task};
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

/// Limits of a method's time relative to another's, in networks: name, methods, the links' rate,
/// and the limit.
const IN_NETWORKS: [(&str, [Method; 2], Option<u64>, Limit); 6] = {
    const SHAPED: Option<u64> = Some(rate(NETWORKED));
    const SLOW: Option<u64> = Some(QUARTER_GIGABIT);
    use Limit::{AtLeast, AtMost};
    use Method::{Bundle, Copies, GlooOnePort, Native, NativeOnePort, OnePort, OnePortCopies};
    [
        ("unshaped: copies to multicast", [Copies, Bundle], None, AtMost(1.15)),
        ("shaped: copies to multicast", [Copies, Bundle], SHAPED, AtMost(1.05)),
        ("shaped: one port to star", [OnePort, Bundle], SHAPED, AtMost(1.1)),
        (
            "shaped: one port without multicast to star",
            [OnePortCopies, Bundle],
            SHAPED,
            AtMost(1.1),
        ),
        ("0.25 Gb/s: one port to star, native", [NativeOnePort, Native], SLOW, AtMost(1.1)),
        (
            "shaped: one port without multicast, Gloo's time to ours",
            [GlooOnePort, OnePortCopies],
            SHAPED,
            AtLeast(1.4),
        ),
    ]
};

/// Limits of a method's time relative to another's, in racks with uplinks: name, methods, the
/// links' rate, and the limit.
const IN_RACKS: [(&str, [Method; 2], u64, Limit); 6] = {
    use Limit::{AtLeast, AtMost};
    use Method::{Bundle, GlooInRacks, OpenMpiInRacks, Tree};
    const SLOW: u64 = QUARTER_GIGABIT;
    [
        ("1 Gb/s: racks to one rack", [Tree, Bundle], GIGABIT, AtMost(1.15)),
        ("1 Gb/s: Gloo in racks to ours", [GlooInRacks, Tree], GIGABIT, AtLeast(1.5)),
        ("1 Gb/s: Open MPI in racks to ours", [OpenMpiInRacks, Tree], GIGABIT, AtLeast(3.0)),
        ("0.25 Gb/s: racks to one rack", [Tree, Bundle], SLOW, AtMost(1.15)),
        ("0.25 Gb/s: Gloo in racks to ours", [GlooInRacks, Tree], SLOW, AtLeast(1.5)),
        ("0.25 Gb/s: Open MPI in racks to ours", [OpenMpiInRacks, Tree], SLOW, AtLeast(3.0)),
    ]
};

/// Bytes of an uplink each way, for each byte of a tensor: frames have headers, and maxima come on
/// top.
const UPLINK: f64 = 1.1;

/// All goals whose settings were measured.
pub fn all(results: &Results) -> Vec<Goal> {
    use Limit::{AtLeast, AtMost};
    let mut goals = Vec::new();
    let mut add = |what: String, limit, measured: Option<Spread>| {
        goals.extend(measured.map(|measured| Goal { what, measured, limit }));
    };
    let (seconds, cpu) = (|sample: &Sample| sample.seconds, |sample: &Sample| sample.cpu_seconds);
    for (n, unshaped_ratio, shaped_ratio, goodput, cpu_ratio) in BY_WORKERS {
        let cell = |rate, size| Cell { workers: n, rate, size, task: Task::Sum };
        let (unshaped, shaped, small) =
            (cell(None, LARGE), cell(Some(rate(n)), LARGE), cell(None, SMALL));
        // The ratio of a peer's quantity to ours.
        let against = |peer, cell, quantity: &dyn Fn(&Sample) -> f64| {
            ratio(results.get(cell, peer), results.get(cell, Method::OURS), quantity)
        };
        for (name, cell, limit) in [
            ("16 MiB", unshaped, unshaped_ratio),
            ("16 MiB, shaped", shaped, shaped_ratio),
            ("64 KiB", small, SMALL_RATIO),
        ] {
            let gloo = against(Method::Gloo, cell, &seconds);
            add(format!("N={n}, {name}: Gloo's time to ours"), AtLeast(limit), gloo);
            let mpi = against(Method::OpenMpi, cell, &seconds);
            add(format!("N={n}, {name}: Open MPI's time to ours"), AtLeast(1.0), mpi);
        }
        let ours = results.get(shaped, Method::OURS);
        let share = ours.map(|ours| Spread::of(ours.of(|sample| goodput_share(shaped, sample))));
        add(format!("N={n}, 16 MiB, shaped: share of the link"), AtLeast(goodput), share);
        for (peer, limit) in [(Method::Gloo, cpu_ratio), (Method::OpenMpi, 1.0)] {
            let ratio =
                ratio(results.get(unshaped, Method::OURS), results.get(unshaped, peer), &cpu);
            add(
                format!("N={n}, 16 MiB: our processor time to {}'s", peer.name()),
                AtMost(limit),
                ratio,
            );
        }
        let sparse = results.get(Cell { task: Task::SparseSum, ..shaped }, Method::OURS);
        add(
            format!("N={n}, 16 MiB, shaped: 90 % zeros to dense"),
            AtMost(0.2),
            ratio(sparse, ours, &seconds),
        );
    }
    for (method, shaped, unshaped) in PACKED {
        for (workers, limit) in WORKERS.into_iter().zip(shaped) {
            for (links, rate, limit) in
                [("shaped", Some(rate(workers)), limit), ("unshaped", None, unshaped)]
            {
                let cell = Cell { workers, rate, size: LARGE, task: Task::Sum };
                let (gloo, ours) = (results.get(cell, Method::Gloo), results.get(cell, method));
                let bits = method.bits();
                let what =
                    format!("N={workers}, 16 MiB, {links}, {bits} bits: Gloo's time to ours");
                add(what, AtLeast(limit), ratio(gloo, ours, &seconds));
            }
        }
    }
    let at_half = |workers| {
        let cell = Cell { workers, rate: Some(HALF_GIGABIT), size: LARGE, task: Task::Sum };
        results.get(cell, Method::OURS)
    };
    for (what, [method, other], rate, limit) in IN_NETWORKS {
        let cell = Cell { workers: NETWORKED, rate, size: LARGE, task: Task::Sum };
        let ratio = ratio(results.get(cell, method), results.get(cell, other), &seconds);
        add(format!("N={NETWORKED}, 16 MiB, {what}"), limit, ratio);
    }
    goals_in_racks(results, &mut add);
    let growth = ratio(at_half(8), at_half(2), &seconds);
    add("16 MiB, 0.5 Gb/s: our time with N=8 to N=2".to_owned(), AtMost(1.06), growth);
    goals
}

fn goals_in_racks(results: &Results, add: &mut impl FnMut(String, Limit, Option<Spread>)) {
    let cell = |rate| Cell { workers: SPREAD, rate: Some(rate), size: LARGE, task: Task::Sum };
    let seconds = |sample: &Sample| sample.seconds;
    for (what, [method, other], rate, limit) in IN_RACKS {
        let of = |method| results.get(cell(rate), method);
        let what = format!("N={SPREAD}, 16 MiB, {what}");
        add(what, limit, ratio(of(method), of(other), &seconds));
    }
    let most = |sample: &Sample| sample.uplink.map_or(f64::NAN, |[up, down]| up.max(down));
    let measured = results.get(cell(QUARTER_GIGABIT), Method::Tree);
    let what = format!("N={SPREAD}, 16 MiB, 0.25 Gb/s: bytes of an uplink to a tensor's");
    let spread = measured.map(|measured| Spread::of(measured.of(most)));
    add(what, Limit::AtMost(UPLINK), spread);
}

/// Values per second and direction, as a share of the link's rate.
pub fn goodput_share(cell: Cell, sample: &Sample) -> f64 {
    cell.rate.map_or(f64::NAN, |rate| cell.size as f64 * 8.0 / sample.seconds / rate as f64)
}

fn ratio(
    numerator: Option<&Measured>,
    denominator: Option<&Measured>,
    quantity: &dyn Fn(&Sample) -> f64,
) -> Option<Spread> {
    Some(Spread::of_ratios(&numerator?.of(quantity), &denominator?.of(quantity)))
}

#[cfg(test)]
mod tests;
