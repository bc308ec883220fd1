//! Times of the calls that sharded training uses, and of its steps.

use std::fmt::Write;

use anyhow::Result;
use switchml_rack::{Shaping, Training};

use super::{Backend, Example, Outcome, RATE, Site, plot};
use crate::stats::Spread;

/// Steps before the timed ones: allocation, and the profiling of the order of calls.
const WARMUP: usize = 2;

/// The largest difference of losses. Our sums are in fixed point, and Gloo's in another order.
const TOLERANCE: f64 = 1e-3;

/// The measurements: the script's name of each, its description, and the least ratio of Gloo's time
/// to ours.
const STEPS: [(&str, &str, Option<f64>); 6] = [
    ("scatter", "reduce-scatter of 16 MiB", Some(1.0)),
    ("gather", "all-gather of 16 MiB", Some(1.0)),
    ("both", "both at once", Some(1.6)),
    ("fsdp", "step of `fully_shard`, 8.4 million parameters", None),
    ("prefetch", "the same, with `_set_unshard_async_op(True)`", Some(1.3)),
    ("zero", "step with `ZeroRedundancyOptimizer`", None),
];

/// Makes steps of each kind with both backends, in turn.
pub fn compare(site: &Site, runs: usize) -> Result<Outcome> {
    let _shaped = (Shaping::new(&site.ours, RATE)?, Shaping::new(&site.gloo, RATE)?);
    let mut text = format!(
        "sharded.py, 4 ranks, links of 1 Gb/s; {runs} runs of each, in turn; ms: median \
         (quartiles)\n\n| | Gloo | switchml | Gloo's time to it, run by run |\n\
         | --- | --- | --- | --- |\n"
    );
    let (mut missed, mut steps) = (Vec::new(), [Vec::new(), Vec::new()]);
    for (what, name, goal) in STEPS {
        let (mut gloo, mut ours) = (Vec::new(), Vec::new());
        for run in 0..runs {
            let mut make = |backend| -> Result<Training> {
                let training = site.train(Example::Sharded, backend, &[what])?;
                let times = if backend == Backend::Gloo { &mut gloo } else { &mut ours };
                times.push(training.seconds[WARMUP..].to_vec());
                Ok(training)
            };
            let (first, second) = match run % 2 {
                0 => (Backend::Gloo, Backend::Switchml),
                _ => (Backend::Switchml, Backend::Gloo),
            };
            let [first, second] = [make(first)?, make(second)?];
            let apart = first.losses.iter().zip(&second.losses).map(|(a, b)| (a - b).abs());
            let apart = apart.fold(0.0, f64::max);
            if apart > TOLERANCE {
                missed.push(format!("{what}: losses are {apart} apart"));
            }
        }
        let ratio = Spread::of_ratios(&medians(&gloo), &medians(&ours));
        if let Some(goal) = goal.filter(|goal| ratio.high < *goal) {
            missed.push(format!("{name}: {:.2} of Gloo's speed, goal {goal}", ratio.median));
        }
        let goal = goal.map_or(String::new(), |goal| format!("; goal: {goal} or more"));
        let cell = |times: &[Vec<f64>]| {
            let Spread { low, median, high } = Spread::of(times.concat());
            format!("{:.0} ({:.0}-{:.0})", median * 1e3, low * 1e3, high * 1e3)
        };
        let Spread { low, median, high } = ratio;
        let row = format!(
            "| {name} | {} | {} | {median:.2} ({low:.2}-{high:.2}){goal} |",
            cell(&gloo),
            cell(&ours)
        );
        // The result is printed at once, in case a later script fails.
        eprintln!("train: {row}");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{row}");
        if what == "prefetch" {
            steps = [gloo, ours];
        }
    }
    let lines = ["Gloo", "switchml"].into_iter().zip(steps.iter().map(|runs| runs.concat()));
    let caption = "Time of a step of sharded.py, 4 ranks, links of 1 Gb/s".to_owned();
    let (name, plot) = ("train-sharded.svg".to_owned(), plot::times(caption, lines)?);
    Ok(Outcome { name, text, plot, missed })
}

fn medians(runs: &[Vec<f64>]) -> Vec<f64> {
    runs.iter().map(|run| Spread::of(run.clone()).median).collect()
}
