//! `cargo xtask test`: every test, and an honest count.

mod counts;
mod plan;
mod skip_file;
mod stress;
mod times;

use crate::{cargo, fuzz, matrix::Matrix, programs::Program, python, setup};
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::{env, thread};
use switchml_cli::say;
use switchml_rack::LEFT_OUT;

use counts::Counts;
use plan::Plan;
use skip_file::SkipFile;
use times::{Clock, Level};

/// Names the file to which a test that cannot run appends `name: reason` before it returns.
const SKIPPED: &str = "SWITCHML_SKIPPED";
/// Names the interpreter that has the Python package and torch.
const PYTHON: &str = "SWITCHML_PYTHON";
/// Names the interpreter with the oldest torch that the package supports.
const OLDEST: &str = "SWITCHML_PYTHON_OLDEST";
/// Names the interpreter with the first torch that needs no compiler.
const MIDDLE: &str = "SWITCHML_PYTHON_MIDDLE";
/// Names the interpreter that has vLLM.
const VLLM: &str = "SWITCHML_PYTHON_VLLM";
/// Names the interpreter that has Ray.
const RAY: &str = "SWITCHML_PYTHON_RAY";
/// Names the folder that has Prometheus and promtool.
const PROMETHEUS: &str = "SWITCHML_PROMETHEUS";
/// Names the folder that has kubernetes-validate, with its interpreter.
const KUBERNETES: &str = "SWITCHML_KUBERNETES";
/// Names the folder with an interpreter that has MLX.
const MLX: &str = "SWITCHML_MLX";
/// Names the folder with the binaries that the end-to-end tests start.
const BIN_DIR: &str = "SWITCHML_BIN_DIR";

