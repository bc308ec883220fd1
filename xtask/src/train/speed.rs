//! Time of a training step where communication takes most of it.

use std::fmt::Write;

use anyhow::Result;
use switchml_rack::{Shaping, Training};

use super::{Backend, Example, Outcome, Site, plot};
use crate::stats::Spread;

/// Of the links, in bits per second.
const RATE: u64 = 1_000_000_000;

/// Steps before the timed ones: allocation, and DDP's second look at its buckets.
const WARMUP: usize = 2;

/// Gloo's time to ours. A ring of four moves 1.5 times the bytes.
const GOAL: f64 = 1.35;

/// Trains with both, in turn, and takes the times of steps.
pub fn compare(site: &Site, runs: usize) -> Result<Outcome> {
    let _shaped = (Shaping::new(&site.ours, RATE)?, Shaping::new(&site.gloo, RATE)?);
    let (mut gloo, mut ours) = (Vec::new(), Vec::new());
    for run in 0..runs {
        // Now the one first, now the other.
        for backend in
            [[Backend::Gloo, Backend::Switchml], [Backend::Switchml, Backend::Gloo]][run % 2]
        {
            let training = site.train(Example::Wide, backend, &[])?;
            if backend == Backend::Gloo { gloo.push(training) } else { ours.push(training) }
        }
    }
    let (gloo, ours) = (times(&gloo), times(&ours));
    let ratio = Spread::of_ratios(&medians(&gloo), &medians(&ours));
    let mut missed = Vec::new();
    // As in the benchmark: when the better quartile misses it too.
    if ratio.high < GOAL {
        missed.push(format!(
            "wide: {:.2} times Gloo's step rate, and {GOAL} is the goal",
            ratio.median
        ));
    }
    Ok(Outcome { text: table(&gloo, &ours, ratio), plot: plot::times(&gloo, &ours)?, missed })
}

/// By run, of the steps after the first ones, in seconds.
fn times(trainings: &[Training]) -> Vec<Vec<f64>> {
    trainings.iter().map(|training| training.seconds[WARMUP..].to_vec()).collect()
}

fn medians(runs: &[Vec<f64>]) -> Vec<f64> {
    runs.iter().map(|run| Spread::of(run.clone()).median).collect()
}

fn table(gloo: &[Vec<f64>], ours: &[Vec<f64>], ratio: Spread) -> String {
    let mut text = format!(
        "wide.py, 4 ranks, links of 1 Gb/s; {} runs with each, in turn, and {} timed steps in each \
         of them\n\n\
         | | time of a step in ms: median (quartiles) | medians of the runs | steps per second |\n\
         | --- | --- | --- | --- |\n",
        ours.len(),
        ours[0].len()
    );
    for (name, runs) in [("Gloo", gloo), ("switchml", ours)] {
        let Spread { low, median, high } = Spread::of(runs.concat());
        let each: Vec<String> =
            medians(runs).iter().map(|seconds| format!("{:.0}", seconds * 1e3)).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {name} | {:.0} ({:.0}-{:.0}) | {} | {:.2} |",
            median * 1e3,
            low * 1e3,
            high * 1e3,
            each.join(", "),
            1.0 / median
        );
    }
    let Spread { low, median, high } = ratio;
    text + &format!(
        "\n\
         Gloo's time to ours, run by run: {median:.2} ({low:.2}-{high:.2}); goal: {GOAL} or more.\n"
    )
}
