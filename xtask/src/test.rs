//! `cargo xtask test`: every test, and an honest count.

mod counts;
mod plan;
mod skip_file;

use crate::{cargo, fuzz, python, setup};
use anyhow::{Context, Result, bail, ensure};
use std::{
    env,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Command, Stdio},
    thread,
};
use switchml_cli::say;
use switchml_rack::LEFT_OUT;

use counts::Counts;
use plan::Plan;
use skip_file::SkipFile;

/// Names the file to which a test that cannot run appends `name: reason` before it returns.
const SKIPPED: &str = "SWITCHML_SKIPPED";
/// Names the interpreter that has the Python package and torch.
const PYTHON: &str = "SWITCHML_PYTHON";
/// Names the one that has the oldest torch which the package is for.
const OLDEST: &str = "SWITCHML_PYTHON_OLDEST";
/// Names the one that has the first torch which needs no compiler.
const MIDDLE: &str = "SWITCHML_PYTHON_MIDDLE";
/// Names the folder that has Prometheus and promtool.
const PROMETHEUS: &str = "SWITCHML_PROMETHEUS";
/// Names the folder that has kubernetes-validate, with its interpreter.
pub const KUBERNETES: &str = "SWITCHML_KUBERNETES";
/// Names the folder with the binaries that the end-to-end tests start.
const BIN_DIR: &str = "SWITCHML_BIN_DIR";

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Test {
    /// Run what is worth its time before each commit: no torch, no fuzzing, one small rack
    #[arg(long, conflicts_with = "arguments")]
    quick: bool,
    /// Fail if a test could not run, as when CI=true
    #[arg(long)]
    require_all: bool,
    /// Handed to `cargo test`, such as `-p switchml-protocol`
    #[arg(last = true)]
    arguments: Vec<String>,
}

impl Test {
    /// Those that these arguments of `cargo test` choose, all of which must run.
    pub fn chosen(arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(ToString::to_string).collect();
        Self { quick: false, require_all: true, arguments }
    }

    /// Says what it will install and run; runs `cargo test`, then the fuzz targets, and sums up.
    ///
    /// In release: the end-to-end tests need the release binaries anyway, so all dependencies are
    /// compiled once, and the property and simulation tests run many times faster.
    ///
    /// # Errors
    ///
    /// If a test failed, if tests could not be built, or if one could not run where all must.
    pub fn run(&self) -> Result<()> {
        let plan = if self.quick {
            Plan::quick()?
        } else if self.arguments.is_empty() {
            Plan::all()
        } else {
            Plan::chosen(&self.arguments)
        };
        plan.announce()?;
        setup::run()?;
        // Testing everything builds the binaries on the way, with the features that the tests need;
        // building them before would compile much of it twice.
        let binaries = if self.arguments.is_empty() {
            cargo::release_folder()?
        } else {
            cargo::build_binaries()?
        };
        let python = if plan.needs_python { Some(self.with_python()?) } else { None };
        let prometheus =
            if plan.watches { Some(setup::watchers(&cargo::target_folder()?)?) } else { None };
        let kubernetes = if plan.validates { Some(python::kubernetes()?) } else { None };
        if plan.needs_mpi {
            setup::mpi()?;
        }
        let skips = SkipFile::create(&binaries)?;
        let mut counts = Counts::default();
        let mut succeeded = true;
        for arguments in &plan.runs {
            let mut command = cargo::command("test")?;
            command
                .args(["--release", "--no-fail-fast"])
                .args(arguments)
                .env(SKIPPED, &skips.0)
                .env(BIN_DIR, &binaries)
                .envs(plan.environment.iter().copied())
                .envs(python.iter().flatten().map(|(name, path)| (name, path)))
                .envs(prometheus.iter().map(|folder| (PROMETHEUS, folder)))
                .envs(kubernetes.iter().map(|folder| (KUBERNETES, folder)));
            succeeded &= run_counting(&mut command, &mut counts)?;
        }
        let skipped = skips.lines()?;
        if plan.fuzzes {
            // By themselves, for they take all processors, and there are tests with deadlines.
            let fuzz::Tally { passed, failed } = fuzz::test();
            counts.passed += passed;
            counts.failed += failed;
            succeeded &= failed == 0;
        }
        self.conclude(&counts, &skipped, succeeded)
    }

    /// Builds the tests while pip installs what those in Python need: the one waits for processors,
    /// the other for the network and the disk. Then installs the package. The variables that tell
    /// the tests of it.
    fn with_python(&self) -> Result<Vec<(&'static str, PathBuf)>> {
        let install = || {
            let python = python::with_torch()?;
            let middle = python::with_older_torch(&python, &python::WITHOUT_COMPILER)?;
            let mut interpreters = vec![(MIDDLE, middle)];
            if python::has_oldest(&python)? {
                python::compiler(&python)?;
                interpreters.push((OLDEST, python::with_older_torch(&python, &python::OLDEST)?));
            }
            Ok::<_, anyhow::Error>(interpreters)
        };
        let (older, built) = thread::scope(|scope| {
            let installing = scope.spawn(install);
            let built = cargo::command("test").and_then(|mut cargo| {
                Ok(cargo.args(["--release", "--no-run"]).args(&self.arguments).status()?)
            });
            (installing.join(), built)
        });
        let mut named = older.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        ensure!(
            built?.success(),
            "the tests could not be built; the compiler's messages are above"
        );
        named.push((PYTHON, python::with_package()?));
        Ok(named)
    }

    /// Lists what was skipped, and what was left out because it needs what no machine must have;
    /// says the totals and decides.
    fn conclude(&self, counts: &Counts, skipped: &[String], succeeded: bool) -> Result<()> {
        say!("");
        let (left_out, skips): (Vec<_>, Vec<_>) =
            skipped.iter().partition(|line| line.starts_with(LEFT_OUT));
        for test in &left_out {
            say!("{test}");
        }
        for skip in skips.into_iter().chain(&counts.ignored) {
            say!("skipped {skip}");
        }
        // A test that could not run has returned, which libtest counts as passed.
        let passed = counts.passed.saturating_sub(skipped.len());
        let skips = skipped.len() - left_out.len() + counts.ignored.len();
        if counts.lost > 0 {
            say!(
                "{} tests were lost: their program died before it summed up; they count as failed",
                counts.lost
            );
        }
        say!("{passed} passed, {} failed, {skips} skipped", counts.failed + counts.lost);
        if !succeeded {
            bail!("tests failed; what failed is named above");
        }
        if skips > 0 && (self.require_all || env::var("CI").is_ok_and(|ci| ci == "true")) {
            bail!("{skips} tests could not run, and here (CI=true or --require-all) all must");
        }
        Ok(())
    }
}

/// Runs cargo to its end, passes its output on, and counts what that says of tests. Whether it
/// succeeded.
fn run_counting(command: &mut Command, counts: &mut Counts) -> Result<bool> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    for line in BufReader::new(output).split(b'\n') {
        let line = line.context("cannot read cargo's output")?;
        let text = String::from_utf8_lossy(&line);
        // Nobody may read our output any more; the tests still count.
        let _ = writeln!(std::io::stdout(), "{text}");
        counts.add(&text);
    }
    Ok(child.wait()?.success())
}
