//! Plots, as SVG: series with names over two axes, from what all measurements have.

use std::error::Error;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::coord::types::{RangedCoordf64, RangedCoordusize};
use plotters::prelude::*;
pub use plotters::prelude::{BLACK, Color, SeriesLabelPosition as Corner};

use crate::stats::Spread;

/// Tableau's colours, of which most colour-blind readers tell the first five apart.
const COLOURS: [RGBColor; 8] = [
    RGBColor(78, 121, 167),
    RGBColor(89, 161, 79),
    RGBColor(242, 142, 43),
    RGBColor(225, 87, 89),
    RGBColor(118, 70, 140),
    RGBColor(118, 183, 178),
    RGBColor(237, 201, 72),
    RGBColor(156, 117, 95),
];

/// The font of captions.
const FONT: (&str, u32) = ("sans-serif", 14);

const SIZE: (u32, u32) = (720, 420);

/// Where a logarithmic axis begins at the earliest: 0 has no logarithm.
pub const LEAST: f64 = 1e-9;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Painted<T = ()> = Result<T, Box<dyn Error>>;

/// A plot, or one of several above each other.
pub struct Chart {
    pub caption: String,
    pub x: Axis,
    pub y: Axis,
    /// Where the series' names stand; nowhere if there are none.
    pub legend: Option<Corner>,
    /// Drawn in this order.
    pub series: Vec<Series>,
}

/// An axis, which begins and ends as its values need it.
pub struct Axis {
    name: &'static str,
    kind: Kind,
}

enum Kind {
    /// From 0 to the largest value times this.
    Linear(f64),
    /// With marks at these values, or at powers of ten if there are none.
    Logarithmic(Vec<f64>),
    /// Names, each in the middle of so many units.
    Groups(Vec<String>, usize),
}

/// What has one look and, if it is in the legend, a name.
pub struct Series {
    name: Option<String>,
    style: ShapeStyle,
    marks: Vec<Mark>,
}

pub enum Mark {
    /// Points with a line through them, and dots of this size at them.
    Line(Vec<(f64, f64)>, u32),
    Segment([(f64, f64); 2]),
    /// A filled rectangle between two corners.
    Bar([(f64, f64); 2]),
    Dot((f64, f64)),
    Ring((f64, f64)),
}

/// The colour of the series with this number.
pub fn colour(number: usize) -> RGBAColor {
    COLOURS.get(number).unwrap_or(&BLACK).to_rgba()
}

impl Axis {
    /// From 0 to the largest value times `room`.
    pub fn linear(name: &'static str, room: f64) -> Self {
        Self { name, kind: Kind::Linear(room) }
    }

    /// With marks at these values, or at powers of ten if there are none.
    pub fn logarithmic(name: &'static str, marks: Vec<f64>) -> Self {
        Self { name, kind: Kind::Logarithmic(marks) }
    }

    /// Groups, each so many units wide.
    pub fn groups(names: impl IntoIterator<Item = impl Into<String>>, width: usize) -> Self {
        let names = names.into_iter().map(Into::into).collect();
        Self { name: "", kind: Kind::Groups(names, width) }
    }

    fn scale(&self, values: impl Iterator<Item = f64>) -> Scale {
        let (low, high) =
            values.fold((f64::INFINITY, 0.0f64), |(low, high), y| (low.min(y), high.max(y)));
        match &self.kind {
            // An axis is not empty, even if there is no value.
            Kind::Linear(room) if high > 0.0 => Scale::Linear((0.0..high * room).into()),
            Kind::Linear(_) => Scale::Linear((0.0..1.0).into()),
            Kind::Logarithmic(marks) => {
                let low = if low.is_finite() { low.max(LEAST) } else { 1.0 };
                let range = low / 1.3..high.max(low) * 1.3;
                Scale::Logarithmic(range.log_scale().into(), marks.clone())
            }
            Kind::Groups(names, width) => Scale::Groups((0..names.len() * width).into()),
        }
    }

    fn label(&self, value: f64) -> String {
        match &self.kind {
            Kind::Groups(names, width) => match (value as usize / width, value as usize % width) {
                (group, unit) if unit == width / 2 => names.get(group).cloned().unwrap_or_default(),
                _ => String::new(),
            },
            Kind::Logarithmic(marks) if marks.is_empty() && value < 1e-4 => format!("{value:.0e}"),
            // Sums of a mark's distance are not exact.
            _ => format!("{}", (value * 1e6).round() / 1e6),
        }
    }
}

/// One type for all axes, so that one function draws all plots.
enum Scale {
    Linear(RangedCoordf64),
    Logarithmic(LogCoord<f64>, Vec<f64>),
    Groups(RangedCoordusize),
}

impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        match self {
            Self::Linear(scale) => scale.map(value, limit),
            Self::Logarithmic(scale, _) => scale.map(value, limit),
            Self::Groups(scale) => scale.map(&(*value as usize), limit),
        }
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match self {
            Self::Linear(scale) => scale.key_points(hint),
            Self::Logarithmic(scale, marks) if marks.is_empty() => scale.key_points(hint),
            Self::Logarithmic(_, _) if hint.weight().allow_light_points() => Vec::new(),
            Self::Logarithmic(_, marks) => marks.clone(),
            Self::Groups(scale) => {
                scale.key_points(hint).into_iter().map(|unit| unit as f64).collect()
            }
        }
    }

    fn range(&self) -> std::ops::Range<f64> {
        match self {
            Self::Linear(scale) => scale.range(),
            Self::Logarithmic(scale, _) => scale.range(),
            Self::Groups(scale) => scale.range().start as f64..scale.range().end as f64,
        }
    }
}

impl Series {
    /// A series that the legend names.
    pub fn named(
        name: impl Into<String>,
        colour: impl Color,
        width: u32,
        marks: impl IntoIterator<Item = Mark>,
    ) -> Self {
        Self { name: Some(name.into()), ..Self::nameless(colour, width, marks) }
    }

    pub fn nameless(colour: impl Color, width: u32, marks: impl IntoIterator<Item = Mark>) -> Self {
        let marks = marks.into_iter().collect();
        Self { name: None, style: colour.stroke_width(width), marks }
    }
}

impl Mark {
    /// From the first to the third quartile.
    pub fn quartiles(x: f64, Spread { low, high, .. }: Spread) -> Self {
        Self::Segment([(x, low), (x, high)])
    }

    /// A line through medians, and their quartiles.
    pub fn medians(points: &[(f64, Spread)]) -> Vec<Self> {
        let line = Self::Line(points.iter().map(|(x, y)| (*x, y.median)).collect(), 3);
        [line].into_iter().chain(points.iter().map(|(x, y)| Self::quartiles(*x, *y))).collect()
    }

    fn points(&self) -> &[(f64, f64)] {
        match self {
            Self::Line(points, _) => points,
            Self::Segment(points) | Self::Bar(points) => points,
            Self::Dot(point) | Self::Ring(point) => std::slice::from_ref(point),
        }
    }

    /// What stands before a name in the legend, whose place begins there.
    fn sample<'a, B: DrawingBackend>(
        &self,
        (x, y): (i32, i32),
        style: ShapeStyle,
    ) -> DynElement<'a, B, (i32, i32)> {
        match self {
            Self::Dot(_) => Circle::new((x + 9, y), 4, style.filled()).into_dyn(),
            Self::Ring(_) => Circle::new((x + 9, y), 4, style).into_dyn(),
            _ => PathElement::new([(x, y), (x + 18, y)], style).into_dyn(),
        }
    }
}

/// The SVG of charts, one above the other.
pub fn draw(charts: &[Chart]) -> Result<String> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    let paint = || -> Painted {
        area.fill(&WHITE)?;
        for (area, chart) in area.split_evenly((charts.len(), 1)).iter().zip(charts) {
            chart.paint(area)?;
        }
        Ok(area.present()?)
    };
    // Errors of plotters borrow the string.
    let painted = paint().map_err(|error| anyhow!("cannot draw: {error}"));
    drop(area);
    painted.map(|()| svg)
}

impl Chart {
    fn paint(&self, area: &Area) -> Painted {
        let Self { caption, x, y, legend, series } = self;
        let points = || series.iter().flat_map(|series| &series.marks).flat_map(Mark::points);
        let mut chart = ChartBuilder::on(area)
            .caption(caption, FONT)
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(
                x.scale(points().map(|point| point.0)),
                y.scale(points().map(|point| point.1)),
            )?;
        let (x_label, y_label) = (|value: &f64| x.label(*value), |value: &f64| y.label(*value));
        let mut mesh = chart.configure_mesh();
        if let Kind::Groups(names, width) = &x.kind {
            mesh.disable_x_mesh().x_labels(names.len() * width);
        } else {
            mesh.x_desc(x.name);
        }
        mesh.x_label_formatter(&x_label).y_label_formatter(&y_label).y_desc(y.name);
        mesh.light_line_style(TRANSPARENT).draw()?;
        for Series { name, style, marks } in series {
            let style = *style;
            for (number, mark) in marks.iter().enumerate() {
                let drawn = match mark {
                    Mark::Line(points, size) => chart.draw_series(
                        LineSeries::new(points.iter().copied(), style).point_size(*size),
                    ),
                    Mark::Segment(ends) => chart.draw_series([PathElement::new(*ends, style)]),
                    Mark::Bar(corners) => {
                        chart.draw_series([Rectangle::new(*corners, style.filled())])
                    }
                    Mark::Dot(at) => chart.draw_series([Circle::new(*at, 4, style.filled())]),
                    Mark::Ring(at) => chart.draw_series([Circle::new(*at, 4, style)]),
                }?;
                if let (0, Some(name)) = (number, name) {
                    drawn.label(name).legend(move |at| mark.sample(at, style));
                }
            }
        }
        let Some(corner) = legend else { return Ok(()) };
        chart
            .configure_series_labels()
            .position(corner.clone())
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        Ok(())
    }
}
