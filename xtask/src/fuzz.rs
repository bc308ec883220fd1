//! `cargo xtask fuzz`: the fuzz targets, side by side.
//!
//! This module builds the targets, not cargo-fuzz: coverage needs only a few stable compiler flags,
//! and no installation. cargo-fuzz finds the targets anyway. They have no sanitizer: the fuzzed
//! code has no unsafe code, and debug assertions and overflow checks are on.

use crate::cargo;
use crate::command::succeed;
use crate::setup::{self, Compiler};
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use switchml_cli::say;

/// Names of the targets, in `tests/fuzz/fuzz_targets`.
const TARGETS: [&str; 4] = ["decoder", "packed", "slots", "worker"];

/// Executions of each target in `cargo xtask test`, in the same order: half a minute on two cores.
const RUNS_IN_TEST: [u32; 4] = [250_000, 6_000, 40_000, 25_000];

/// The compiler flags of cargo-fuzz, without a sanitizer.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions \
    --cfg=fuzzing";

/// Default run time of each target in `cargo xtask fuzz`, in seconds.
const SECONDS: u64 = 60;

/// The seed of random numbers in `cargo xtask test`.
const SEED_IN_TEST: u32 = 1;

/// Options of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub struct Fuzz {
    /// One target instead of all
    #[arg(value_parser = TARGETS)]
    target: Option<String>,
    /// How long each runs
    #[arg(long, value_name = "N", default_value_t = SECONDS)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Run the target once, with this input
    #[arg(long, value_name = "FILE", requires = "target")]
    input: Option<PathBuf>,
}

impl Fuzz {
    /// Builds the targets and runs them.
    pub fn run(&self) -> Result<()> {
        setup::run()?;
        let folder = build()?;
        if let (Some(target), Some(input)) = (&self.target, &self.input) {
            return succeed(Command::new(folder.join(target)).arg(input));
        }
        let targets = TARGETS
            .into_iter()
            .filter(|name| self.target.as_deref().is_none_or(|wanted| wanted == *name))
            .map(|name| (name, Until::Seconds(self.seconds)));
        let Tally { passed, failed } = run_all(&folder, targets)?;
        ensure!(
            failed == 0,
            "{failed} of {} fuzz targets found something; it is named above",
            passed + failed
        );
        Ok(())
    }
}

/// Counts of targets.
pub struct Tally {
    /// Targets that found nothing.
    pub passed: usize,
    /// Targets that found something, or could not run.
    pub failed: usize,
}

/// Runs all targets as `cargo xtask test` does: on the same inputs each time, so that its verdict
/// depends on the code alone.
pub fn test() -> Tally {
    let targets = TARGETS.into_iter().zip(RUNS_IN_TEST.map(Until::Runs));
    build().and_then(|folder| run_all(&folder, targets)).unwrap_or_else(|error| {
        say!("the fuzz targets did not run: {error:#}");
        Tally { passed: 0, failed: TARGETS.len() }
    })
}

/// Builds all targets, and returns the folder where they are.
fn build() -> Result<PathBuf> {
    let host = Compiler::find()?.host;
    let mut build = cargo::command("build")?;
    build.args(["--release", "--package", "switchml-fuzz", "--target", &host]);
    succeed(build.env("RUSTFLAGS", FLAGS))?;
    Ok(cargo::target_folder()?.join(host).join("release"))
}

