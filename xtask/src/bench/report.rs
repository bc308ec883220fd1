//! Tables and JSON.

use std::fmt::Write;

use serde::Serialize;

use super::goals::{Goal, goodput_share};
use super::measured::{Cell, Measured, Method, Results, Sample};
use super::model;
use crate::stats::Spread;

/// Everything as Markdown: the goals, then a table for each number of workers and rate.
pub fn markdown(results: &Results, goals: &[Goal], runs: usize, processor: &str) -> String {
    let mut text = format!(
        "Medians of {runs} repetitions, with first and third quartile; ratios pair by pair.\n\n\
         {processor}. The switch's program is timed in one more repetition, unshaped.\n\n"
    );
    text += &goals_table(goals);
    let mut head = None;
    for cell in results.cells() {
        if head != Some((cell.workers, cell.rate)) {
            head = Some((cell.workers, cell.rate));
            text += &table_head(cell);
        }
        for method in Method::all() {
            if let Some(measured) = results.get(cell, method) {
                text += &row(results, measured);
            }
        }
    }
    text + &uplinks_table(results) + &model::markdown(results)
}

/// The bytes that uplinks carried, if there were any uplinks.
fn uplinks_table(results: &Results) -> String {
    let mut rows = String::new();
    for measured in &results.0 {
        let uplinks: Vec<_> = measured.samples.iter().filter_map(|sample| sample.uplink).collect();
        if let (false, Some(rate)) = (uplinks.is_empty(), measured.cell.rate) {
            let way = |way: usize| Spread::of(uplinks.iter().map(|ways| ways[way]).collect());
            let _ = writeln!(
                rows,
                "| {} | {} Gb/s | {} | {} | {} |",
                measured.cell.size_text(),
                rate as f64 / 1e9,
                measured.method.name(),
                spread(way(0), 3),
                spread(way(1), 3),
            );
        }
    }
    if rows.is_empty() {
        return rows;
    }
    "\nBytes of an uplink, of the one that carried most, for each byte of a tensor\n\n\
     | size | links | method | up | down |\n| --- | --- | --- | --- | --- |\n"
        .to_owned()
        + &rows
}

// Writing to a String cannot fail, here and below.
fn goals_table(goals: &[Goal]) -> String {
    let mut table = "| goal | | measured | |\n| --- | --- | --- | --- |\n".to_owned();
    for goal in goals {
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} |",
            goal.what,
            goal.limit(),
            spread(goal.measured, 2),
            goal.verdict()
        );
    }
    table
}

fn table_head(cell: Cell) -> String {
    let links = match cell.rate {
        Some(rate) => format!("links of {} Gb/s", rate as f64 / 1e9),
        None => "links unshaped".to_owned(),
    };
    format!(
        "\n{} workers, {links}\n\n\
         | size | method | time in ms | to ours | CPU ms | of these in ranks, in softirq, in the switch's program | share of the link | resent per 1000 chunks |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        cell.workers
    )
}

fn row(results: &Results, measured: &Measured) -> String {
    let Measured { cell, method, .. } = measured;
    let median = |quantity: &dyn Fn(&Sample) -> f64| Spread::of(measured.of(quantity)).median;
    let seconds = |measured: &Measured| measured.of(|sample| sample.seconds);
    let ours = results.get(*cell, Method::OURS).filter(|_| *method != Method::OURS);
    let ratio = ours.map_or("–".to_owned(), |ours| {
        spread(Spread::of_ratios(&seconds(measured), &seconds(ours)), 2)
    });
    let (cpu, ranks) =
        (median(&|sample| sample.cpu_seconds), median(&|sample| sample.process_seconds));
    let softirq = median(&|sample| sample.softirq_seconds);
    let switch = measured.switch_seconds.map_or("–".to_owned(), |s| figure(s * 1e3, 2));
    let share = match cell.rate {
        Some(_) => format!("{:.1} %", 100.0 * median(&|sample| goodput_share(*cell, sample))),
        None => "–".to_owned(),
    };
    let resent = match measured.samples.iter().map(|sample| sample.chunks).sum::<u64>() {
        0 => "–".to_owned(),
        chunks => {
            let resent: u64 = measured.samples.iter().map(|sample| sample.resent).sum();
            format!("{:.2}", 1000.0 * resent as f64 / chunks as f64)
        }
    };
    let time = Spread::of(seconds(measured).iter().map(|seconds| seconds * 1e3).collect());
    format!(
        "| {} | {} | {} | {ratio} | {} | {}, {}, {switch} | {share} | {resent} |\n",
        cell.size_text(),
        method.name(),
        spread(time, 3),
        figure(cpu * 1e3, 2),
        figure(ranks * 1e3, 2),
        figure(softirq * 1e3, 2),
    )
}

