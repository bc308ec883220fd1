//! Draws times against numbers of ranks, both in powers.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::scaling::Line;

const SIZE: (u32, u32) = (720, 420);
const FONT: (&str, u32) = ("sans-serif", 14);
/// Tableau's colours, which most colour-blind readers can tell apart.
const COLOURS: [RGBColor; 5] = [
    RGBColor(78, 121, 167),
    RGBColor(225, 87, 89),
    RGBColor(89, 161, 79),
    RGBColor(242, 142, 43),
    RGBColor(118, 70, 140),
];

/// A line for each name, of ranks and milliseconds, as SVG.
///
/// # Errors
/// If the library fails.
pub fn draw(lines: &[Line]) -> Result<String> {
    let mut svg = String::new();
    // Errors of plotters borrow the string.
    let painted = paint(&mut svg, lines).map_err(|error| anyhow!("cannot draw: {error}"));
    painted.map(|()| svg)
}

fn paint(svg: &mut String, lines: &[Line]) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let points = || lines.iter().flat_map(|(_, points)| points);
    let most = points().fold(1f64, |most, (_, y)| most.max(*y));
    let widest = points().fold(8f64, |most, (x, _)| most.max(*x));
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d((8f64..widest).log_scale(), (0.5..2.0 * most).log_scale())
        .map_err(|error| error.to_string())?;
    chart
        .configure_mesh()
        .x_desc("ranks")
        .y_desc("ms")
        .label_style(FONT)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .draw()
        .map_err(|error| error.to_string())?;
    for ((name, points), colour) in lines.iter().zip(COLOURS) {
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))
            .map_err(|error| error.to_string())?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
    }
    chart
        .configure_series_labels()
        .label_font(FONT)
        .background_style(WHITE)
        .position(SeriesLabelPosition::UpperLeft)
        .draw()
        .map_err(|error| error.to_string())?;
    Ok(area.present().map_err(|error| error.to_string())?)
}