/// Runs targets at the same time, and reports the result of each.
fn run_all(folder: &Path, targets: impl Iterator<Item = (&'static str, Until)>) -> Result<Tally> {
    let running = targets
        .map(|(name, until)| Running::start(folder, name, until))
        .collect::<Result<Vec<_>>>()?;
    let found_nothing = running.into_iter().map(Running::wait).collect::<Result<Vec<_>>>()?;
    let passed = found_nothing.iter().filter(|passed| **passed).count();
    Ok(Tally { passed, failed: found_nothing.len() - passed })
}

/// The end of a target that finds nothing.
#[derive(Clone, Copy)]
enum Until {
    /// After this many seconds, on random inputs and on inputs that earlier runs found interesting.
    Seconds(u64),
    /// After this many executions, which are always the same as far as the system allows: seccomp
    /// may keep `setarch` from fixing addresses, on which libFuzzer's table of recent compares
    /// depends.
    Runs(u32),
}

impl Until {
    /// The command that runs a target until then.
    fn command(self, target: &Path) -> Command {
        match self {
            Self::Seconds(seconds) => {
                let mut command = Command::new(target);
                command.arg(format!("-max_total_time={seconds}"));
                command
            }
            Self::Runs(runs) => {
                let mut command = at_fixed_addresses(target);
                command
                    .args([format!("-runs={runs}"), format!("-seed={SEED_IN_TEST}")])
                    // Otherwise the target reads its folder again each second.
                    .arg("-reload=0");
                command
            }
        }
    }

    /// The folder for inputs that a target finds interesting.
    fn keeps_in(self, name: &str) -> String {
        match self {
            Self::Seconds(_) => name.into(),
            Self::Runs(_) => format!("{name}.test"),
        }
    }
}

/// A program without random addresses, where the system allows that.
fn at_fixed_addresses(program: &Path) -> Command {
    let setarch = || {
        let mut command = Command::new("setarch");
        command.arg("-R");
        command
    };
    let quiet = setarch().arg("true").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !quiet.is_ok_and(|status| status.success()) {
        return Command::new(program);
    }
    let mut command = setarch();
    command.arg(program);
    command
}

/// A target at work.
struct Running {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Running {
    fn start(folder: &Path, name: &'static str, until: Until) -> Result<Self> {
        // The interesting inputs are kept for the next random run. Inputs that fail go into a
        // folder whose files all later runs try first.
        let found = cargo::target_folder()?.join("fuzz").join(until.keeps_in(name));
        if let Until::Runs(_) = until
            && found.exists()
        {
            fs::remove_dir_all(&found)
                .with_context(|| format!("cannot remove {}", found.display()))?;
        }
        let (seeds, regressions) = (source("corpus", name), source("regressions", name));
        for folder in [&found, &seeds, &regressions] {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let log = found.with_extension("log");
        let output =
            File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let child = until
            .command(&folder.join(name))
            .args([&found, &seeds, &regressions])
            .arg(format!("-artifact_prefix={}/", regressions.display()))
            .args(["-max_len=8192", "-timeout=20", "-print_final_stats=1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start fuzz target {name}"))?;
        Ok(Self { name, child, log })
    }

    /// Waits for the target. Returns whether it found nothing.
    fn wait(mut self) -> Result<bool> {
        let (name, status) = (self.name, self.child.wait()?);
        let log =
            fs::read(&self.log).with_context(|| format!("cannot read {}", self.log.display()))?;
        let log = String::from_utf8_lossy(&log);
        if status.success() {
            say!("test fuzz::{name} ... ok, {} executions", executions(&log)?);
        } else {
            say!("test fuzz::{name} ... FAILED ({status}): {}", reason(&log));
            if let Some(input) = artifact(&log) {
                say!(
                    "again: cargo xtask fuzz {name} --input {input}; commit that file with the fix"
                );
            }
            say!("its output: {}", self.log.display());
        }
        Ok(status.success())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Kills the target if another one did not start; after `wait` it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder of inputs in the source tree.
fn source(kind: &str, target: &str) -> PathBuf {
    cargo::workspace().join("tests/fuzz").join(kind).join(target)
}

/// libFuzzer's own count.
fn executions(log: &str) -> Result<u64> {
    let line = log.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    let Some(count) = line.and_then(|count| count.trim().parse().ok()) else {
        bail!("the target did not say how often it ran; is it libFuzzer's?");
    };
    Ok(count)
}

/// The reason why the target failed: its panic's message, or libFuzzer's own.
fn reason(log: &str) -> &str {
    let mut lines = log.lines();
    let panicked = lines.find(|line| line.contains(" panicked at ")).and_then(|_| lines.next());
    panicked
        .or_else(|| log.lines().find(|line| line.contains("ERROR: libFuzzer")))
        .unwrap_or("it did not say why")
}

/// The file with the input that made it fail.
fn artifact(log: &str) -> Option<&str> {
    log.lines().find_map(|line| line.split_once("Test unit written to ").map(|(_, file)| file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libfuzzer_says() {
        let log = "thread '<unnamed>' (7) panicked at tests/fuzz/fuzz_targets/slots.rs:9:5:\n\
                   sums differ\nstack backtrace:\n\
                   ==3258== ERROR: libFuzzer: deadly signal\n\
                   artifact_prefix='./'; Test unit written to ./crash-64ba\n";
        assert_eq!((reason(log), artifact(log)), ("sums differ", Some("./crash-64ba")));
        assert!(executions(log).is_err());
        let log = "==1== ERROR: libFuzzer: timeout after 20 seconds\n";
        assert_eq!(
            (reason(log), artifact(log)),
            ("==1== ERROR: libFuzzer: timeout after 20 seconds", None)
        );
        assert_eq!(
            executions("Done\nstat::number_of_executed_units: 12345\nstat::x: 1\n").unwrap(),
            12345
        );
    }
}
