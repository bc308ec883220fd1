//! Training jobs of PyTorch: torchrun in each worker's namespace, and what the ranks print for each
//! step.

use std::ops::AddAssign;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use crate::{Aggregator, Error, Namespace, Process, Rack, deadline::Deadline};

/// How long ranks may run on once one has failed. They hear of it by broken connections, or from
/// the aggregator.
const AFTER_A_FAILURE: Duration = Duration::from_secs(20);

/// The port where the ranks meet, at worker 0: torchrun's usual port.
const PORT: &str = "29500";

/// A training job: torchrun in each worker's namespace. When this is dropped, the job ends at once,
/// with all its processes.
pub struct Torchrun {
    agents: Vec<Process>,
}

impl Torchrun {
    /// Starts `torchrun --nnodes N --node-rank I … SCRIPT ARGUMENTS` for each of the rack's N
    /// workers. `python` is an interpreter that has torch, and so torchrun next to it; `aggregator`
    /// is the one that the backend `switchml` uses.
    pub fn start(
        rack: &Rack,
        python: &Path,
        aggregator: Option<&Aggregator>,
        script: &Path,
        arguments: &[&str],
    ) -> Result<Self, Error> {
        let meeting = |rank: usize| {
            let master = Rack::worker_address(0).to_string();
            ["--node-rank", &rank.to_string(), "--master-addr", &master, "--master-port", PORT]
                .map(str::to_owned)
                .to_vec()
        };
        Self::start_with(rack, python, aggregator, meeting, script, arguments)
    }

    /// Starts a job that torchrun restarts up to `restarts` times when a rank of it ends.
    pub fn start_elastic(
        rack: &Rack,
        python: &Path,
        aggregator: &Aggregator,
        restarts: u32,
        script: &Path,
        arguments: &[&str],
    ) -> Result<Self, Error> {
        let place = format!("--rdzv-endpoint={}:{PORT}", Rack::worker_address(0));
        let options =
            ["--rdzv-backend=c10d".to_owned(), place, format!("--max-restarts={restarts}")];
        let meeting = |_| options.to_vec();
        Self::start_with(rack, python, Some(aggregator), meeting, script, arguments)
    }

    /// `meeting` is how torchrun on that worker finds the others, as options.
    fn start_with(
        rack: &Rack,
        python: &Path,
        aggregator: Option<&Aggregator>,
        meeting: impl Fn(usize) -> Vec<String>,
        script: &Path,
        arguments: &[&str],
    ) -> Result<Self, Error> {
        let torchrun = python.with_file_name("torchrun");
        if !torchrun.is_file() {
            return Err(Error::NoTorchrun(torchrun));
        }
        let start = |(rank, worker): (usize, &Namespace)| {
            // Torchrun has children. In its PID namespace the kernel ends them with it, however it
            // ends. It tells hosts apart by their names, so each has its own name.
            let mut command = Command::new("unshare");
            command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--uts"]);
            command.args(["sh", "-c", "hostname \"$0\" && exec \"$@\""]);
            command.arg(Rack::worker_address(rank).to_string()).arg(&torchrun);
            command.args(["--nnodes", &rack.workers().len().to_string()]).args(meeting(rank));
            command.arg(script).args(arguments);
            command.env("GLOO_SOCKET_IFNAME", "eth0").env("OMP_NUM_THREADS", "1");
            command
                .envs(aggregator.map(|aggregator| ("SWITCHML_AGGREGATOR", aggregator.control())));
            worker.spawn(&format!("rank {rank}"), command)
        };
        Ok(Self { agents: rack.workers().iter().enumerate().map(start).collect::<Result<_, _>>()? })
    }

    /// Waits until the script has ended on all ranks, and combines what they printed.
    pub fn finish(self, timeout: Duration) -> Result<Training, Error> {
        Training::of(&self.printed(timeout)?)
    }

    /// Waits until the script has ended on all ranks. Returns what each printed.
    pub fn printed(mut self, timeout: Duration) -> Result<Vec<String>, Error> {
        wait(&mut self.agents, timeout)?;
        Ok(self.agents.iter().map(Process::stdout).collect())
    }
}

