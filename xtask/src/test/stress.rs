//! `cargo xtask test --stress N`: the same tests again and again, next to other processes that use
//! the processors. A test whose verdict changes under load is broken.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};
use switchml_cli::say;

use super::plan;
use super::times::Level;
use super::{Counts, run_counting};
use crate::{cargo, programs::Program};

/// Tests that have failed now and then, a name in each line.
const SUSPECTS: &str = include_str!("suspects.txt");

/// Busy processes per processor.
const LOADS: [usize; 3] = [2, 4, 8];

/// Tests of a program.
pub struct Chosen {
    program: Program,
    tests: Vec<String>,
}

/// The tests of a level whose names contain one of `names`. Without names: the suspects, and the
/// tests in files that differ from the last commit.
pub fn choose(level: Level, programs: &[Program], names: &[String]) -> Result<Vec<Chosen>> {
    let suspects = SUSPECTS.lines().filter(|line| !line.starts_with('#')).map(str::to_owned);
    let changed = if names.is_empty() { changed()? } else { Vec::new() };
    let names = if names.is_empty() { suspects.collect() } else { names.to_vec() };
    let mut all = Vec::new();
    for program in programs {
        let Some(left_out) = plan::left_out(level, program) else { continue };
        let modules = changed.iter().filter_map(|file| module(program, file));
        let wanted: Vec<String> = names.iter().cloned().chain(modules).collect();
        let mut tests = list(program)?;
        tests.retain(|test| !left_out.iter().any(|head| test.starts_with(head)));
        tests.retain(|test| wanted.iter().any(|name| format!("::{test}").contains(name)));
        if !tests.is_empty() {
            all.push(Chosen { program: program.clone(), tests });
        }
    }
    ensure!(!all.is_empty(), "no test has a name that contains {}", names.join(" or "));
    Ok(all)
}

/// Runs the chosen tests `times` times under each load. `prepare` sets a program's environment. The
/// output has the failures of each test.
pub fn run(
    chosen: &[Chosen],
    times: u32,
    prepare: impl Fn(&mut Command),
    counts: &mut Counts,
) -> Result<bool> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let mut succeeded = true;
    for load in LOADS.map(|load| load * processors) {
        let _load = Load::start(load)?;
        for time in 1..=times {
            say!("beside {load} busy processes, {time} of {times}:");
            for Chosen { program, tests } in chosen {
                let mut command = program.command();
                prepare(&mut command);
                succeeded &= run_counting(command.arg("--exact").args(tests), counts)?;
            }
        }
    }
    Ok(succeeded)
}

/// Files that differ from the last commit, below the workspace.
fn changed() -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(cargo::workspace()).args(["diff", "--name-only", "--relative", "HEAD"]);
    let output = git.output().context("cannot start git")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}

/// The part of test names that stands for a file's module, such as `::module::`, if the file
/// belongs to the program's package.
fn module(program: &Program, file: &str) -> Option<String> {
    let file = cargo::workspace().canonicalize().ok()?.join(file);
    let inside = file.strip_prefix(program.folder()).ok()?.with_extension("");
    let is_code = file.extension().is_some_and(|kind| kind == "rs");
    let parts = |path: &Path| path.file_name()?.to_str().map(str::to_owned);
    let name = match parts(&inside)?.as_str() {
        "mod" | "main" | "lib" | "tests" => parts(inside.parent()?)?,
        name => name.to_owned(),
    };
    is_code.then(|| format!("::{name}::"))
}

/// The names of a program's tests.
fn list(program: &Program) -> Result<Vec<String>> {
    let output = program.command().args(["--list", "--format", "terse"]).output();
    let output = output.with_context(|| format!("cannot start {}", program.name()))?;
    ensure!(output.status.success(), "{} does not list its tests", program.name());
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// Processes that take all the time they get, until this is dropped.
struct Load(Vec<Child>);

impl Load {
    fn start(processes: usize) -> Result<Self> {
        let mut load = Self(Vec::new());
        for _ in 0..processes {
            let mut busy = Command::new("sha256sum");
            busy.arg("/dev/zero").stdin(Stdio::null()).stdout(Stdio::null());
            load.0.push(busy.spawn().context("cannot start sha256sum")?);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspects_exist() {
        for name in SUSPECTS.lines().filter(|line| !line.starts_with('#')) {
            // For the name of a module, its last part; for a test, the test's name.
            let last = name.trim_end_matches("::").rsplit("::").next().unwrap();
            let mut git = Command::new("git");
            git.current_dir(cargo::workspace()).args(["grep", "--quiet", "--extended-regexp"]);
            git.args([&format!("(fn|mod) {last}"), "--", "*.rs"]);
            assert!(git.status().unwrap().success(), "no test has a name that begins with {name}");
        }
    }
}
