//! `cargo xtask test`: every test, and an honest count.

use crate::{cargo, fuzz, python, setup};
use anyhow::{Context, Result, bail, ensure};
use std::{
    env,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::Stdio,
    thread,
};
use switchml_cli::say;
use switchml_rack::LEFT_OUT;

/// Names the file to which a test that cannot run appends `name: reason` before it returns.
const SKIPPED: &str = "SWITCHML_SKIPPED";
/// Names the interpreter that has the Python package and torch.
const PYTHON: &str = "SWITCHML_PYTHON";
/// The test programs that need it.
const IN_PYTHON: [&str; 2] = ["python", "independent_worker"];
/// Names the folder that has the oldest torch which the package is for.
const OLDEST_TORCH: &str = "SWITCHML_OLDEST_TORCH";
/// Names the folder with the binaries that the end-to-end tests start.
const BIN_DIR: &str = "SWITCHML_BIN_DIR";

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Test {
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
        Self { require_all: true, arguments: arguments.iter().map(ToString::to_string).collect() }
    }

    /// Runs `cargo test` over the default members, then the fuzz targets, and sums up.
    ///
    /// In release: the end-to-end tests need the release binaries anyway, so all dependencies are
    /// compiled once, and the property and simulation tests run many times faster.
    ///
    /// # Errors
    ///
    /// If a test failed, if tests could not be built, or if one could not run where all must.
    pub fn run(&self) -> Result<()> {
        setup::run()?;
        // Testing everything builds the binaries on the way, with the features that the tests need;
        // building them before would compile much of it twice.
        let binaries = if self.arguments.is_empty() {
            cargo::release_folder()?
        } else {
            cargo::build_binaries()?
        };
        let python = if self.arguments.is_empty()
            || self.arguments.iter().any(|argument| IN_PYTHON.contains(&argument.as_str()))
        {
            Some(self.with_python()?)
        } else {
            None
        };
        let skips = SkipFile::create(&binaries)?;
        let mut child = cargo::command("test")?
            .args(["--release", "--no-fail-fast"])
            .args(&self.arguments)
            .env(SKIPPED, &skips.0)
            .env(BIN_DIR, &binaries)
            .envs(python.into_iter().flatten())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start cargo")?;
        let mut counts = Counts::default();
        for line in BufReader::new(child.stdout.take().context("cargo has no output")?).split(b'\n')
        {
            let line = line.context("cannot read cargo's output")?;
            let text = String::from_utf8_lossy(&line);
            // Whoever reads our output may be gone; the tests still count.
            let _ = writeln!(std::io::stdout(), "{text}");
            counts.add(&text);
        }
        let status = child.wait()?;
        let skipped = skips.lines()?;
        let mut succeeded = status.success();
        if self.arguments.is_empty() {
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
    fn with_python(&self) -> Result<[(&'static str, PathBuf); 2]> {
        let install = || python::oldest_torch(&python::with_torch()?);
        let (oldest, built) = thread::scope(|scope| {
            let installing = scope.spawn(install);
            let built = cargo::command("test").and_then(|mut cargo| {
                Ok(cargo.args(["--release", "--no-run"]).args(&self.arguments).status()?)
            });
            (installing.join(), built)
        });
        let oldest = oldest.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        ensure!(
            built?.success(),
            "the tests could not be built; the compiler's messages are above"
        );
        Ok([(PYTHON, python::with_package()?), (OLDEST_TORCH, oldest)])
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

/// What libtest's lines say.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: usize,
    failed: usize,
    /// Those marked `#[ignore]`, by name.
    ignored: Vec<String>,
    /// Those begun of which no result was heard, because their program was killed or aborted.
    lost: usize,
}

impl Counts {
    /// Takes note of libtest's lines, of which there are three kinds; other lines count nothing:
    /// `running 13 tests`, `test a::b ... ignored, because`, and `test result: ok. 12 passed; 0
    /// failed; 1 ignored; 0 measured; …`, which a program that dies does not write.
    fn add(&mut self, line: &str) {
        if let Some((number, _)) =
            line.strip_prefix("running ").and_then(|rest| rest.split_once(" test"))
        {
            self.lost += number.parse::<usize>().unwrap_or(0);
        } else if let Some((name, reason)) =
            line.strip_prefix("test ").and_then(|test| test.split_once(" ... ignored"))
        {
            self.ignored.push(format!("{name}: ignored{reason}"));
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.add_result(result);
        }
    }

    fn add_result(&mut self, result: &str) {
        let numbers = result.split_once(". ").map_or(result, |(_, numbers)| numbers);
        for part in numbers.split("; ") {
            let Some((number, what)) = part.split_once(' ') else { continue };
            let Ok(number) = number.parse::<usize>() else { continue };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => {}
                _ => continue,
            }
            self.lost = self.lost.saturating_sub(number);
        }
    }
}

/// The file that tests report to, removed with this value.
struct SkipFile(PathBuf);

impl SkipFile {
    fn create(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let path = folder.join(format!("skipped-tests-{}", std::process::id()));
        File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    fn lines(&self) -> Result<Vec<String>> {
        let text = fs::read_to_string(&self.0)
            .with_context(|| format!("cannot read {}", self.0.display()))?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}

impl Drop for SkipFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn lines_add_up() {
        let mut counts = Counts::default();
        for line in [
            "running 13 tests",
            "test a ... ok",
            "test b::c ... ignored, needs a cluster",
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.01s",
            "running 1 test",
            "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s",
        ] {
            counts.add(line);
        }
        let ignored = vec!["b::c: ignored, needs a cluster".to_owned()];
        assert_eq!(counts, Counts { passed: 12, failed: 1, ignored, lost: 0 });
    }

    #[test]
    fn the_tests_of_a_program_that_dies_are_lost() {
        let mut counts = Counts::default();
        for line in [
            "running 3 tests",
            "test a ... ok",
            "running 2 tests",
            "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        ] {
            counts.add(line);
        }
        assert_eq!(counts, Counts { passed: 2, failed: 0, ignored: vec![], lost: 3 });
    }
}
