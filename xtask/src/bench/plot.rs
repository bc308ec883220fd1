//! The plots, as SVG.

use anyhow::Result;
use plotters::prelude::*;

use super::measured::{Cell, Measured, Method, Results, Sample, Task};
use super::plan::{LARGE, WORKERS, rate};
use crate::plot::{COLOURS, FONT, draw};
use crate::stats::Spread;

/// A file's name and content.
type File = (String, String);

/// A line: the method, and its points with the quartiles of the measured quantity.
type Line = (Method, Vec<(f64, Spread)>);

/// Every plot for which a line has at least three points.
pub fn all(results: &Results) -> Result<Vec<File>> {
    let mut files = Vec::new();
    let milliseconds = |sample: &Sample| sample.seconds * 1e3;
    let cpu = |sample: &Sample| sample.cpu_seconds * 1e3;
    let shaped = |workers| Some(rate(workers));
    for workers in WORKERS {
        for (links, rate) in [("unshaped", None), ("shaped", shaped(workers))] {
            let sizes =
                |cell: Cell| (cell.workers, cell.rate, cell.task) == (workers, rate, Task::Sum);
            let lines = lines(results, sizes, |cell| cell.size as f64 / 1024.0, milliseconds);
            let caption =
                format!("Time of an all-reduce against size, {workers} workers, links {links}");
            let name = format!("time-against-size-{workers}-{links}.svg");
            add(&mut files, &name, &caption, ["KiB", "ms"], &lines)?;
        }
    }
    let large = |cell: Cell| (cell.size, cell.task) == (LARGE, Task::Sum);
    let against = |cell: Cell| cell.workers as f64;
    let unshaped = |cell: Cell| large(cell) && cell.rate.is_none();
    let lines_of = |quantity: &dyn Fn(&Sample) -> f64| lines(results, unshaped, against, quantity);
    let caption = "Time of an all-reduce of 16 MiB against the number of workers, links unshaped";
    add(
        &mut files,
        "time-against-workers.svg",
        caption,
        ["workers", "ms"],
        &lines_of(&milliseconds),
    )?;
    let caption =
        "Processor time of an all-reduce of 16 MiB, all processes and softirq, links unshaped";
    add(&mut files, "cpu-against-workers.svg", caption, ["workers", "CPU-ms"], &lines_of(&cpu))?;
    Ok(files)
}

/// The points of each method, from the `wanted` cells.
fn lines(
    results: &Results,
    wanted: impl Fn(Cell) -> bool,
    against: impl Fn(Cell) -> f64,
    quantity: impl Fn(&Sample) -> f64,
) -> Vec<Line> {
    let point = |measured: &Measured| (against(measured.cell), Spread::of(measured.of(&quantity)));
    let line = |method| {
        let cells =
            results.0.iter().filter(|measured| measured.method == method && wanted(measured.cell));
        (method, cells.map(point).collect())
    };
    Method::USUAL.map(line).to_vec()
}

fn add(
    files: &mut Vec<File>,
    name: &str,
    caption: &str,
    axes: [&str; 2],
    lines: &[Line],
) -> Result<()> {
    if lines.iter().any(|(_, points)| points.len() > 2) {
        files.push((name.to_owned(), draw_lines(caption, axes, lines)?));
    }
    Ok(())
}

/// Draws lines with both axes logarithmic.
fn draw_lines(caption: &str, [x_name, y_name]: [&str; 2], lines: &[Line]) -> Result<String> {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let range = |values: &mut dyn Iterator<Item = f64>| {
        // The range stays above 0, which has no logarithm.
        let (low, high) =
            values.fold((f64::INFINITY, 0.0f64), |(low, high), y| (low.min(y), high.max(y)));
        (low.max(1e-4) / 1.3)..high.max(2e-4) * 1.3
    };
    let x_range = range(&mut points().map(|point| point.0));
    // Marks at the measured values instead of powers of ten.
    let x_marks: Vec<_> = points().map(|point| point.0).collect();
    let y_range = range(&mut points().flat_map(|point| [point.1.low, point.1.high]));
    draw(|area| {
        let mut chart = ChartBuilder::on(area)
            .caption(caption, FONT)
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(
                x_range.log_scale().with_key_points(x_marks),
                y_range.log_scale(),
            )?;
        chart
            .configure_mesh()
            .x_desc(x_name)
            .y_desc(y_name)
            .x_label_formatter(&|x| format!("{x}"))
            .y_label_formatter(&|y| format!("{y}"))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for ((method, points), colour) in
            lines.iter().zip(COLOURS).filter(|((_, points), _)| !points.is_empty())
        {
            let medians = points.iter().map(|(x, y)| (*x, y.median));
            chart
                .draw_series(LineSeries::new(medians, colour.stroke_width(2)).point_size(3))?
                .label(method.name())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour));
            chart.draw_series(points.iter().map(|(x, y)| {
                PathElement::new([(*x, y.low), (*x, y.high)], colour.stroke_width(2))
            }))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .border_style(BLACK.mix(0.3))
            .draw()?;
        Ok(())
    })
}
