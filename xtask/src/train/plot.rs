//! The plots, as SVG.

use std::ops::Range;

use anyhow::Result;
use plotters::prelude::*;
use switchml_rack::Training;

use super::Example;
use crate::plot::{Area, COLOURS, FONT, draw};
use crate::stats::Spread;

/// A named curve: a point for each step, from the first one on.
struct Line {
    name: &'static str,
    points: Vec<f64>,
    style: ShapeStyle,
}

/// A chart's caption, and its vertical axis.
struct Frame<'a> {
    caption: String,
    axis: &'a str,
    range: Range<f64>,
    label: &'a dyn Fn(&f64) -> String,
}

/// Plots losses by step, and below them their differences from Gloo's. `noise` has Gloo's losses in
/// another order of addition.
pub fn losses(
    example: Example,
    gloo: &Training,
    noise: &Training,
    ours: &Training,
) -> Result<String> {
    // One curve is drawn on top of the other.
    let curves = [
        Line {
            name: "Gloo",
            points: gloo.losses.clone(),
            style: COLOURS[2].mix(0.5).stroke_width(6),
        },
        Line { name: "switchml", points: ours.losses.clone(), style: COLOURS[0].stroke_width(1) },
    ];
    let differences = [
        Line {
            name: "Gloo in another order",
            points: exponents(noise, gloo),
            style: COLOURS[2].stroke_width(1),
        },
        Line { name: "switchml", points: exponents(ours, gloo), style: COLOURS[0].stroke_width(1) },
    ];
    let highest = gloo.losses.iter().copied().fold(0.0, f64::max);
    let caption = format!("Loss of {}.py by step, 4 ranks", example.name());
    let upper =
        Frame { caption, axis: "loss", range: 0.0..highest * 1.05, label: &|y| format!("{y}") };
    let caption = "The same, apart from Gloo's".to_owned();
    let lower = Frame { caption, axis: "loss", range: LEAST..0.0, label: &|y| format!("1e{y:.0}") };
    draw(|area| {
        let (above, below) = area.split_vertically(220);
        chart(&above, &upper, &curves)?;
        chart(&below, &lower, &differences)
    })
}

/// The smallest difference that is drawn, as a power of ten: 0 has no logarithm.
const LEAST: f64 = -9.0;

fn exponents(training: &Training, from: &Training) -> Vec<f64> {
    let pairs = training.losses.iter().zip(&from.losses);
    pairs.map(|(a, b)| (a - b).abs().log10().max(LEAST)).collect()
}

/// Losses by step from the first seed, with f32 by Gloo and in 8 bits.
pub fn bits(example: Example, [gloo, bits]: &[Training; 2]) -> Result<String> {
    let line = |name, training: &Training, colour: usize| {
        let steps = training.losses.len() / training.test_losses.len().max(1);
        let points = training.losses[..steps].to_vec();
        Line { name, points, style: COLOURS[colour].stroke_width(1) }
    };
    let lines = [line("Gloo, f32", gloo, 2), line("switchml, 8 bits", bits, 0)];
    let highest = gloo.losses.iter().copied().fold(0.0, f64::max);
    let caption = format!("Loss of {}.py by step, 4 ranks, 8 bits with feedback", example.name());
    let frame =
        Frame { caption, axis: "loss", range: 0.0..highest * 1.05, label: &|y| format!("{y}") };
    draw(|area| chart(area, &frame, &lines))
}

/// Times of steps in all runs, in the order in which they were made, by the name of each way to
/// train.
pub fn times<'a>(ways: impl Iterator<Item = (&'static str, &'a [Vec<f64>])>) -> Result<String> {
    let caption = "Time of a step of wide.py, 4 ranks, links of 1 Gb/s".to_owned();
    steps(caption, ways.map(|(name, runs)| (name, runs.concat())))
}

/// Times of steps while ranks stall, from the shortest one to the longest, by the name of each way.
pub fn sorted_times(
    example: &str,
    ways: impl Iterator<Item = (&'static str, Vec<f64>)>,
) -> Result<String> {
    let sorted = ways.map(|(name, mut seconds)| {
        seconds.sort_by(f64::total_cmp);
        (name, seconds)
    });
    let caption = format!("Times of {example}.py's steps, sorted; in 5 % a rank stalls for 0.2 s");
    steps(caption, sorted)
}

fn steps(caption: String, ways: impl Iterator<Item = (&'static str, Vec<f64>)>) -> Result<String> {
    let line = |(number, (name, seconds)): (usize, (&'static str, Vec<f64>))| Line {
        name,
        points: seconds.iter().map(|seconds| seconds * 1e3).collect(),
        style: COLOURS.get(number).unwrap_or(&BLACK).stroke_width(2),
    };
    let lines: Vec<Line> = ways.enumerate().map(line).collect();
    let highest = lines.iter().flat_map(|line| &line.points).copied().fold(0.0, f64::max);
    let frame =
        Frame { caption, axis: "ms", range: 0.0..highest * 1.2, label: &|y| format!("{y}") };
    draw(|area| chart(area, &frame, &lines))
}

/// Seconds that trainings took, by the name of each way: a dot for each, and a bar to their median.
pub fn durations(
    caption: &str,
    ways: impl Iterator<Item = (&'static str, Vec<f64>)>,
) -> Result<String> {
    let ways: Vec<(&str, Vec<f64>)> = ways.collect();
    // Neither axis is empty, even if no way has a time.
    let highest = ways.iter().flat_map(|(_, seconds)| seconds).copied().fold(1.0, f64::max);
    // Segmented, a range has its end, too.
    let last = ways.len().max(2) - 1;
    draw(|area| {
        let mut chart = ChartBuilder::on(area)
            .caption(caption, FONT)
            .margin(8)
            .x_label_area_size(34)
            .y_label_area_size(56)
            .build_cartesian_2d((0..last).into_segmented(), 0.0..highest * 1.1)?;
        let name = |x: &SegmentValue<usize>| match x {
            SegmentValue::CenterOf(way) => ways.get(*way).map_or("", |(name, _)| name).to_owned(),
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_label_formatter(&name)
            .y_desc("seconds")
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (way, (_, seconds)) in ways.iter().enumerate() {
            let median = Spread::of(seconds.clone()).median;
            let ends = [(SegmentValue::Exact(way), 0.0), (SegmentValue::Exact(way + 1), median)];
            let mut bar = Rectangle::new(ends, COLOURS[0].mix(0.5).filled());
            bar.set_margin(0, 0, 12, 12);
            chart.draw_series([bar])?;
            let dot = |second: &f64| {
                Circle::new((SegmentValue::CenterOf(way), *second), 3, BLACK.filled())
            };
            chart.draw_series(seconds.iter().map(dot))?;
        }
        Ok(())
    })
}

fn chart(area: &Area, frame: &Frame, lines: &[Line]) -> Result<(), Box<dyn std::error::Error>> {
    let steps = lines.iter().map(|line| line.points.len()).max().unwrap_or(0);
    let mut chart = ChartBuilder::on(area)
        .caption(&frame.caption, FONT)
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..steps as f64, frame.range.clone())?;
    chart
        .configure_mesh()
        .x_desc("step")
        .y_desc(frame.axis)
        .x_label_formatter(&|x| format!("{x}"))
        .y_label_formatter(frame.label)
        .light_line_style(TRANSPARENT)
        .draw()?;
    for Line { name, points, style } in lines {
        let style = *style;
        let points = points.iter().enumerate().map(|(i, y)| (i as f64 + 1.0, *y));
        chart
            .draw_series(LineSeries::new(points, style))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperMiddle)
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}
