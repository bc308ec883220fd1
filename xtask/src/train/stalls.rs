//! `cargo xtask train --stalls`: what a rank that stalls now and then costs the others, with Gloo,
//! with `switchml`, and with steps that have a deadline; and whether a deadline costs accuracy.

use anyhow::{Result, ensure};
use switchml_rack::{Contributions, Training};

use super::bits::{larger_loss, more_wrong, percent};
use super::{Backend, Example, RANKS, Site, plot};
use crate::measure::{Report, Table};
use crate::stats::{Mean, Spread, quantile};

/// The deadline, as a multiple of the median step's time with waiting, which few stalls change.
const DEADLINE: f64 = 1.5;

/// Steps of a training before the timed ones: allocation, and those that wait for all ranks.
const WARMUP: usize = 3;

/// What is trained, and with how many seeds a run.
pub struct Job {
    pub example: Example,
    arguments: &'static [&'static str],
    seeds: usize,
}

/// Steps are short beside a stall, as it takes for a deadline to matter.
pub const JOBS: [Job; 4] = [
    Job { example: Example::Wide, arguments: &["--width", "256", "--epochs", "50"], seeds: 1 },
    Job { example: Example::Digits, arguments: &[], seeds: 4 },
    Job { example: Example::Text, arguments: &[], seeds: 1 },
    Job { example: Example::Ngram, arguments: &["--width", "512"], seeds: 1 },
];

/// A way to make steps, and what came of it.
struct Way {
    name: &'static str,
    /// Of steps, by run.
    seconds: Vec<Vec<f64>>,
    /// Steps of all runs.
    steps: usize,
    /// The tests of all seeds, and what ranks brought.
    trained: Training,
}

/// Trains in all ways, in turn.
pub fn compare(site: &Site, job: &Job, runs: usize) -> Result<Report> {
    let _shaped = site.shape()?;
    let mut ways = ["Gloo", "switchml", "switchml, deadline"].map(Way::new);
    let mut deadline = None;
    for run in 0..runs {
        let [seeds, seed] = [job.seeds, 1 + run * job.seeds].map(|number| number.to_string());
        let arguments = [&["--stalls", "--seeds", &seeds, "--seed", &seed], job.arguments].concat();
        let train =
            |backend, more: &[&str]| site.train(job.example, backend, &[&arguments, more].concat());
        ways[0].add(train(Backend::Gloo, &[])?, job.seeds)?;
        ways[1].add(train(Backend::Switchml, &[])?, job.seeds)?;
        let deadline = deadline.get_or_insert_with(|| {
            format!("{:.3}", DEADLINE * Spread::of(ways[1].seconds.concat()).median)
        });
        ways[2].add(train(Backend::Switchml, &["--deadline", deadline])?, job.seeds)?;
    }
    let name = job.example.name();
    let deadline = deadline.unwrap_or_default();
    let plot = plot::times(
        format!("Times of {name}.py's steps, sorted; in 5 % a rank stalls for 0.2 s"),
        ways.iter().map(|way| (way.name, way.sorted())),
    )?;
    Ok(Report {
        text: table(job, &deadline, &ways),
        files: vec![(format!("stalls-{name}.svg"), plot)],
        missed: judge(name, &ways[2].trained.contributions),
    })
}

impl Way {
    fn new(name: &'static str) -> Self {
        Self { name, seconds: Vec::new(), steps: 0, trained: Training::default() }
    }

    /// Adds a run. A step ends when the first rank begins the next one.
    fn add(&mut self, run: Training, seeds: usize) -> Result<()> {
        let steps = run.begins.len() / seeds;
        ensure!(steps > WARMUP + 1, "{steps} steps, of which the first {WARMUP} are not timed");
        let of_seed = |begins: &[f64]| {
            begins[WARMUP..].windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<f64>>()
        };
        self.seconds.push(run.begins.chunks_exact(steps).flat_map(of_seed).collect());
        self.steps += run.begins.len();
        self.trained.accuracies.extend(run.accuracies);
        self.trained.test_losses.extend(run.test_losses);
        self.trained.contributions += run.contributions;
        Ok(())
    }

    fn sorted(&self) -> Vec<f64> {
        let mut seconds = self.seconds.concat();
        seconds.sort_by(f64::total_cmp);
        seconds
    }

    fn means(&self) -> Vec<f64> {
        self.seconds.iter().map(|run| Mean::of(run).mean).collect()
    }
}

/// Whether all that ranks brought is accounted for.
fn judge(name: &str, contributions: &Contributions) -> Vec<String> {
    let Contributions { brought, in_time, late, left, .. } = contributions;
    let given = in_time + late + left;
    if *brought == given && given > 0 {
        return Vec::new();
    }
    vec![format!("{name}: ranks brought {brought} buckets, and {given} are accounted for")]
}

