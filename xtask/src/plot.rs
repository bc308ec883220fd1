//! The parts that all plots share.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

/// Tableau's colours, which most colour-blind readers tell apart.
pub const COLOURS: [RGBColor; 5] = [
    RGBColor(78, 121, 167),
    RGBColor(89, 161, 79),
    RGBColor(242, 142, 43),
    RGBColor(225, 87, 89),
    RGBColor(118, 70, 140),
];

/// The font of captions.
pub const FONT: (&str, u32) = ("sans-serif", 14);

const SIZE: (u32, u32) = (720, 420);

/// The area in which plots are drawn.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The SVG of what `paint` draws.
pub fn draw(paint: impl FnOnce(&Area) -> Result<(), Box<dyn std::error::Error>>) -> Result<String> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    let painted = area
        .fill(&WHITE)
        .map_err(Into::into)
        .and_then(|()| paint(&area))
        .and_then(|()| area.present().map_err(Into::into));
    // Errors of plotters borrow the string.
    let painted = painted.map_err(|error| anyhow!("cannot draw: {error}"));
    drop(area);
    painted.map(|()| svg)
}
