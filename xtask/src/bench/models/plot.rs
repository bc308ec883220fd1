//! The plot: how many times as fast as with Gloo a model's step is.

use anyhow::Result;
use switchml_worker_core::Precision;

use super::{Table, WAYS, Way};
use crate::plot::{Axis, BLACK, Chart, Color, Corner, Mark, Series, colour, draw};

/// Parts of a model's width: one for each way beside Gloo, and a gap.
const PARTS: usize = WAYS.len();

/// As wide as so many models, beside them: the legend.
const LEGEND: usize = 3;

/// Draws a setting: for each model a point for each way, with its quartiles.
pub fn draw_table(table: &Table) -> Result<String> {
    let mut series: Vec<Series> = Vec::new();
    for (number, (way, _)) in WAYS.into_iter().enumerate().skip(1) {
        let (number_of_colour, is_filled) = look(way);
        let ratios = || {
            let x = move |model: usize| (model * PARTS + number) as f64;
            let rows = table.rows.iter().enumerate();
            rows.map(move |(model, row)| (x(model), row.ratio(&row.times[number])))
        };
        let dot = if is_filled { Mark::Dot } else { Mark::Ring };
        let medians = ratios().map(|(x, ratio)| dot((x, ratio.median)));
        let quartiles = ratios().map(|(x, ratio)| Mark::quartiles(x, ratio));
        let marks = medians.chain(quartiles);
        series.push(Series::named(label(way), colour(number_of_colour), 2, marks));
    }
    let as_fast = Mark::Segment([(0.0, 1.0), ((table.rows.len() * PARTS) as f64, 1.0)]);
    series.push(Series::nameless(BLACK.mix(0.5), 1, [as_fast]));
    let names = table.rows.iter().map(|row| row.model.to_string());
    draw(&[Chart {
        caption: format!("Steps among {}", table.setting.title()),
        x: Axis::groups(names.chain(vec![String::new(); LEGEND]), PARTS),
        y: Axis::logarithmic("times as fast as Gloo", vec![0.5, 1.0, 1.5, 2.0, 3.0, 4.0]),
        legend: Some(Corner::UpperRight),
        series,
    }])
}

/// A colour for each precision; ways without an aggregator are hollow.
fn look(way: Way) -> (usize, bool) {
    match way {
        Way::Gloo | Way::OpenMpi => (3, true),
        Way::Aggregator(precision) => (precision as usize, true),
        Way::Alone(precision) => (precision as usize, false),
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
    use super::super::{Row, Setting};
    use super::*;

    /// Two models, with times of 100 for Gloo and 50 for all others.
    #[test]
    fn a_point_for_each_way_of_each_model() {
        let setting = Setting::new(4, 1_000_000_000, 2);
        let rows = ["resnet50", "vgg16"].map(|name| {
            let mut row = Row::new(name.parse().unwrap(), setting).unwrap();
            row.times = vec![vec![50.0]; WAYS.len()];
            row.times[0] = vec![100.0];
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
