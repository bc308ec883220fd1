//! The durations of tests: measured in each run, recorded in `times.json`, and announced from
//! there.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use switchml_cli::say;

use crate::cargo;
use crate::measure::processor;

/// The set of tests that `cargo xtask test` runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Tests that need no framework; without fuzzing, which compiles everything a second time.
    Usual,
    All,
}

/// The output of [`Clock::write`] in an empty clone, on a machine where nothing else ran.
const RECORD: &str = include_str!("times.json");

/// The times of a whole run on one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Times {
    /// The machine: the number of processors, and their name.
    machine: String,
    /// Seconds until everything was built and installed. It takes far less in a warm target folder,
    /// and somewhat less without frameworks.
    build: f64,
    parts: Vec<Part>,
}

/// A test program, or something else that takes its time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Part {
    name: String,
    /// Whether the part needs no framework.
    usual: bool,
    /// Seconds by the clock.
    wall: f64,
    /// Seconds of processor time, including all processes that the part started and waited for.
    processor: f64,
}

impl Times {
    /// The recorded times, which are announced.
    fn recorded() -> Self {
        serde_json::from_str(RECORD).expect("the record is one of times")
    }

    /// Seconds that the tests of a level take.
    fn of_tests(&self, level: Level) -> f64 {
        let of_level = self.parts.iter().filter(|part| part.usual || level == Level::All);
        of_level.map(|part| part.wall).sum()
    }
}

/// The usual duration of a level's run, as it is announced.
pub fn announced(level: Level) -> String {
    let times = Times::recorded();
    format!(
        "{} minutes, and {} to build and install what an empty clone lacks ({})",
        minutes(times.of_tests(level)),
        minutes(times.build),
        times.machine
    )
}

/// Whole minutes, rounded up.
fn minutes(seconds: f64) -> u64 {
    (seconds / 60.0).ceil() as u64
}

/// Measures a run.
pub struct Clock {
    begin: Instant,
    build: f64,
    parts: Vec<Part>,
}

impl Clock {
    pub fn start() -> Self {
        Self { begin: Instant::now(), build: 0.0, parts: Vec::new() }
    }

    /// Notes that everything is built and installed.
    pub fn is_built(&mut self) {
        self.build = self.begin.elapsed().as_secs_f64();
    }

    /// Runs and measures a part. `usual` says whether it belongs to [`Level::Usual`].
    pub fn measure<T>(
        &mut self,
        name: &str,
        usual: bool,
        part: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let (begin, before) = (Instant::now(), processor_seconds()?);
        let result = part()?;
        let (wall, processor) = (begin.elapsed().as_secs_f64(), processor_seconds()? - before);
        self.parts.push(Part { name: name.to_owned(), usual, wall, processor });
        Ok(result)
    }

    /// Prints the parts that took longest, and the total duration next to the announced one.
    pub fn report(&mut self, level: Level) {
        const SHOWN: usize = 15;
        self.parts.sort_by(|a, b| b.wall.total_cmp(&a.wall));
        say!("\n| part | seconds | of processors |\n| --- | --- | --- |");
        for Part { name, wall, processor, .. } in self.parts.iter().take(SHOWN) {
            say!("| {name} | {wall:.1} | {processor:.1} |");
        }
        let rest = self.parts.iter().skip(SHOWN);
        let (wall, processor) =
            rest.fold((0.0, 0.0), |sum, part| (sum.0 + part.wall, sum.1 + part.processor));
        say!("| all others | {wall:.1} | {processor:.1} |");
        let whole = self.begin.elapsed().as_secs_f64();
        let (build, tests) = (minutes(self.build), minutes(whole - self.build));
        say!("took {tests} minutes, after {build} to build; announced: {}", announced(level));
    }

    /// Writes the measurements of a run of all tests to `times.json` in the target folder.
    pub fn write(self) -> Result<()> {
        let path = cargo::target_folder()?.join("times.json");
        let times = Times { machine: processor(), build: self.build, parts: self.parts };
        fs::write(&path, serde_json::to_string_pretty(&times)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Seconds of processor time of this process's children that have ended, and of their children.
fn processor_seconds() -> Result<f64> {
    let text = fs::read_to_string("/proc/self/stat").context("cannot read /proc/self/stat")?;
    // The name, in brackets, may have spaces. Fields 16 and 17, cutime and cstime, are the 14th and
    // 15th behind it.
    let behind_name = text.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let ticks = behind_name.split(' ').skip(13).take(2).map(str::parse::<u64>);
    let ticks = ticks.sum::<Result<u64, _>>().context("/proc/self/stat has no numbers")?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs;
    use crate::test::plan::BY_NAME_ONLY;

    #[test]
    fn what_documents_say_of_times_is_recorded() {
        let times = Times::recorded();
        for (file, level) in [("README.md", Level::Usual), ("CONTRIBUTING.md", Level::All)] {
            let text = fs::read_to_string(cargo::workspace().join(file)).unwrap();
            let line = text.lines().find(|line| line.contains("xtask test"));
            assert!(line.is_some(), "{file} names the command");
            let said = format!("{} minutes", minutes(times.of_tests(level)));
            assert!(text.contains(&said), "{file} does not say {said}; times.json does");
        }
    }

    /// The record is of the last whole run: whoever adds a program runs all tests anyway.
    #[test]
    fn the_record_has_each_program() {
        let parts = Times::recorded().parts;
        for (package, target) in programs::of_workspace().unwrap() {
            if BY_NAME_ONLY.contains(&&*target) {
                continue;
            }
            let name = format!("{package}: {target}");
            assert!(parts.iter().any(|part| part.name == name), "times.json lacks {name}");
        }
    }

    #[test]
    fn minutes_are_whole_and_not_too_few() {
        assert_eq!([0.5, 60.0, 61.0, 719.0].map(minutes), [1, 1, 2, 12]);
    }

    #[test]
    fn the_time_of_children_counts_when_they_have_ended() {
        let mut clock = Clock::start();
        let mut child = std::process::Command::new("sh");
        child.args(["-c", "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done"]);
        clock.measure("a loop", true, || Ok(child.status()?)).unwrap();
        let part = &clock.parts[0];
        assert!(part.processor > 0.0 && part.wall > 0.0, "{part:?}");
    }
}
