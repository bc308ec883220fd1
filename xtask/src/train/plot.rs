//! The plots, as SVG.

use anyhow::Result;
use switchml_rack::Training;

use super::Example;
use crate::plot::{Axis, BLACK, Chart, Color, Corner, LEAST, Mark, Series, colour, draw};
use crate::stats::Spread;

/// Plots losses by step, and below them their differences from Gloo's. `noise` has Gloo's losses in
/// another order of addition.
pub fn losses(
    example: Example,
    gloo: &Training,
    noise: &Training,
    ours: &Training,
) -> Result<String> {
    let apart = |training: &Training| -> Vec<f64> {
        let pairs = training.losses.iter().zip(&gloo.losses);
        pairs.map(|(a, b)| (a - b).abs().max(LEAST)).collect()
    };
    // One curve is drawn on top of the other.
    let curves = vec![
        Series::named("Gloo", colour(2).mix(0.5), 6, [line(&gloo.losses)]),
        Series::named("switchml", colour(0), 1, [line(&ours.losses)]),
    ];
    let differences = vec![
        Series::named("Gloo in another order", colour(2), 1, [line(&apart(noise))]),
        Series::named("switchml", colour(0), 1, [line(&apart(ours))]),
    ];
    let caption = format!("Loss of {}.py by step, 4 ranks", example.name());
    let mut below = by_step("The same, apart from Gloo's".to_owned(), "loss", 1.0, differences);
    below.y = Axis::logarithmic("loss", Vec::new());
    draw(&[by_step(caption, "loss", 1.05, curves), below])
}

/// Losses by step from the first seed, with f32 by Gloo and in 8 bits.
pub fn bits(example: Example, [gloo, bits]: &[Training; 2]) -> Result<String> {
    let first_seed = |training: &Training| {
        line(&training.losses[..training.losses.len() / training.test_losses.len().max(1)])
    };
    let series = vec![
        Series::named("Gloo, f32", colour(2), 1, [first_seed(gloo)]),
        Series::named("switchml, 8 bits", colour(0), 1, [first_seed(bits)]),
    ];
    let caption = format!("Loss of {}.py by step, 4 ranks, 8 bits with feedback", example.name());
    draw(&[by_step(caption, "loss", 1.05, series)])
}

/// Times of steps in seconds in the order in which they were made, by the name of each way.
pub fn times<'a>(
    caption: String,
    ways: impl Iterator<Item = (&'a str, Vec<f64>)>,
) -> Result<String> {
    let series = ways.enumerate().map(|(number, (name, seconds))| {
        let milliseconds: Vec<f64> = seconds.iter().map(|seconds| seconds * 1e3).collect();
        Series::named(name, colour(number), 2, [line(&milliseconds)])
    });
    draw(&[by_step(caption, "ms", 1.2, series.collect())])
}

/// Seconds that trainings took, by the name of each way: a dot for each, and a bar to their median.
pub fn durations<'a>(
    caption: String,
    ways: impl Iterator<Item = (&'a str, Vec<f64>)>,
) -> Result<String> {
    /// Parts of a way's width: a gap, six for the bar, and a gap.
    const PARTS: usize = 8;
    let ways: Vec<_> = ways.collect();
    let (mut bars, mut dots) = (Vec::new(), Vec::new());
    for (way, (_, seconds)) in ways.iter().enumerate() {
        let left = (way * PARTS) as f64;
        let median = Spread::of(seconds.clone()).median;
        bars.push(Mark::Bar([(left + 1.0, 0.0), (left + 7.0, median)]));
        dots.extend(seconds.iter().map(|second| Mark::Dot((left + 4.0, *second))));
    }
    draw(&[Chart {
        caption,
        x: Axis::groups(ways.iter().map(|(name, _)| *name), PARTS),
        y: Axis::linear("seconds", 1.1),
        legend: None,
        series: vec![
            Series::nameless(colour(0).mix(0.5), 1, bars),
            Series::nameless(BLACK, 1, dots),
        ],
    }])
}

/// A value for each step, from the first one on.
fn line(values: &[f64]) -> Mark {
    Mark::Line((1..).map(f64::from).zip(values.iter().copied()).collect(), 0)
}

fn by_step(caption: String, axis: &'static str, room: f64, series: Vec<Series>) -> Chart {
    Chart {
        caption,
        x: Axis::linear("step", 1.0),
        y: Axis::linear(axis, room),
        legend: Some(Corner::UpperMiddle),
        series,
    }
}
