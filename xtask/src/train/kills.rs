//! `cargo xtask train --kills`: ranks are killed at random moments, and the others train on.
//!
//! In each trial four ranks of `examples/survivors.py` lose up to three, one after another, about
//! half of them while the others still regroup. Batches do not depend on who shares them, so losses
//! must be those of ranks none of which is killed. In turn with this, torchrun loses a rank of
//! `tests/elastic.py`, and starts all again.

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use switchml_rack::{Process, Torchrun};

use super::{PATIENCE, RANKS, Site};
use crate::cargo;
use crate::measure::{Pair, Report, Table};
use crate::random::Random;
use crate::stats::Spread;

/// Of a trial.
const STEPS: usize = 500;

/// Between two kills are up to so many usual steps' times: twice what regrouping takes here, and
/// short enough for all kills of a trial to come before its end.
const APART: f64 = 80.0;

/// Torchrun's restarts take longer, and differ less, so there are fewer.
const KILLS_FOR_A_RESTART: usize = 10;

/// The largest relative difference of a loss. Fewer ranks add up a batch in another order, and this
/// rounding makes 1e-6 in all steps. A step left out or made twice made 1e-2, with ReLU.
const TOLERANCE: f64 = 1e-4;

/// How long ranks may take to end after the last kill.
const END: Duration = Duration::from_secs(60);

/// Where the ranks of the first trial meet, at worker 0; those of others at the next ones.
const PORT: usize = 29600;

/// Hosts stores at ports from .. to, until it is killed.
const STORES: &str = "\
import sys, time, torch.distributed as dist
ports = range(int(sys.argv[1]), int(sys.argv[2]))
stores = [dist.TCPStore('0.0.0.0', port, is_master=True, wait_for_workers=False) for port in ports]
print('ready', flush=True)
time.sleep(1e9)
";

/// A line about a step of survivors.py.
#[derive(Deserialize)]
struct Step {
    /// The first one is 1.
    step: usize,
    loss: f64,
    ranks: usize,
    /// Its end, in seconds since 1970.
    time: f64,
}

struct Kill {
    rank: usize,
    /// In seconds since 1970.
    at: f64,
    /// The number of ranks that are left.
    left: usize,
}

/// What came of four ranks.
struct Trial {
    kills: Vec<Kill>,
    /// By rank.
    said: Vec<Vec<Step>>,
}

/// What a kill cost.
#[derive(Debug, PartialEq)]
struct Cost {
    /// Seconds from the kill to the end of the next step of those that are left, on the last one of
    /// them, less a usual step's time.
    seconds: f64,
    /// Whether the others had made no step yet since the kill before.
    in_regrouping: bool,
}

/// Kills so many ranks, and returns the table.
pub fn measure(site: &Site, kills: usize) -> Result<Report> {
    let trials = kills.div_ceil(RANKS - 1);
    let _stores = stores(site, PORT + 1 + trials)?;
    let mut random = Random(1);
    let whole = Trial::run(site, PORT, &[], &mut random)?;
    let usual = whole.usual_step();
    let (mut costs, mut restarts) = (Vec::new(), Vec::new());
    let mut apart: f64 = 0.0;
    for trial in 1..=trials {
        let gaps: Vec<f64> = (costs.len()..kills.min(costs.len() + RANKS - 1))
            .map(|_| random.share() * APART * usual)
            .collect();
        let of_trial = Trial::run(site, PORT + trial, &gaps, &mut random)
            .and_then(|trial| {
                apart = apart.max(trial.compare(&whole)?);
                trial.costs(usual)
            })
            .with_context(|| format!("after {} kills", costs.len()))?;
        costs.extend(of_trial);
        if restarts.len() * KILLS_FOR_A_RESTART < costs.len() {
            restarts.push(restart(site)?);
        }
        eprintln!("train: {} of {kills} kills", costs.len());
    }
    Ok(table(&costs, &restarts, usual, apart).into())
}

/// What hosts the stores in which ranks meet, from [`PORT`] to before that one.
fn stores(site: &Site, end: usize) -> Result<Process> {
    let mut command = Command::new(&site.python);
    command.args(["-c", STORES, &PORT.to_string(), &end.to_string()]);
    let mut stores = site.racks.ours.worker(0).spawn("the ranks' stores", command)?;
    stores.wait_for_line("ready", PATIENCE)?;
    Ok(stores)
}

