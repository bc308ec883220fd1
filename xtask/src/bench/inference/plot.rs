//! The plot: tokens per second of the first model after the prompt, in each way.

use anyhow::Result;

use super::{Table, WAYS};
use crate::plot::{Axis, Chart, Color, Corner, Mark, Series, colour, draw};

/// Parts of a setting's width: a bar for each way, and a gap.
const PARTS: usize = WAYS.len() + 1;

/// Draws the tables side by side.
pub fn draw_tables(tables: &[Table]) -> Result<String> {
    let series = WAYS.into_iter().enumerate().map(|(number, (way, name))| {
        let bar = |(place, table): (usize, &Table)| {
            let left = (place * PARTS + number) as f64;
            Mark::Bar([(left, 0.0), (left + 1.0, table.rows[0].decode(way))])
        };
        Series::named(name, colour(number).mix(0.7), 1, tables.iter().enumerate().map(bar))
    });
    draw(&[Chart {
        caption: format!("Tokens per second, {}", tables[0].rows[0].name),
        x: Axis::groups(tables.iter().map(short), PARTS),
        y: Axis::linear("tokens per second", 1.25),
        legend: Some(Corner::UpperRight),
        series: series.collect(),
    }])
}

/// A setting, as short as fits below its bars.
fn short(table: &Table) -> String {
    let rate =
        table.rate.map_or("no limit".to_owned(), |rate| format!("{} Gb/s", rate as f64 / 1e9));
    format!("{} ranks, {rate}", table.ranks)
}

#[cfg(test)]
mod tests {
    use super::super::{Row, Said, Table};
    use super::*;

    #[test]
    fn a_bar_for_each_way_in_each_setting() {
        let said = |decode| vec![Said { prefill: 1.0, decode, written: Vec::new() }];
        let row = || Row {
            name: "1024 x 8, all_reduce",
            said: [said(10.0), said(20.0), said(15.0), said(30.0)],
        };
        let table = |ranks, rate| Table { ranks, rate, rows: vec![row()] };
        let svg = draw_tables(&[table(2, Some(2_500_000_000)), table(4, None)]).unwrap();
        for colour in ["#4E79A7", "#59A14F", "#F28E2B", "#E15759"] {
            let bars = svg.matches(&format!("opacity=\"0.7\" fill=\"{colour}\"")).count();
            assert_eq!(bars, 2, "{colour}");
        }
        for text in ["2 ranks, 2.5 Gb/s", "4 ranks, no limit", "no aggregator"] {
            assert!(svg.contains(text), "{text} is missing");
        }
    }
}