/// The record of a job: the combined output of `worker-lib/python/examples/report.py` on all ranks.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Training {
    /// Loss by step: the mean over the ranks.
    pub losses: Vec<f64>,
    /// Time by step in seconds, if it was printed: that of the slowest rank.
    pub seconds: Vec<f64>,
    /// When each step began on the first rank that came to it, in seconds since 1970, if it was
    /// printed.
    pub begins: Vec<f64>,
    /// Digests of the parameters, which are the same on all ranks: by step, or as often as they
    /// were printed.
    pub parameters: Vec<String>,
    /// Share of the test set that was right in the end, 0 to 1, if it was printed; by seed.
    pub accuracies: Vec<f64>,
    /// Mean loss of the test set in the end, if it was printed; by seed.
    pub test_losses: Vec<f64>,
    /// Of all ranks and seeds; zeros without a deadline.
    pub contributions: Contributions,
}

/// What ranks brought to steps with a deadline.
#[derive(Debug, Default, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contributions {
    /// Steps that were over without the rank, to which it brought nothing.
    pub missed: u64,
    /// Buckets that it brought.
    pub brought: u64,
    /// Of these, given to their own step.
    pub in_time: u64,
    /// ... given to a later one.
    pub late: u64,
    /// ... not given until the end.
    pub left: u64,
}

impl AddAssign for Contributions {
    fn add_assign(&mut self, other: Self) {
        self.missed += other.missed;
        self.brought += other.brought;
        self.in_time += other.in_time;
        self.late += other.late;
        self.left += other.left;
    }
}

/// A line of a rank's output.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    loss: Option<f64>,
    seconds: Option<f64>,
    begin: Option<f64>,
    parameters: Option<String>,
    accuracy: Option<f64>,
    test_loss: Option<f64>,
    contributions: Option<Contributions>,
}

impl Training {
    /// Combines what the ranks printed.
    pub fn of(printed: &[String]) -> Result<Self, Error> {
        let ranks: Vec<Self> = printed
            .iter()
            .enumerate()
            .map(|(rank, text)| of_rank(rank, text))
            .collect::<Result<_, _>>()?;
        let first = ranks.first().cloned().unwrap_or_default();
        let counts = |rank: &Self| [&rank.losses, &rank.seconds, &rank.begins].map(Vec::len);
        for (number, rank) in ranks.iter().enumerate() {
            if counts(rank) != counts(&first) {
                return Err(Error::Training(format!(
                    "rank {number} told of {} steps, rank 0 of {}",
                    rank.losses.len(),
                    first.losses.len()
                )));
            }
            if rank.parameters != first.parameters {
                let pairs = rank.parameters.iter().zip(&first.parameters);
                let same = pairs.take_while(|(mine, first)| mine == first).count();
                return Err(Error::Training(format!(
                    "rank {number}'s parameters differ from rank 0's, first in its digest number \
                     {}",
                    same + 1
                )));
            }
        }
        let by_step = |values: fn(&Self) -> &Vec<f64>, together: fn(f64, f64) -> f64| {
            let step = |i: usize| ranks.iter().map(|rank| values(rank)[i]).reduce(together);
            (0..values(&first).len()).filter_map(step).collect::<Vec<f64>>()
        };
        let mut losses = by_step(|rank| &rank.losses, |sum, loss| sum + loss);
        losses.iter_mut().for_each(|loss| *loss /= ranks.len() as f64);
        let seconds = by_step(|rank| &rank.seconds, f64::max);
        let begins = by_step(|rank| &rank.begins, f64::min);
        let mut contributions = Contributions::default();
        ranks.iter().for_each(|rank| contributions += rank.contributions);
        Ok(Self { losses, seconds, begins, contributions, ..first })
    }

    /// The largest difference between this job's and another's loss at any step.
    pub fn apart(&self, other: &Self) -> f64 {
        let pairs = self.losses.iter().zip(&other.losses);
        pairs.map(|(ours, theirs)| (ours - theirs).abs()).fold(0.0, f64::max)
    }
}

fn of_rank(rank: usize, printed: &str) -> Result<Training, Error> {
    let mut training = Training::default();
    for text in printed.lines() {
        let line: Line = serde_json::from_str(text)
            .map_err(|_| Error::Training(format!("rank {rank} said: {text}")))?;
        training.losses.extend(line.loss);
        training.seconds.extend(line.seconds);
        training.begins.extend(line.begin);
        training.parameters.extend(line.parameters);
        training.accuracies.extend(line.accuracy);
        training.test_losses.extend(line.test_loss);
        training.contributions += line.contributions.unwrap_or_default();
    }
    Ok(training)
}

