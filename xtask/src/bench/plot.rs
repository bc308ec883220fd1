//! The plots, as SVG.

use anyhow::Result;

use super::measured::{Cell, Measured, Method, Results, Sample, Task};
use super::plan::{LARGE, WORKERS, rate};
use crate::plot::{Axis, Chart, Corner, Mark, Series, colour, draw};
use crate::stats::Spread;

/// Every plot for which a line has at least three points: the file's name, and the SVG.
pub fn all(results: &Results) -> Result<Vec<(String, String)>> {
    let milliseconds = |sample: &Sample| sample.seconds * 1e3;
    let cpu = |sample: &Sample| sample.cpu_seconds * 1e3;
    let mut files = Vec::new();
    let mut add = |name: String, caption: String, [x, y]: [&'static str; 2], lines: Vec<Line>| {
        if lines.iter().any(|(_, points)| points.len() > 2) {
            files.push((name, draw(&[chart(caption, [x, y], &lines)])?));
        }
        anyhow::Ok(())
    };
    for workers in WORKERS {
        for (links, rate) in [("unshaped", None), ("shaped", Some(rate(workers)))] {
            let sizes =
                |cell: Cell| (cell.workers, cell.rate, cell.task) == (workers, rate, Task::Sum);
            let lines = lines(results, sizes, |cell| cell.size as f64 / 1024.0, milliseconds);
            let caption =
                format!("Time of an all-reduce against size, {workers} workers, links {links}");
            let name = format!("time-against-size-{workers}-{links}.svg");
            add(name, caption, ["KiB", "ms"], lines)?;
        }
    }
    let large = |cell: Cell| (cell.size, cell.task, cell.rate) == (LARGE, Task::Sum, None);
    let workers = |cell: Cell| cell.workers as f64;
    add(
        "time-against-workers.svg".to_owned(),
        "Time of an all-reduce of 16 MiB against the number of workers, links unshaped".to_owned(),
        ["workers", "ms"],
        lines(results, large, workers, milliseconds),
    )?;
    add(
        "cpu-against-workers.svg".to_owned(),
        "Processor time of an all-reduce of 16 MiB, all processes and softirq, links unshaped"
            .to_owned(),
        ["workers", "CPU-ms"],
        lines(results, large, workers, cpu),
    )?;
    Ok(files)
}

/// The method, and its points.
type Line = (Method, Vec<(f64, Spread)>);

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

/// Lines with both axes logarithmic, and marks where it was measured.
fn chart(caption: String, [x, y]: [&'static str; 2], lines: &[Line]) -> Chart {
    let marks = lines.iter().flat_map(|(_, points)| points).map(|point| point.0).collect();
    let measured = lines.iter().enumerate().filter(|(_, (_, points))| !points.is_empty());
    Chart {
        caption,
        x: Axis::logarithmic(x, marks),
        y: Axis::logarithmic(y, Vec::new()),
        legend: Some(Corner::UpperLeft),
        series: measured
            .map(|(number, (method, points))| {
                Series::named(method.name(), colour(number), 2, Mark::medians(points))
            })
            .collect(),
    }
}
