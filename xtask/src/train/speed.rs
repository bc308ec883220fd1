//! The time of a training step that communication dominates.

use std::fmt::Write;

use anyhow::Result;
use switchml_rack::Shaping;

use super::ways::{WAYS, Way};
use super::{Example, Outcome, RATE, Site, plot};
use crate::stats::Spread;

/// Steps before the timed ones: allocation, DDP's rebuilding of its buckets, and the steps that
/// PowerSGD does not compress.
const WARMUP: usize = 2;

/// The least ratio of Gloo's time to a way's, where it is a goal. A ring of four moves 1.5 times
/// the bytes.
const GOALS: [Option<f64>; WAYS.len()] = [None, Some(1.35), None, Some(3.0), None, None];

const CAPTION: &str = "Time of a step of wide.py, 4 ranks, links of 1 Gb/s";

/// The times of one way's steps after the first ones, by run, in seconds.
type Times = Vec<Vec<f64>>;

/// Trains in all ways, in turn, and takes the times of steps.
pub fn compare(site: &Site, runs: usize) -> Result<Outcome> {
    let _shaped = (Shaping::new(&site.ours, RATE)?, Shaping::new(&site.gloo, RATE)?);
    let mut times: [Times; WAYS.len()] = Default::default();
    for run in 0..runs {
        // The order rotates, so that no way always follows the same other one.
        for turn in (0..WAYS.len()).map(|turn| (turn + run) % WAYS.len()) {
            let Way { backend, arguments, .. } = &WAYS[turn];
            let training = site.train(Example::Wide, *backend, arguments)?;
            times[turn].push(training.seconds[WARMUP..].to_vec());
        }
    }
    let ratios: Vec<Spread> =
        times.iter().map(|runs| Spread::of_ratios(&medians(&times[0]), &medians(runs))).collect();
    let missed = WAYS.iter().zip(GOALS).zip(&ratios).filter_map(|((way, goal), ratio)| {
        // A goal is missed only if the better quartile misses it, too, as in the benchmark.
        let goal = goal.filter(|goal| ratio.high < *goal)?;
        let Way { name, .. } = way;
        Some(format!("wide, {name}: {:.2} times Gloo's step rate, goal {goal}", ratio.median))
    });
    let missed = missed.collect();
    let lines = WAYS.iter().zip(&times).map(|(way, runs)| (way.name, runs.concat()));
    Ok(Outcome {
        name: "train-wide.svg".to_owned(),
        text: table(&times, &ratios),
        plot: plot::times(CAPTION.to_owned(), lines)?,
        missed,
    })
}

fn medians(runs: &[Vec<f64>]) -> Vec<f64> {
    runs.iter().map(|run| Spread::of(run.clone()).median).collect()
}

fn table(times: &[Times], ratios: &[Spread]) -> String {
    let mut text = format!(
        "wide.py, 4 ranks, links of 1 Gb/s; {} runs of each, in turn, with {} timed steps;\n\
         8 bits with error feedback\n\n\
         | | time of a step in ms: median (quartiles) | medians of the runs | steps per second | \
         Gloo's time to it, run by run |\n\
         | --- | --- | --- | --- | --- |\n",
        times[0].len(),
        times[0].first().map_or(0, Vec::len)
    );
    for (((Way { name, .. }, goal), runs), ratio) in WAYS.iter().zip(GOALS).zip(times).zip(ratios) {
        let Spread { low, median, high } = Spread::of(runs.concat());
        let each: Vec<String> =
            medians(runs).iter().map(|seconds| format!("{:.0}", seconds * 1e3)).collect();
        let goal = goal.map_or(String::new(), |goal| format!("; goal: {goal} or more"));
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {name} | {:.0} ({:.0}-{:.0}) | {} | {:.2} | {:.2} ({:.2}-{:.2}){goal} |",
            median * 1e3,
            low * 1e3,
            high * 1e3,
            each.join(", "),
            1.0 / median,
            ratio.median,
            ratio.low,
            ratio.high
        );
    }
    text
}