impl Trial {
    /// Kills a rank after each of these gaps in seconds.
    fn run(site: &Site, port: usize, gaps: &[f64], random: &mut Random) -> Result<Self> {
        let start = |rank| start(site, port, rank);
        let mut ranks: Vec<Process> = (0..RANKS).map(start).collect::<Result<_, _>>()?;
        ranks.iter_mut().try_for_each(|rank| rank.wait_for_line("\"step\"", PATIENCE).map(drop))?;
        let mut living: Vec<usize> = (0..RANKS).collect();
        let mut kills = Vec::new();
        for gap in gaps {
            std::thread::sleep(Duration::from_secs_f64(*gap));
            let rank = living.swap_remove((random.share() * living.len() as f64) as usize);
            let at = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
            ranks[rank].kill()?;
            kills.push(Kill { rank, at, left: living.len() });
        }
        living.iter().try_for_each(|&rank| ranks[rank].wait_success(END))?;
        let said = ranks.iter().map(|rank| steps(&rank.stdout())).collect::<Result<_>>()?;
        Ok(Self { kills, said })
    }

    /// The median time of a step.
    fn usual_step(&self) -> f64 {
        let pairs = self.said[0].iter().zip(&self.said[0][1..]);
        Spread::of(pairs.map(|(one, next)| next.time - one.time).collect()).median
    }

    /// The largest relative difference from the losses of a trial without kills.
    fn compare(&self, whole: &Self) -> Result<f64> {
        let mut most: f64 = 0.0;
        for (rank, said) in self.said.iter().enumerate() {
            let is_killed = self.kills.iter().any(|kill| kill.rank == rank);
            let last = said.last().map_or(0, |step| step.step);
            ensure!(is_killed || last == STEPS, "rank {rank} ended after step {last} of {STEPS}");
            for Step { step, loss, ranks, .. } in said {
                let right = whole.said[0][step - 1].loss;
                let apart = (loss - right).abs() / right;
                // A NaN is wrong, too.
                if apart.is_nan() || apart > TOLERANCE {
                    bail!("rank {rank}, step {step}, {ranks} ranks: loss {loss}, not {right}");
                }
                most = most.max(apart);
            }
        }
        Ok(most)
    }

    fn costs(&self, usual: f64) -> Result<Vec<Cost>> {
        // When each rank ended its first step without more ranks than these.
        let ends = |left: usize| {
            let of_rank = move |said: &Vec<Step>| {
                said.iter().find(|step| step.ranks <= left).map(|step| step.time)
            };
            self.said.iter().filter_map(of_rank)
        };
        let cost = |(number, Kill { at, left, rank }): (usize, &Kill)| {
            let end = ends(*left).reduce(f64::max);
            let end = end.with_context(|| format!("no step after the kill of rank {rank}"))?;
            ensure!(end > *at, "all steps were made before rank {rank} was killed");
            let in_regrouping = number > 0 && ends(left + 1).all(|end| end > *at);
            Ok(Cost { seconds: end - at - usual, in_regrouping })
        };
        self.kills.iter().enumerate().map(cost).collect()
    }
}

fn start(site: &Site, port: usize, rank: usize) -> Result<Process, switchml_rack::Error> {
    let mut command = Command::new(&site.python);
    command.arg(cargo::workspace().join("worker-lib/python/examples/survivors.py"));
    command.args(["--steps", &STEPS.to_string()]);
    site.racks.tell(&mut command, rank, port);
    command.env("TORCHELASTIC_USE_AGENT_STORE", "True");
    command.env("SWITCHML_AGGREGATOR", site.racks.aggregator.control());
    site.racks.ours.worker(rank).spawn(&format!("rank {rank}"), command)
}

/// The steps in a rank's output; other lines are about failures.
fn steps(said: &str) -> Result<Vec<Step>> {
    let lines = said.lines().filter(|line| line.contains("\"step\""));
    lines.map(|line| serde_json::from_str(line).context("not a step")).collect()
}

/// Seconds from the kill of a rank to the end of the first step after torchrun's restart.
fn restart(site: &Site) -> Result<f64> {
    let folder = cargo::target_folder()?.join("train/elastic");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let script = cargo::workspace().join("worker-lib/python/tests/elastic.py");
    let arguments = [folder.to_str().context("the target folder's name is not UTF-8")?, "3"];
    let Pair { aggregator, ours, .. } = &site.racks;
    let printed = Torchrun::start_elastic(ours, &site.python, aggregator, 3, &script, &arguments)
        .and_then(|job| job.printed(PATIENCE))
        .context("torchrun's restart")?;
    fs::remove_dir_all(&folder)?;
    let lost = |said: &String| {
        let said: Value = serde_json::from_str(said).context("not what elastic.py says")?;
        said["lost"].as_f64().with_context(|| format!("it was not started again: {said}"))
    };
    Ok(printed.iter().map(lost).collect::<Result<Vec<_>>>()?.into_iter().fold(0.0, f64::max))
}