/// Waits until all have ended successfully.
fn wait(agents: &mut [Process], timeout: Duration) -> Result<(), Error> {
    let mut end = Deadline::after(timeout);
    let mut failed = false;
    while agents.iter_mut().any(Process::is_running) && !end.left().is_zero() {
        std::thread::sleep(Duration::from_millis(50));
        if !failed && failures(agents)?.is_some() {
            failed = true;
            end = Deadline::after(AFTER_A_FAILURE.min(end.left()));
        }
    }
    if let Some(failures) = failures(agents)? {
        return Err(Error::Script(failures));
    }
    match agents.iter_mut().find_map(|agent| agent.is_running().then_some(agent)) {
        Some(agent) => Err(agent.timeout("end of the script".to_owned(), timeout)),
        None => Ok(()),
    }
}

/// The ranks that have failed, with the last lines of their scripts.
fn failures(agents: &mut [Process]) -> Result<Option<String>, Error> {
    let mut failures = Vec::new();
    for agent in agents {
        if !agent.is_running() {
            let status = agent.wait(Duration::ZERO)?;
            if !status.success() {
                failures.push(format!(
                    "{} ({status}):\n{}",
                    agent.name(),
                    last_lines_of_script(&agent.stderr())
                ));
            }
        }
    }
    Ok((!failures.is_empty()).then(|| failures.join("\n")))
}

/// Torchrun prints many lines about the script's end; if there is nothing else, torchrun itself is
/// at fault.
fn last_lines_of_script(stderr: &str) -> String {
    const LINES: usize = 8;
    let lines: Vec<&str> = stderr.lines().collect();
    let script = lines
        .iter()
        .position(|line| line.contains(" torch/distributed/elastic/"))
        .unwrap_or(lines.len());
    let said = if script == 0 { &lines[..] } else { &lines[..script] };
    said[said.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "{\"loss\": 2.0, \"seconds\": 0.5, \"parameters\": \"a\"}\n\
                        {\"loss\": 1.0, \"seconds\": 0.25, \"parameters\": \"b\"}\n\
                        {\"test_loss\": 1.5}\n{\"accuracy\": 0.75}\n";

    const COUNTS: &str = "{\"contributions\": {\"missed\": 1, \"brought\": 9, \"in_time\": 6, \
                          \"late\": 2, \"left\": 1}}\n";

    #[test]
    fn losses_are_means_and_times_the_slowest() {
        let other = GOOD.replace("2.0", "3.0").replace("0.25", "0.75");
        let training = Training::of(&[GOOD.to_owned(), other]).unwrap();
        let parameters = vec!["a".to_owned(), "b".to_owned()];
        let expected = Training {
            losses: vec![2.5, 1.0],
            seconds: vec![0.5, 0.75],
            parameters,
            accuracies: vec![0.75],
            test_losses: vec![1.5],
            ..Training::default()
        };
        assert_eq!(training, expected);
        let further = Training { losses: vec![2.25, 1.5], ..expected.clone() };
        assert_eq!(expected.apart(&further), 0.5);
    }

    #[test]
    fn steps_begin_on_the_first_rank_and_contributions_are_of_all() {
        let said = |begins: [f64; 2]| {
            begins.map(|begin| format!("{{\"begin\": {begin}}}\n")).concat() + COUNTS + COUNTS
        };
        let training = Training::of(&[said([1.0, 2.5]), said([1.5, 2.0])]).unwrap();
        assert_eq!(training.begins, [1.0, 2.0]);
        let expected = Contributions { missed: 4, brought: 36, in_time: 24, late: 8, left: 4 };
        assert_eq!(training.contributions, expected, "two ranks with two seeds each");
    }

    #[test]
    fn ranks_that_differ_are_told() {
        let told = |other: &str| {
            Training::of(&[GOOD.to_owned(), other.to_owned()]).unwrap_err().to_string()
        };
        let bits = told(&GOOD.replace("\"b\"", "\"c\""));
        assert!(
            bits.contains("rank 1's parameters differ from rank 0's, first in its digest number 2"),
            "{bits}"
        );
        let shorter = told(GOOD.split_once('\n').unwrap().0);
        assert!(shorter.contains("rank 1 told of 1 steps, rank 0 of 2"), "{shorter}");
        assert!(told("step 1\n").contains("rank 1 said: step 1"));
    }

    #[test]
    fn the_scripts_last_lines_are_those_before_torchruns() {
        let stderr = "a warning\nValueError: this\n\
                      E1121 22:21:21.825000 1 \
                      torch/distributed/elastic/multiprocessing/api.py:1002] failed\nTraceback\n";
        assert_eq!(last_lines_of_script(stderr), "a warning\nValueError: this");
        assert_eq!(last_lines_of_script("torchrun: error: what\n"), "torchrun: error: what");
    }
}
