//! The plot: how many times as fast as Gloo with large tensors, measured and by the theorem.

use anyhow::Result;

use super::{LARGE, Row, Table};
use crate::plot::{Axis, BLACK, Chart, Color, Corner, Mark, Series, colour, draw};

/// Parts of a way's width, of which each table takes some.
const PARTS: usize = 5;

/// Draws tables whose links have a rate: bars from 0 to the median, the quartiles as a line, and
/// the theorem as a mark across the bar.
pub fn draw_tables(tables: &[Table]) -> Result<String> {
    let limited = || tables.iter().filter(|table| table.rate.is_some());
    let mut series = Vec::new();
    for (number, table) in limited().enumerate() {
        let rows = || {
            let left = move |place: usize| (place * PARTS + 2 * number) as f64;
            large(table).enumerate().map(move |(place, row)| (left(place), row))
        };
        let bars =
            rows().map(|(left, row)| Mark::Bar([(left, 0.0), (left + 2.0, row.ratio().median)]));
        let quartiles = rows().map(|(left, row)| Mark::quartiles(left + 1.0, row.ratio()));
        let marks = rows().map(|(left, row)| {
            Mark::Segment([left, left + 2.0].map(|x| (x, row.expected_ratio())))
        });
        series.extend([
            Series::named(table.title(), colour(number).mix(0.7), 1, bars),
            Series::nameless(colour(number), 2, quartiles),
            Series::nameless(BLACK, 2, marks),
        ]);
    }
    draw(&[Chart {
        caption: "Sums of 16 MiB: measured (bars) and by the theorem (marks)".to_owned(),
        x: Axis::groups(limited().take(1).flat_map(large).map(|row| short(row.way.name)), PARTS),
        y: Axis::linear("times as fast as Gloo", 1.1),
        legend: Some(Corner::UpperRight),
        series,
    }])
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
