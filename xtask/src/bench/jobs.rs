//! `cargo xtask bench jobs`: three jobs that train VGG16 and share a combiner's cells, as jobs
//! share a switch in ATP's experiment.
//!
//! Racks, and the ways to share cells, are those of `share.rs`: the cells suffice for two jobs.
//! Computing is a sleep of the published time. Uplinks are slower than they are to be, so that
//! they are the bottleneck and not this machine's processors; computing is stretched as much. All
//! times are, and the table has them unstretched.
//!
//! The command of a rank is `<number> <steps>`. All jobs get it at once. A job that is over leaves
//! the uplinks to the others, so the table has the mean over jobs and the last job's end.

use anyhow::{Result, anyhow};
use switchml_rack::{RackOptions, Racks, Shaping};
use switchml_step::published;

use super::kit::Kit;
use super::share::{RACKS, RANKS, Report, Running, Sharing};
use crate::measure::{Report as Found, Table, rows_in_turn};
use crate::stats::Spread;

const MODEL: &str = "vgg16";
const JOBS: usize = 3;
/// Steps of each job.
const STEPS: usize = 2;

/// Bits per second of an uplink that the table is about, of one in the racks, and of the workers'
/// links there.
const RATE: u64 = 10_000_000_000;
const UPLINK: u64 = 500_000_000;
const LINK: u64 = 4 * UPLINK;
const STRETCH: f64 = (RATE / UPLINK) as f64;

/// What runs at once.
#[derive(Clone, Copy)]
struct Setting {
    jobs: usize,
    sharing: Sharing,
}

const SETTINGS: [Setting; 4] = [
    Setting { jobs: 1, sharing: Sharing::BestEffort },
    Setting { jobs: JOBS, sharing: Sharing::BestEffort },
    Setting { jobs: JOBS, sharing: Sharing::Partition },
    Setting { jobs: JOBS, sharing: Sharing::NoCombiner },
];

impl Setting {
    fn title(self) -> String {
        let jobs = if self.jobs == 1 { "one job" } else { "three jobs" };
        format!("{jobs}, {}", self.sharing.name())
    }
}

/// Measures all settings.
pub fn measure(kit: &Kit) -> Result<Found> {
    let model = MODEL.parse().map_err(|error: String| anyhow!(error))?;
    let speed = published::find(model, None).map_err(|error| anyhow!(error))?;
    let compute = format!("{}", 1e3 * speed.compute().as_secs_f64() * STRETCH);
    let racks = Racks::new(RACKS, RackOptions { workers: RANKS, ..RackOptions::default() })?;
    let _shaped = Shaping::of_racks(&racks, LINK, UPLINK)?;
    let times = rows_in_turn(kit.runs, [1, SETTINGS.len()], |_, number, _| {
        let Setting { jobs, sharing } = SETTINGS[number];
        let tree = sharing.tree(&kit.binaries, &racks)?;
        let options = ["--model", MODEL, "--compute", &compute];
        let mut running = Running::start(kit, &racks, (&tree, sharing), jobs, &options)?;
        let reports = running.command(&STEPS.to_string())?;
        let steps: Vec<f64> = reports.iter().map(step_ms).collect();
        running.stop()?;
        tree.stop()?;
        eprintln!("{}: {steps:.0?} ms", SETTINGS[number].title());
        Ok(steps)
    })?;
    Ok(table(&times[0]).into())
}

/// Milliseconds of a job's step, unstretched.
fn step_ms(report: &Report) -> f64 {
    1e3 * report.seconds / STEPS as f64 / STRETCH
}

/// `times` has the jobs' milliseconds of a step, unstretched: by setting and run.
fn table(times: &[Vec<Vec<f64>>]) -> String {
    let mut table = Table::new(["", "mean", "longest", "one job's time to the mean"]);
    let mean = |jobs: &Vec<f64>| jobs.iter().sum::<f64>() / jobs.len() as f64;
    let longest = |jobs: &Vec<f64>| jobs.iter().copied().fold(0.0, f64::max);
    let means: Vec<Vec<f64>> = times.iter().map(|runs| runs.iter().map(mean).collect()).collect();
    for ((setting, runs), of_setting) in SETTINGS.iter().zip(times).zip(&means) {
        let longest = Spread::of(runs.iter().map(longest).collect());
        let ratio = format!("{:.2}", Spread::of_ratios(&means[0], of_setting).median);
        table.row(&[&setting.title(), &Spread::of(of_setting.clone()), &longest, &ratio]);
    }
    format!(
        "{STEPS} steps of {MODEL} in each job; ms of a step: the jobs' mean, and of the job that \
         takes longest; median with quartiles.\nUplinks of {} Gb/s (measured with times stretched \
         {STRETCH} times), {RACKS} racks, jobs of {RANKS} ranks, software combiners.\n\n{table}",
        RATE / 1_000_000_000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One job takes 600 and 620 ms, three 1200, 1500 and 1800.
    #[test]
    fn a_table_of_means_and_of_the_last_job() {
        let jobs = || vec![vec![1200.0, 1800.0, 1500.0]; 2];
        let text = table(&[vec![vec![600.0], vec![620.0]], jobs(), jobs(), jobs()]);
        let line = |title: &str| text.lines().find(|line| line.contains(title)).unwrap();
        assert_eq!(
            line("one job, shared"),
            "| one job, shared cells | 610 (605-615) | 610 (605-615) | 1.00 |"
        );
        // 610 / 1500
        assert_eq!(
            line("three jobs, fixed"),
            "| three jobs, fixed parts | 1500 (1500-1500) | 1800 (1800-1800) | 0.41 |"
        );
    }
}
