//! The plots, as SVG.

use anyhow::Result;
use plotters::prelude::*;

use super::measure::Measured;
use crate::plot::{COLOURS, FONT, draw};

/// Time of an all-reduce against loss: medians, with the range of the runs.
pub fn time_against_loss(measured: &[Measured]) -> Result<String> {
    let lossy: Vec<&Measured> =
        measured.iter().filter(|condition| condition.only_loss && condition.loss > 0.0).collect();
    let none = measured[0].median().time_ms;
    let longest = lossy.iter().map(|condition| condition.range().1).fold(none, f64::max);
    draw(|area| {
        let mut chart = ChartBuilder::on(area)
            .caption("Time of an all-reduce against loss, each way", FONT)
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(
                (0.05..30.0f64).log_scale(),
                (none / 2.0..longest * 1.3).log_scale(),
            )?;
        chart
            .configure_mesh()
            .x_desc("frames lost, in %")
            .y_desc("ms")
            .x_label_formatter(&|x| format!("{x}"))
            .y_label_formatter(&|y| format!("{y:.0}"))
            .light_line_style(TRANSPARENT)
            .draw()?;
        chart
            .draw_series(LineSeries::new([(0.05, none), (30.0, none)], COLOURS[1]))?
            .label("no loss")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], COLOURS[1]));
        let medians =
            lossy.iter().map(|condition| (condition.loss * 100.0, condition.median().time_ms));
        chart
            .draw_series(LineSeries::new(medians, COLOURS[0]).point_size(4))?
            .label("median, and range of the runs")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], COLOURS[0]));
        chart.draw_series(lossy.iter().map(|condition| {
            let (x, (low, high)) = (condition.loss * 100.0, condition.range());
            PathElement::new([(x, low), (x, high)], COLOURS[0].stroke_width(2))
        }))?;
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .border_style(BLACK.mix(0.3))
            .draw()?;
        Ok(())
    })
}

/// The share of chunks that have their result, against time: one curve per loss rate.
pub fn chunks_against_time(measured: &[Measured]) -> Result<String> {
    let curves: Vec<&Measured> = measured.iter().filter(|condition| condition.only_loss).collect();
    let end =
        |condition: &&Measured| condition.median().finished.last().map_or(1.0, |point| point.1);
    let longest = curves.iter().map(end).fold(1.0, f64::max);
    let shortest =
        curves.iter().flat_map(|curve| curve.median().finished.first()).map(|point| point.1);
    let shortest = shortest.fold(longest, f64::min).max(0.1);
    draw(|area| {
        let mut chart = ChartBuilder::on(area)
            .caption("Chunks that have their result, against time", FONT)
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d((shortest..longest * 1.1).log_scale(), 0.0..100.0)?;
        chart
            .configure_mesh()
            .x_desc("ms since the call's first packet")
            .y_desc("% of chunks")
            .x_label_formatter(&|x| format!("{x}"))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (curve, colour) in curves.iter().zip(COLOURS) {
            let points = curve
                .median()
                .finished
                .iter()
                .map(|(percent, time)| (time.max(shortest), *percent));
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                .label(curve.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .border_style(BLACK.mix(0.3))
            .draw()?;
        Ok(())
    })
}