/// Variables that tell tests where things are.
type Variables = Vec<(&'static str, PathBuf)>;

/// Makes an environment, and returns its interpreter.
type Make = fn() -> Result<PathBuf>;

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Test {
    /// Also run tests that need torch, MPI, Slurm, a browser, Prometheus or QEMU, and the fuzz
    /// targets
    #[arg(long)]
    all: bool,
    /// Stress mode: run each test N times with 2, 4 and 8 busy processes for each core. It runs
    /// tests that have failed now and then and tests in changed files, or tests whose names
    /// contain ARGUMENTS
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    stress: Option<u32>,
    /// Fail if a test could not run, as when CI=true
    #[arg(long)]
    require_all: bool,
    /// Handed to `cargo test`, such as `-p switchml-protocol`
    #[arg(last = true)]
    arguments: Vec<String>,
}

impl Test {
    /// The tests that some arguments of `cargo test` choose, all of which must run.
    pub fn chosen(arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(ToString::to_string).collect();
        Self { all: false, stress: None, require_all: true, arguments }
    }

    /// Prints what it will install and run, builds and runs the test programs, then runs the other
    /// checks, and prints a summary.
    ///
    /// All builds are release builds: the end-to-end tests need the release binaries anyway, so
    /// dependencies are compiled only once, and the property and simulation tests run many times
    /// faster.
    pub fn run(&self) -> Result<()> {
        let level = if self.all { Level::All } else { Level::Usual };
        let mut clock = Clock::start();
        let plan = if self.chooses() { Plan::chosen(&self.arguments) } else { Plan::of(level) };
        ensure!(
            !self.all || !self.chooses(),
            "--all runs all tests; leave it out, or what chooses some: {}",
            self.arguments.join(" ")
        );
        if self.stress.is_none() && self.arguments.is_empty() {
            plan::announce(level);
        }
        plan.announce_installs()?;
        setup::run()?;
        let (programs, environment) = self.prepare(plan)?;
        clock.is_built();
        let skips = SkipFile::create(&cargo::release_folder()?)?;
        let prepare = |command: &mut Command| {
            command
                .env(SKIPPED, &skips.0)
                .envs(environment.iter().map(|(name, path)| (name, path)));
        };
        let mut counts = Counts::default();
        if let Some(times) = self.stress {
            let chosen = stress::choose(level, &programs, &self.arguments)?;
            let succeeded = stress::run(&chosen, times, prepare, &mut counts)?;
            return self.conclude(&counts, &skips.lines()?, succeeded);
        }
        if self.chooses() {
            let mut cargo = cargo::command("test")?;
            prepare(cargo.args(["--release", "--no-fail-fast"]).args(&self.arguments));
            let succeeded = run_counting(&mut cargo, &mut counts)?;
            return self.conclude(&counts, &skips.lines()?, succeeded);
        }
        let succeeded = run_level(level, &programs, prepare, &mut counts, &mut clock)?;
        clock.report(level);
        if level == Level::All {
            clock.write()?;
        }
        self.conclude(&counts, &skips.lines()?, succeeded)
    }

    /// Whether arguments of `cargo test` choose the tests.
    fn chooses(&self) -> bool {
        self.stress.is_none() && !self.arguments.is_empty()
    }

    /// Builds the tests and their binaries, and installs their other dependencies. Returns the test
    /// programs, unless arguments choose them, and variables with the paths that tests need.
    fn prepare(&self, plan: Plan) -> Result<(Vec<Program>, Variables)> {
        let chooses = self.chooses();
        // Testing everything builds the binaries on the way, with the features that the tests need;
        // building them before would compile much of it twice.
        if chooses {
            cargo::build_binaries(cargo::Selection::All)?;
        }
        let build = || if chooses { Ok(Vec::new()) } else { Program::build(&[]) };
        let (programs, mut environment) =
            if plan.python { with_python(build)? } else { (build()?, Vec::new()) };
        let frameworks: [(bool, _, _, Make); 2] = [
            (plan.vllm, VLLM, "vLLM", python::with_vllm),
            (plan.ray, RAY, "Ray", || python::RAY.interpreter()),
        ];
        for (_, variable, what, make) in frameworks.into_iter().filter(|(needed, ..)| *needed) {
            // A test that lacks it says so, and is counted as skipped.
            match make() {
                Ok(python) => environment.push((variable, python)),
                Err(error) => say!("no {what}: {error:#}"),
            }
        }
        environment.push((BIN_DIR, cargo::release_folder()?));
        if !chooses {
            let (name, seed) = plan::SEED;
            environment.push((name, seed.into()));
        }
        if plan.watches {
            environment.push((PROMETHEUS, setup::watchers(&cargo::target_folder()?)?));
        }
        if plan.validates {
            environment.push((KUBERNETES, python::KUBERNETES.programs()?));
        }
        if plan.mpi {
            setup::mpi()?;
            // Its wheels need a newer system than the other tests do.
            match python::MLX.programs() {
                Ok(tools) => environment.push((MLX, tools)),
                Err(error) => say!("no MLX: {error:#}"),
            }
        }
        if plan.slurm {
            setup::slurm()?;
        }
        Ok((programs, environment))
    }

    /// Lists the skipped tests, and the tests that are left out because they need something
    /// optional; prints the totals, and decides on success.
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

/// Builds the tests while pip installs the packages for those in Python: the build mostly waits for
/// processors, and pip for network and disk. Then installs our package. Returns the test programs,
/// and the variables with the interpreters.
fn with_python(build: impl FnOnce() -> Result<Vec<Program>>) -> Result<(Vec<Program>, Variables)> {
    let install = || {
        let python = python::TORCH.interpreter()?;
        let middle = python::WITHOUT_COMPILER.interpreter()?;
        let mut interpreters = vec![(MIDDLE, middle)];
        if python::has_oldest(&python)? {
            python::compiler(&python)?;
            interpreters.push((OLDEST, python::OLDEST.interpreter()?));
        }
        Ok::<_, anyhow::Error>(interpreters)
    };
    let (interpreters, programs) = thread::scope(|scope| {
        let installing = scope.spawn(install);
        let programs = build();
        (installing.join(), programs)
    });
    let mut named = interpreters.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let programs = programs?;
    named.push((PYTHON, python::with_package()?));
    Ok((programs, named))
}

/// Runs the tests of a level, one program after the other, and then the other checks. Returns
/// whether all succeeded.
fn run_level(
    level: Level,
    programs: &[Program],
    prepare: impl Fn(&mut Command),
    counts: &mut Counts,
    clock: &mut Clock,
) -> Result<bool> {
    let mut succeeded = true;
    for program in programs {
        let Some(left_out) = plan::left_out(level, program) else { continue };
        let mut command = program.command();
        prepare(command.args(left_out.iter().flat_map(|tests| ["--skip", tests])));
        say!("\n{}", program.name());
        let usual = plan::left_out(Level::Usual, program).is_some();
        let name = program.name();
        succeeded &= clock.measure(&name, usual, || run_counting(&mut command, counts))?;
    }
    let mut examples = cargo::command("test")?;
    prepare(examples.args(["--release", "--no-fail-fast", "--doc"]));
    succeeded &= clock.measure("examples in docs", true, || run_counting(&mut examples, counts))?;
    if level == Level::All {
        let fuzz::Tally { passed, failed } = clock.measure("fuzz", false, || Ok(fuzz::test()))?;
        counts.passed += passed;
        counts.failed += failed;
        succeeded &= failed == 0;
        let matrix = clock.measure("matrix", false, || Ok(Matrix::in_tests().run()))?;
        match &matrix {
            Ok(()) => counts.passed += 1,
            Err(error) => {
                say!("matrix: {error:#}");
                counts.failed += 1;
            }
        }
        succeeded &= matrix.is_ok();
    }
    Ok(succeeded)
}

/// Runs a command to its end, passes its output on, and counts the tests in the output. Returns
/// whether the command succeeded.
fn run_counting(command: &mut Command, counts: &mut Counts) -> Result<bool> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    let output = child.stdout.take().context("it has no output")?;
    for line in BufReader::new(output).split(b'\n') {
        let line = line.with_context(|| format!("cannot read what {program} writes"))?;
        let text = String::from_utf8_lossy(&line);
        // The output may have no reader any more; the tests still count.
        let _ = writeln!(std::io::stdout(), "{text}");
        counts.add(&text);
    }
    Ok(child.wait()?.success())
}