/// Median and quartiles.
fn spread(spread: Spread, digits: i32) -> String {
    let Spread { low, median, high } = spread;
    format!("{} ({}-{})", figure(median, digits), figure(low, digits), figure(high, digits))
}

/// A number with `digits` significant digits, but never fewer than its integer part has.
fn figure(number: f64, digits: i32) -> String {
    if number == 0.0 || !number.is_finite() {
        return number.to_string();
    }
    let decimals = (digits - 1 - number.abs().log10().floor() as i32).max(0);
    format!("{number:.*}", decimals as usize)
}

/// All measurements, and the verdicts.
pub fn json(results: &Results, goals: &[Goal], processor: &str) -> String {
    #[derive(Serialize)]
    struct Judged {
        goal: String,
        limit: String,
        measured: Spread,
        verdict: String,
    }
    #[derive(Serialize)]
    struct All<'a> {
        processor: &'a str,
        goals: Vec<Judged>,
        measured: &'a [Measured],
    }
    let judged = |goal: &Goal| Judged {
        goal: goal.what.clone(),
        limit: goal.limit(),
        measured: goal.measured,
        verdict: goal.verdict().to_string(),
    };
    let all = All { processor, goals: goals.iter().map(judged).collect(), measured: &results.0 };
    // This cannot fail: it contains only strings, numbers and lists of these.
    serde_json::to_string(&all).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::measured::Task;
    use super::*;

    #[test]
    fn figures_have_as_many_digits_as_they_are_worth() {
        let cases = [
            (123.456, 2, "123"),
            (12.345, 3, "12.3"),
            (0.012345, 3, "0.0123"),
            (9.99, 2, "10.0"),
            (0.0, 2, "0"),
        ];
        for (number, digits, text) in cases {
            assert_eq!(figure(number, digits), text);
        }
    }

    #[test]
    fn a_row_has_ratios_and_shares() {
        let cell = Cell { workers: 2, rate: Some(1_000_000_000), size: 16 << 20, task: Task::Sum };
        let sample = |seconds, chunks| Sample {
            seconds,
            cpu_seconds: 0.05,
            process_seconds: 0.03,
            softirq_seconds: 0.01,
            chunks,
            resent: chunks / 100,
            uplink: None,
        };
        let mut results = Results(Vec::new());
        results.add(cell, Method::OURS, sample(0.14, 1000));
        results.add(cell, Method::Gloo, sample(0.21, 0));
        results.add_switch(cell, Method::OURS, 0.0078);
        let text = markdown(&results, &[], 1, "2 x Z80");
        assert!(text.contains("\n2 x Z80. "), "{text}");
        assert!(text.contains("\n2 workers, links of 1 Gb/s\n"), "{text}");
        let ours = format!(
            "| 16 MiB | {} | 140 (140-140) | – | 50 | 30, 10, 7.8 | 95.9 % | 10.00 |",
            Method::OURS.name()
        );
        assert!(text.contains(&ours), "{text}");
        assert!(
            text.contains(
                "| 16 MiB | Gloo | 210 (210-210) | 1.5 (1.5-1.5) | 50 | 30, 10, – | 63.9 % | – |"
            ),
            "{text}"
        );
    }
}
