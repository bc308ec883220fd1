//! The plot: how many times as fast as Gloo with large tensors, measured and by the theorem.

use anyhow::Result;
use plotters::prelude::*;

use super::{LARGE, Row, Table};
use crate::plot::{COLOURS, FONT, draw};

/// Parts of a way's width, of which each table takes some.
const PARTS: usize = 5;

/// Draws tables whose links have a rate: bars from 0 to the median, the quartiles as a line, and
/// the theorem as a mark across the bar.
pub fn draw_tables(tables: &[Table]) -> Result<String> {
    let limited: Vec<&Table> = tables.iter().filter(|table| table.rate.is_some()).collect();
    let names: Vec<&str> = large(limited[0]).map(|row| row.way.name).collect();
    let most = (limited.iter().flat_map(|table| large(table)))
        .map(|row| row.ratio().high.max(row.expected_ratio()))
        .fold(1.0, f64::max);
    draw(|area| {
        let mut chart = ChartBuilder::on(area)
            .caption("Sums of 16 MiB: measured (bars) and by the theorem (marks)", FONT)
            .margin(12)
            .x_label_area_size(60)
            .y_label_area_size(50)
            .build_cartesian_2d(0..names.len() * PARTS, 0.0..most * 1.1)?;
        let label = |x: &usize| match x % PARTS {
            2 => names.get(x / PARTS).map_or(String::new(), |name| short(name)),
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(names.len() * PARTS)
            .x_label_formatter(&label)
            .y_desc("times as fast as Gloo")
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (number, (table, colour)) in limited.iter().zip(COLOURS).enumerate() {
            let left = |place: usize| place * PARTS + 2 * number;
            let bar = |(place, row): (usize, &Row)| {
                let corners = [(left(place), 0.0), (left(place) + 2, row.ratio().median)];
                Rectangle::new(corners, colour.mix(0.7).filled())
            };
            chart
                .draw_series(large(table).enumerate().map(bar))?
                .label(table.title())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour));
            let quartiles = |(place, row): (usize, &Row)| {
                let (x, ratio) = (left(place) + 1, row.ratio());
                PathElement::new([(x, ratio.low), (x, ratio.high)], colour.stroke_width(2))
            };
            chart.draw_series(large(table).enumerate().map(quartiles))?;
            let mark = |(place, row): (usize, &Row)| {
                let y = row.expected_ratio();
                PathElement::new([(left(place), y), (left(place) + 2, y)], BLACK.stroke_width(2))
            };
            chart.draw_series(large(table).enumerate().map(mark))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE)
            .border_style(BLACK.mix(0.3))
            .draw()?;
        Ok(())
    })
}

fn large(table: &Table) -> impl Iterator<Item = &Row> {
    table.rows.iter().filter(|row| row.way.size == LARGE)
}

/// A way's name, as short as fits below its bars.
fn short(name: &str) -> String {
    name.replace("no aggregator, ", "").replace(", and the ranks' own", "").replace(" hosts", "")
}

#[cfg(test)]
mod tests {
    use super::super::{Table, WAYS};
    use super::*;

    /// A table whose times are 100 for Gloo, 50 for us, and 40 by the theorem.
    fn table(ranks: usize, rate: Option<u64>) -> Table {
        let row = |way| Row { way, gloo: vec![100.0], ours: vec![50.0], expected: Some(40.0) };
        Table { ranks, rate, rows: WAYS.map(row).into() }
    }

    #[test]
    fn a_bar_for_each_large_way_of_each_table_with_a_rate() {
        let tables = [table(4, Some(1_000_000_000)), table(8, Some(500_000_000)), table(4, None)];
        let svg = draw_tables(&tables).unwrap();
        let bars =
            |colour: &str| svg.matches(&format!("opacity=\"0.7\" fill=\"{colour}\"")).count();
        assert_eq!(["#4E79A7", "#59A14F", "#F28E2B"].map(bars), [6, 6, 0]);
        for text in ["4 ranks, links of 1 Gb/s", "8 ranks, links of 0.5 Gb/s", "two spare"] {
            assert!(svg.contains(text), "{text} is missing");
        }
    }
}
