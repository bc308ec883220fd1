//! The plots, as SVG.

use anyhow::Result;

use super::Measured;
use crate::plot::{Axis, Chart, Corner, Mark, Series, colour, draw};

/// Time of an all-reduce against loss: medians, with the range of the runs.
pub fn time_against_loss(measured: &[Measured]) -> Result<String> {
    let lossy: Vec<&Measured> =
        measured.iter().filter(|condition| condition.only_loss && condition.loss > 0.0).collect();
    let x = |condition: &Measured| condition.loss * 100.0;
    let none = measured[0].median().time_ms;
    let medians = lossy.iter().map(|condition| (x(condition), condition.median().time_ms));
    let line = [Mark::Line(medians.collect(), 3)].into_iter();
    let ranges = lossy.iter().map(|condition| {
        let (low, high) = condition.range();
        Mark::Segment([(x(condition), low), (x(condition), high)])
    });
    let ends = [lossy.first(), lossy.last()].map(|end| (end.map_or(1.0, |end| x(end)), none));
    draw(&[Chart {
        caption: "Time of an all-reduce against loss, each way".to_owned(),
        x: Axis::logarithmic("frames lost, in %", Vec::new()),
        y: Axis::logarithmic("ms", Vec::new()),
        legend: Some(Corner::UpperLeft),
        series: vec![
            Series::named("no loss", colour(1), 1, [Mark::Segment(ends)]),
            Series::named("median, and range of the runs", colour(0), 2, line.chain(ranges)),
        ],
    }])
}

/// The share of chunks that have their result, against time: one curve per loss rate.
pub fn chunks_against_time(measured: &[Measured]) -> Result<String> {
    let curves = measured.iter().filter(|condition| condition.only_loss).enumerate();
    let curve = |(number, curve): (usize, &Measured)| {
        let points = curve.median().sent.finished_us.iter();
        // Times below 0.1 ms would take most of the axis.
        let points = points.map(|(percent, time)| ((time / 1e3).max(0.1), *percent)).collect();
        Series::named(curve.name, colour(number), 2, [Mark::Line(points, 0)])
    };
    draw(&[Chart {
        caption: "Chunks that have their result, against time".to_owned(),
        x: Axis::logarithmic("ms since the call's first packet", Vec::new()),
        y: Axis::linear("% of chunks", 1.0),
        legend: Some(Corner::UpperLeft),
        series: curves.map(curve).collect(),
    }])
}