fn table(costs: &[Cost], restarts: &[f64], usual: f64, apart: f64) -> String {
    let mut table = Table::new(["", "kills", "seconds lost: median (quartiles)", "worst"]);
    let seconds = |wanted: &dyn Fn(&&Cost) -> bool| -> Vec<f64> {
        costs.iter().filter(wanted).map(|cost| cost.seconds).collect()
    };
    let rows = [
        ("the others go on", seconds(&|_| true)),
        ("of these, killed in regrouping", seconds(&|cost| cost.in_regrouping)),
        ("torchrun starts all again", restarts.to_vec()),
    ];
    for (name, seconds) in rows.into_iter().filter(|(_, seconds)| !seconds.is_empty()) {
        let (count, worst) = (seconds.len(), seconds.iter().copied().fold(0.0, f64::max));
        table.row(&[&name, &count, &Spread::of(seconds), &format!("{worst:.2}")]);
    }
    format!(
        "4 ranks, steps of {:.1} ms, {STEPS} of which a trial has; losses at most {apart:.0e} \
         apart (relative)\n\n{table}",
        usual * 1e3
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank that makes all steps, with these numbers of ranks and times until the last step.
    fn rank(first: &[(usize, f64)]) -> Vec<Step> {
        let loss = |step| 1.0 / step as f64;
        let mut said: Vec<Step> = (1..)
            .zip(first)
            .map(|(step, &(ranks, time))| Step { step, loss: loss(step), ranks, time })
            .collect();
        said.extend((first.len() + 1..=STEPS).map(|step| Step {
            step,
            loss: loss(step),
            ranks: 1,
            time: 100.0,
        }));
        said
    }

    fn trial() -> Trial {
        let killed = |steps: usize, said: Vec<Step>| said.into_iter().take(steps).collect();
        Trial {
            // Rank 2 makes a step after the first kill, rank 3 does not.
            kills: vec![
                Kill { rank: 1, at: 2.5, left: 3 },
                Kill { rank: 2, at: 4.0, left: 2 },
                Kill { rank: 3, at: 4.25, left: 1 },
            ],
            said: vec![
                rank(&[(4, 1.0), (4, 2.0), (3, 3.0), (1, 6.0)]),
                killed(2, rank(&[(4, 1.0), (4, 2.0)])),
                killed(3, rank(&[(4, 1.0), (4, 2.0), (3, 3.25)])),
                killed(2, rank(&[(4, 1.0), (4, 2.0)])),
            ],
        }
    }

    #[test]
    fn a_kill_costs_the_time_to_the_next_step_on_the_last_rank() {
        let cost = |seconds, in_regrouping| Cost { seconds, in_regrouping };
        assert_eq!(
            trial().costs(0.5).unwrap(),
            [cost(0.25, false), cost(1.5, false), cost(1.25, true)]
        );
        let mut late = trial();
        late.kills[2].at = 200.0;
        let error = late.costs(0.5).unwrap_err().to_string();
        assert_eq!(error, "all steps were made before rank 3 was killed");
    }

    #[test]
    fn wrong_losses_and_missing_steps_are_told() {
        let whole = Trial { kills: Vec::new(), said: vec![rank(&[])] };
        assert_eq!(trial().compare(&whole).unwrap(), 0.0);
        let told = |change: fn(&mut Trial)| {
            let mut trial = trial();
            change(&mut trial);
            trial.compare(&whole).unwrap_err().to_string()
        };
        let wrong = told(|trial| trial.said[2][1].loss = 0.501);
        assert_eq!(wrong, "rank 2, step 2, 4 ranks: loss 0.501, not 0.5");
        let wrong = told(|trial| trial.said[0][3].loss = f64::NAN);
        assert_eq!(wrong, "rank 0, step 4, 1 ranks: loss NaN, not 0.25");
        let early = told(|trial| trial.said[0].truncate(7));
        assert_eq!(early, "rank 0 ended after step 7 of 500");
    }

    #[test]
    fn the_table_has_a_row_for_each_kind() {
        let cost = |seconds, in_regrouping| Cost { seconds, in_regrouping };
        let text = table(&[cost(0.25, false), cost(0.75, true)], &[8.0], 0.004, 1e-6);
        let rows: Vec<&str> = text.lines().skip(4).collect();
        assert_eq!(
            rows,
            [
                "| the others go on | 2 | 0.500 (0.375-0.625) | 0.75 |",
                "| of these, killed in regrouping | 1 | 0.750 (0.750-0.750) | 0.75 |",
                "| torchrun starts all again | 1 | 8.00 (8.00-8.00) | 8.00 |",
            ]
        );
    }
}
