//! `cargo xtask bench hosts`: hosts of several ranks, which add up before they send, or do not.

use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use switchml_rack::{Aggregator, Binaries, Process, Rack, RackOptions, Shaping};

use crate::stats::Spread;

const HOSTS: usize = 2;
/// Ranks per host.
const RANKS: usize = 4;
/// Bits per second.
const LINK: u64 = 1_000_000_000;
/// Tensors, and calls of a repetition.
const SIZES: [(&str, &str); 3] = [("64K", "40"), ("1M", "20"), ("16M", "3")];
const PATIENCE: Duration = Duration::from_secs(120);

/// Measures, in turn, and returns the table.
pub fn measure(binaries: &Binaries, runs: usize) -> Result<String> {
    let rack = Rack::new(RackOptions { workers: HOSTS, ..RackOptions::default() })?;
    let _shaped = Shaping::new(&rack, LINK)?;
    let aggregator = Aggregator::in_rack_with(binaries, &rack, &[])?;
    let mut text = format!(
        "{HOSTS} hosts of {RANKS} ranks, f32, in ms (quartiles):\n\n\
         | tensor | each rank sends | local sums | times as fast |\n|---|---|---|---|\n"
    );
    for (size, iters) in SIZES {
        let (mut apart, mut together) = (Vec::new(), Vec::new());
        for run in 0..runs {
            let mut measure = |local_sums: bool| -> Result<()> {
                let options = ["-b", size, "-e", size, "-n", iters, "-w", "1"];
                let of = if local_sums { &mut together } else { &mut apart };
                of.push(milliseconds(binaries, &rack, &aggregator, &options, local_sums)?);
                Ok(())
            };
            let first = run % 2 == 0;
            measure(first)?;
            measure(!first)?;
            eprintln!("bench: {size}, repetition {} of {runs}", run + 1);
        }
        let ratio = Spread::of_ratios(&apart, &together);
        let cell = |Spread { low, median, high }| format!("{median:.2} ({low:.2}-{high:.2})");
        let [apart, together] = [apart, together].map(|times| cell(Spread::of(times)));
        let _ = writeln!(text, "| {size} | {apart} | {together} | {} |", cell(ratio));
    }
    aggregator.stop()?;
    Ok(text)
}

/// Milliseconds of a call in place, on the slowest rank. Every element is checked.
fn milliseconds(
    binaries: &Binaries,
    rack: &Rack,
    aggregator: &Aggregator,
    options: &[&str],
    local_sums: bool,
) -> Result<f64> {
    let start = |rank: usize| {
        let mut command = Command::new(&binaries.worker);
        command.args(["bench", "--aggregator", aggregator.control(), "--job", "hosts"]);
        command.args(["--rank", &rank.to_string()]);
        command.args(["--world-size", &(HOSTS * RANKS).to_string(), "--json", "-"]);
        command.args(options);
        command.args(["--local-sums", if local_sums { "1" } else { "0" }]);
        rack.worker(rank / RANKS).spawn(&format!("rank {rank}"), command)
    };
    let mut ranks: Vec<Process> = (0..HOSTS * RANKS).map(start).collect::<Result<_, _>>()?;
    ranks.iter_mut().try_for_each(|rank| rank.wait_success(PATIENCE))?;
    let report: Value = serde_json::from_str(&ranks[0].stdout()).context("not a report")?;
    let call = &report["rows"][0]["in_place"];
    ensure!(call["wrong"] == 0, "wrong elements: {call}");
    Ok(call["time_us"].as_f64().context("no time")? / 1000.0)
}