fn table(job: &Job, deadline: &str, ways: &[Way; 3]) -> String {
    let time = "ms a step: median (quartiles)";
    let mut times = Table::new(["", time, "99 %", "mean", "Gloo's mean to it, run by run"]);
    for way in ways {
        let seconds = way.sorted();
        let most = format!("{:.0}", 1e3 * quantile(&seconds, 0.99));
        let mean = format!("{:.1}", 1e3 * Mean::of(&seconds).mean);
        let ratio = Spread::of_ratios(&ways[0].means(), &way.means());
        times.row(&[&way.name, &Spread::of(seconds).times(1e3), &most, &mean, &ratio]);
    }
    let accuracy =
        if ways[0].trained.accuracies.is_empty() { String::new() } else { accuracy(ways) };
    let Contributions { missed, brought, in_time, late, left } = ways[2].trained.contributions;
    format!(
        "{}, 4 ranks, links of 1 Gb/s; in 5 % of the steps a rank stalls for\n0.2 s; {} runs of \
         each, in turn; a deadline of {deadline} s\n\n{times}{accuracy}\n\
         With the deadline ranks brought {brought} buckets: {in_time} in time, {late} late, \
         {left} left in the end.\nOf {} steps they missed {missed}.\n\n",
        [&[&*format!("{}.py", job.example.name())], job.arguments].concat().join(" "),
        ways[0].seconds.len(),
        RANKS * ways[2].steps
    )
}

fn accuracy(ways: &[Way; 3]) -> String {
    let mut table = Table::new([
        &*format!("{} seeds", ways[0].trained.accuracies.len()),
        "right in the test",
        "loss of the test",
        "points more wrong than with Gloo",
        "loss larger by",
    ]);
    for Way { name, trained, .. } in ways {
        let pair = [ways[0].trained.clone(), trained.clone()];
        let right = format!("{:.2} %", 100.0 * Mean::of(&trained.accuracies).mean);
        let loss = format!("{:.4}", Mean::of(&trained.test_losses).mean);
        let (wrong, larger) = (percent(more_wrong(&pair)), percent(larger_loss(&pair)));
        table.row(&[name, &right, &loss, &wrong, &format!("{larger} %")]);
    }
    format!("\n{table}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two seeds with a step of the given time after the first ones, and one of a second.
    fn run(seconds: f64, accuracy: f64) -> Training {
        let begins = [0.0, 9.0, 18.0, 27.0, 27.0 + seconds, 28.0 + seconds];
        Training {
            begins: [begins, begins].concat(),
            accuracies: vec![accuracy; 2],
            test_losses: vec![0.5; 2],
            contributions: Contributions { missed: 2, brought: 9, in_time: 6, late: 2, left: 1 },
            ..Training::default()
        }
    }

    fn ways() -> [Way; 3] {
        [("Gloo", 3.0, 0.75), ("switchml", 1.0, 0.75), ("switchml, deadline", 0.5, 0.7)].map(
            |(name, seconds, accuracy)| {
                let mut way = Way::new(name);
                way.add(run(seconds, accuracy), 2).unwrap();
                way
            },
        )
    }

    #[test]
    fn times_are_those_after_the_first_steps_of_each_seed() {
        assert_eq!(ways()[0].seconds, [[3.0, 1.0, 3.0, 1.0]]);
        let error = Way::new("").add(Training::default(), 1).unwrap_err().to_string();
        assert_eq!(error, "0 steps, of which the first 3 are not timed");
    }

    #[test]
    fn the_tables_have_times_and_accuracies_beside_gloos() {
        let text = table(&JOBS[1], "1.5", &ways());
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| switchml")).collect();
        assert_eq!(
            rows,
            [
                "| switchml | 1000 (1000-1000) | 1000 | 1000.0 | 2.00 (2.00-2.00) |",
                "| switchml, deadline | 750 (500-1000) | 1000 | 750.0 | 2.67 (2.67-2.67) |",
                "| switchml | 75.00 % | 0.5000 | 0.00 ± 0.00 | 0.00 ± 0.00 % |",
                "| switchml, deadline | 70.00 % | 0.5000 | 5.00 ± 0.00 | 0.00 ± 0.00 % |",
            ]
        );
        assert!(text.contains("9 buckets: 6 in time, 2 late, 1 left in the end.\nOf 48 steps"));
    }

    #[test]
    fn contributions_that_do_not_add_up_are_told() {
        let mut contributions = run(1.0, 1.0).contributions;
        assert_eq!(judge("text", &contributions), Vec::<String>::new());
        contributions.late = 3;
        let told = judge("text", &contributions);
        assert_eq!(told, ["text: ranks brought 9 buckets, and 10 are accounted for"]);
        assert_eq!(judge("text", &Contributions::default()).len(), 1, "no deadline was kept");
    }
}
