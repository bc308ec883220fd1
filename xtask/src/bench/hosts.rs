//! `cargo xtask bench hosts`: hosts of several ranks, which add up before they send, or do not.

use anyhow::Result;
use switchml_rack::{Aggregator, Rack, RackOptions, Shaping};

use super::kit::Kit;
use crate::measure::{Ranks, Report, Table, rows_in_turn};
use crate::stats::Spread;

const HOSTS: usize = 2;
/// Ranks per host.
const RANKS: usize = 4;
/// Bits per second.
const LINK: u64 = 1_000_000_000;
/// Tensors, and calls of a repetition.
const SIZES: [(&str, &str); 3] = [("64K", "40"), ("1M", "20"), ("16M", "3")];
/// The values of `--local-sums`.
const WAYS: [&str; 2] = ["0", "1"];

/// Milliseconds of a call in place, on the slowest rank.
pub fn measure(Kit { binaries, runs, .. }: &Kit) -> Result<Report> {
    let rack = Rack::new(RackOptions { workers: HOSTS, ..RackOptions::default() })?;
    let _shaped = Shaping::new(&rack, LINK)?;
    let aggregator = Aggregator::in_rack(binaries, &rack)?;
    let hosts = (0..HOSTS * RANKS).map(|rank| rack.worker(rank / RANKS));
    let ranks = Ranks::new(&binaries.worker, hosts, "hosts", aggregator.control());
    let times = rows_in_turn(*runs, [SIZES.len(), WAYS.len()], |row, way, _| {
        let (size, iters) = SIZES[row];
        let options = ["-b", size, "-e", size, "-n", iters, "-w", "1", "--local-sums", WAYS[way]];
        ranks.run(&options)?.milliseconds()
    })?;
    aggregator.stop()?;
    let mut table = Table::new(["tensor", "each rank sends", "local sums", "times as fast"]);
    for ((size, _), times) in SIZES.iter().zip(&times) {
        let [apart, together] = [0, 1].map(|way: usize| Spread::of(times[way].clone()));
        table.row(&[size, &apart, &together, &Spread::of_ratios(&times[0], &times[1])]);
    }
    let title = format!("{HOSTS} hosts of {RANKS} ranks, f32, in ms (quartiles)");
    Ok(format!("{title}:\n\n{table}").into())
}
