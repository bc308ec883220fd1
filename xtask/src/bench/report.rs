//! Tables and JSON.

use anyhow::Result;
use serde::Serialize;

use super::goals::{Goal, goodput_share};
use super::links;
use super::measured::{Cell, Measured, Method, Results, Sample};
use super::model;
use crate::measure::{Table, or_dash, processor};
use crate::stats::{Spread, figure};

/// Everything as Markdown: the goals, then a table for each number of workers and rate.
pub fn markdown(results: &Results, goals: &[Goal], runs: usize) -> String {
    let mut table = Table::new(["goal", "", "measured", ""]);
    for goal in goals {
        let measured = format!("{:.2}", goal.measured);
        table.row(&[&goal.what, &goal.limit(), &measured, &goal.verdict()]);
    }
    let mut text = format!(
        "Medians of {runs} repetitions, with first and third quartile; ratios pair by pair.\n\
         The switch's program is timed in one more repetition, unshaped.\n\n{table}"
    );
    let cells = results.cells();
    for cells in cells.chunk_by(|a, b| (a.workers, a.rate) == (b.workers, b.rate)) {
        let mut table = Table::new([
            "size",
            "method",
            "time in ms",
            "to ours",
            "CPU ms",
            "of these in ranks, in softirq, in the switch's program",
            "share of the link",
            "resent per 1000 chunks",
        ]);
        for cell in cells {
            let measured = Method::all().filter_map(|method| results.get(*cell, method));
            measured.for_each(|measured| row(&mut table, results, measured));
        }
        let Cell { workers, rate, .. } = cells[0];
        text += &format!("\n{workers} workers, {}\n\n{table}", links(rate));
    }
    text + &uplinks_table(results) + &model::markdown(results)
}

/// The bytes that uplinks carried, if there were any uplinks.
fn uplinks_table(results: &Results) -> String {
    let mut table = Table::new(["size", "links", "method", "up", "down"]);
    for Measured { cell, method, samples, .. } in &results.0 {
        let uplinks: Vec<_> = samples.iter().filter_map(|sample| sample.uplink).collect();
        if !uplinks.is_empty() {
            let way = |way: usize| Spread::of(uplinks.iter().map(|ways| ways[way]).collect());
            let (size, links) = (cell.size_text(), links(cell.rate));
            table.row(&[&size, &links, &method.name(), &way(0), &way(1)]);
        }
    }
    if table.is_empty {
        return String::new();
    }
    let title = "Bytes of an uplink, of the one that carried most, for each byte of a tensor";
    format!("\n{title}\n\n{table}")
}

fn row(table: &mut Table, results: &Results, measured: &Measured) {
    let Measured { cell, method, samples, .. } = measured;
    let median = |quantity: &dyn Fn(&Sample) -> f64| Spread::of(measured.of(quantity)).median;
    let seconds = |measured: &Measured| measured.of(|sample| sample.seconds);
    let ours = results.get(*cell, Method::OURS).filter(|_| *method != Method::OURS);
    let ratio = ours.map(|ours| Spread::of_ratios(&seconds(measured), &seconds(ours)));
    let cpu = median(&|sample| sample.cpu_seconds) * 1e3;
    let ranks = median(&|sample| sample.process_seconds) * 1e3;
    let softirq = median(&|sample| sample.softirq_seconds) * 1e3;
    let switch = measured.switch_seconds.map(|seconds| figure(seconds * 1e3, 2));
    let share = cell.rate.map(|_| 100.0 * median(&|sample| goodput_share(*cell, sample)));
    let sum = |count: fn(&Sample) -> u64| samples.iter().map(count).sum::<u64>();
    let (chunks, resent) = (sum(|sample| sample.chunks), sum(|sample| sample.resent));
    let resent = (chunks > 0).then(|| 1000.0 * resent as f64 / chunks as f64);
    table.row(&[
        &cell.size_text(),
        &method.name(),
        &Spread::of(seconds(measured)).times(1e3),
        &or_dash(ratio.map(|ratio| format!("{ratio:.2}"))),
        &figure(cpu, 2),
        &format!("{}, {}, {}", figure(ranks, 2), figure(softirq, 2), or_dash(switch)),
        &or_dash(share.map(|share| format!("{share:.1} %"))),
        &or_dash(resent.map(|resent| format!("{resent:.2}"))),
    ]);
}

/// All measurements, and the verdicts.
pub fn json(results: &Results, goals: &[Goal]) -> Result<String> {
    #[derive(Serialize)]
    struct Judged {
        goal: String,
        limit: String,
        measured: Spread,
        verdict: String,
    }
    #[derive(Serialize)]
    struct All<'a> {
        processor: String,
        goals: Vec<Judged>,
        measured: &'a [Measured],
    }
    let judged = |goal: &Goal| Judged {
        goal: goal.what.clone(),
        limit: goal.limit(),
        measured: goal.measured,
        verdict: goal.verdict().to_string(),
    };
    let goals = goals.iter().map(judged).collect();
    let all = All { processor: processor(), goals, measured: &results.0 };
    Ok(serde_json::to_string(&all)?)
}

#[cfg(test)]
mod tests {
    use super::super::measured::Task;
    use super::*;

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
        let text = markdown(&results, &[], 1);
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
