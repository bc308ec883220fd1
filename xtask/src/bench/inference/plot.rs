//! The plot: tokens per second of the first model after the prompt, in each way.

use anyhow::Result;
use plotters::prelude::*;

use super::{Table, WAYS};
use crate::plot::{COLOURS, FONT, draw};

/// Parts of a setting's width: a bar for each way, and a gap.
const PARTS: usize = WAYS.len() + 1;

/// Draws the tables side by side.
pub fn draw_tables(tables: &[Table]) -> Result<String> {
    let decode = |table: &Table, way: usize| table.rows[0].decode(WAYS[way].0);
    let most = tables.iter().flat_map(|table| (0..WAYS.len()).map(|way| decode(table, way)));
    let most = most.fold(0.0, f64::max);
    draw(|area| {
        let mut chart = ChartBuilder::on(area)
            .caption(format!("Tokens per second, {}", tables[0].rows[0].name), FONT)
            .margin(12)
            .x_label_area_size(50)
            .y_label_area_size(50)
            .build_cartesian_2d(0..tables.len() * PARTS, 0.0..most * 1.25)?;
        let label = |x: &usize| match x % PARTS {
            2 => tables.get(x / PARTS).map_or(String::new(), short),
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(tables.len() * PARTS)
            .x_label_formatter(&label)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (way, ((_, name), colour)) in WAYS.iter().zip(COLOURS).enumerate() {
            let bar = |(place, table): (usize, &Table)| {
                let left = place * PARTS + way;
                let corners = [(left, 0.0), (left + 1, decode(table, way))];
                Rectangle::new(corners, colour.mix(0.7).filled())
            };
            chart
                .draw_series(tables.iter().enumerate().map(bar))?
                .label(*name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour));
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
