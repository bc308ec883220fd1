//! `cargo xtask screenshots`: the docs' pictures of the status page and of `doctor`, taken with a
//! headless Chromium from a rack that runs.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::getuid;
use switchml_cli::say;
use switchml_rack::{Aggregator, Binaries, Namespace, Process, Rack, RackOptions};

use crate::cargo::{self, Selection};
use crate::measure::Ranks;
use crate::setup::packages;

const RANKS: usize = 4;
/// How long a job runs before it is shown: the page shows rates of several seconds.
const WARM_UP: Duration = Duration::from_secs(8);
/// Characters that fit into a line of the picture of a terminal.
const COLUMNS: usize = 112;
/// Time that passes in the page before the picture, so that it has asked for the status. Less
/// passes outside, so rates that the page itself computes are too low.
const PAGE_TIME: &str = "--virtual-time-budget=3000";

/// Writes `page.png` and `doctor.png` to `docs/plots`.
///
/// # Errors
///
/// Without root, or if something cannot be built, started or drawn.
pub fn run() -> Result<()> {
    ensure!(getuid().is_root(), "racks of network namespaces need root; run this as root");
    packages::ensure(&[packages::BROWSER], "screenshots need")?;
    let binaries = Binaries::in_folder(&cargo::binaries_folder(None, Selection::Job)?)?;
    let rack = Rack::new(RackOptions { workers: RANKS, ..RackOptions::default() })?;
    let aggregator = Aggregator::in_rack(&binaries, &rack)?;
    let pictures = cargo::workspace().join("docs/plots");
    show_page(&binaries, &rack, aggregator.control(), &pictures.join("page.png"))?;
    show_doctor(&binaries, &rack, aggregator.control(), &pictures.join("doctor.png"))
}

/// A job that runs, and one that waits for its last rank.
fn show_page(binaries: &Binaries, rack: &Rack, control: &str, picture: &Path) -> Result<()> {
    let start = |job, count| -> Result<Vec<Process>> {
        let ranks = Ranks::new(&binaries.worker, rack.workers(), job, control);
        // A benchmark that does not end by itself.
        let options = ["-b", "1M", "-e", "1M", "-n", "1000000"];
        (0..count).map(|rank| ranks.start_one(rank, &options)).collect()
    };
    let train = start("train", RANKS)?;
    sleep(WARM_UP);
    let evaluate = start("evaluate", RANKS - 1)?;
    sleep(Duration::from_secs(2));
    // Only as far as the jobs, whose rates the daemon computes: the ports' would be too low.
    take(rack.worker(0), &format!("http://{control}/"), "1000,385", picture)?;
    train.into_iter().chain(evaluate).try_for_each(|mut rank| rank.kill().map(drop))?;
    Ok(())
}

/// `doctor` on a host whose firewall drops results that travel by multicast.
fn show_doctor(binaries: &Binaries, rack: &Rack, control: &str, picture: &Path) -> Result<()> {
    let host = rack.worker(0);
    let mut filter = Command::new("nft");
    filter.arg(
        "table inet screenshots {\nchain input {\ntype filter hook input priority 0;\n\
         ip daddr 239.0.0.0/8 drop\n}\n}",
    );
    host.output(filter).context("cannot make the fault that the doctor is to find")?;
    let mut doctor = Command::new(&binaries.worker);
    doctor.args(["doctor", "--aggregator", control]);
    let mut patient = host.spawn("doctor", doctor)?;
    // Its exit code says what it found, which is not the question here.
    let _found = patient.wait(Duration::from_secs(60))?;
    let text = format!("$ switchml-worker doctor --aggregator {control}\n{}", patient.stdout());
    let page = picture.with_extension("html");
    fs::write(&page, terminal(&text))?;
    let rows: usize = text.lines().map(|line| line.len().div_ceil(COLUMNS).max(1)).sum();
    let height = 40 + 20 * rows;
    let taken =
        take(host, &format!("file://{}", page.display()), &format!("1000,{height}"), picture);
    fs::remove_file(&page)?;
    taken
}

/// A page that looks like a terminal with this text.
fn terminal(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    format!(
        "<body style='margin:0;background:#1e1e2e;color:#e0e0e0'><pre style='margin:20px;\
         font:14px/20px monospace;white-space:pre-wrap'>{text}</pre>"
    )
}

/// A picture of a page, as a browser on this host shows it in a window of this size.
fn take(host: &Namespace, page: &str, size: &str, picture: &Path) -> Result<()> {
    let mut browser = Command::new(packages::BROWSER.0);
    browser.args(["--no-sandbox", "--hide-scrollbars", PAGE_TIME]);
    browser.arg(format!("--window-size={size}"));
    browser.arg(format!("--screenshot={}", picture.display())).arg(page);
    host.output(browser).context("cannot take the picture")?;
    say!("{}", picture.display());
    Ok(())
}
