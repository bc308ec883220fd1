//! The plot: how many times as fast as with Gloo a model's step is.

use anyhow::Result;
use plotters::prelude::*;
use switchml_worker_core::Precision;

use super::{Row, Table, WAYS, Way};
use crate::plot::{Area, COLOURS, FONT, draw};

/// Parts of a model's width: one for each way beside Gloo, and a gap.
const PARTS: usize = WAYS.len();

/// As wide as so many models, beside them: the legend.
const LEGEND: usize = 3;

/// Draws a setting: for each model a point for each way, with its quartiles.
pub fn draw_table(table: &Table) -> Result<String> {
    draw(|area| draw_in(area, table))
}

fn draw_in(area: &Area, table: &Table) -> Result<(), Box<dyn std::error::Error>> {
    let ratios =
        table.rows.iter().flat_map(|row| row.times[1..].iter().map(|times| row.ratio(times)));
    let (least, most) = ratios
        .fold((1.0f64, 1.0f64), |(low, high), ratio| (low.min(ratio.low), high.max(ratio.high)));
    let mut chart = ChartBuilder::on(area)
        .caption(format!("Steps among {}", table.setting.title()), FONT)
        .margin(8)
        .x_label_area_size(24)
        .y_label_area_size(50)
        .build_cartesian_2d(
            0..(table.rows.len() + LEGEND) * PARTS,
            (least / 1.1..most * 1.1)
                .log_scale()
                .with_key_points(vec![0.5, 1.0, 1.5, 2.0, 3.0, 4.0]),
        )?;
    let name = |x: &usize| match x % PARTS {
        4 => table.rows.get(x / PARTS).map_or(String::new(), |row| row.model.to_string()),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels((table.rows.len() + LEGEND) * PARTS)
        .x_label_formatter(&name)
        .y_label_formatter(&|y| format!("{y}"))
        .y_desc("times as fast as Gloo")
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (number, (way, _)) in WAYS.into_iter().enumerate().skip(1) {
        let (colour, is_filled) = look(way);
        let place = |model: usize| model * PARTS + number;
        let median = |(model, row): (usize, &Row)| {
            let style = ShapeStyle { filled: is_filled, ..colour.stroke_width(2) };
            Circle::new((place(model), row.ratio(&row.times[number]).median), 4, style)
        };
        chart.draw_series(table.rows.iter().enumerate().map(median))?.label(label(way)).legend(
            move |(x, y)| {
                let style = ShapeStyle { filled: is_filled, ..colour.stroke_width(2) };
                Circle::new((x + 9, y), 4, style)
            },
        );
        let quartiles = |(model, row): (usize, &Row)| {
            let ratio = row.ratio(&row.times[number]);
            let ends = [(place(model), ratio.low), (place(model), ratio.high)];
            PathElement::new(ends, colour.stroke_width(1))
        };
        chart.draw_series(table.rows.iter().enumerate().map(quartiles))?;
    }
    let ends = [(0, 1.0), (table.rows.len() * PARTS, 1.0)];
    chart.draw_series([PathElement::new(ends, BLACK.mix(0.5))])?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

/// A colour for each precision; ways without an aggregator are hollow.
fn look(way: Way) -> (RGBColor, bool) {
    match way {
        Way::Gloo | Way::OpenMpi => (COLOURS[3], true),
        Way::Aggregator(precision) => (COLOURS[precision as usize], true),
        Way::Alone(precision) => (COLOURS[precision as usize], false),
    }
}

fn label(way: Way) -> String {
    let bits = |precision| match precision {
        Precision::Exact => "",
        Precision::Bits16 => ", 16 bits",
        Precision::Bits8 => ", 8 bits",
    };
    match way {
        Way::Gloo => "Gloo".to_owned(),
        Way::OpenMpi => "Open MPI".to_owned(),
        Way::Aggregator(precision) => format!("aggregator{}", bits(precision)),
        Way::Alone(precision) => format!("ranks alone{}", bits(precision)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Setting;
    use super::*;

    /// Two models, with times of 100 for Gloo and 50 for all others.
    #[test]
    fn a_point_for_each_way_of_each_model() {
        let setting = Setting::new(4, 1_000_000_000, 2);
        let rows = ["resnet50", "vgg16"].map(|name| {
            let mut row = Row::new(name.parse().unwrap(), setting).unwrap();
            row.times = std::array::from_fn(|way| vec![if way == 0 { 100.0 } else { 50.0 }]);
            row
        });
        let table = Table { setting, rows: rows.into() };
        assert_eq!(table.file_name(), "models-4-1.svg");
        let svg = draw_table(&table).unwrap();
        // Two models and the legend.
        assert_eq!(svg.matches("<circle").count(), 3 * (WAYS.len() - 1));
        for text in ["resnet50", "vgg16", "ranks alone, 8 bits", "4 ranks, links of 1 Gb/s"] {
            assert!(svg.contains(text), "{text} is missing");
        }
    }
}
