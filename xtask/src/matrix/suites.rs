//! The tests that run inside a machine, and their results.

use anyhow::{Context, Result};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use super::qemu::Machine;

/// The line that is printed when everything was run.
pub const END: &str = "matrix: all was run";
/// Many times longer than a kernel needs on an idle machine, in seconds: after that, it hangs.
const LIMIT: &str = "1800";
/// Lines before the result of a failed test that are shown with it.
const KEPT: usize = 100;

/// The results of the tests on a kernel.
#[derive(Default)]
pub struct Outcome {
    passed: Vec<String>,
    failed: Vec<String>,
    ended: bool,
}

impl Outcome {
    fn hear(&mut self, line: &str) {
        if line.contains(END) {
            self.ended = true;
        } else if let Some(skipped) = line.strip_prefix("skipped ") {
            self.failed.push(format!("{skipped} (skipped)"));
        } else if let Some((name, result)) =
            line.strip_prefix("test ").and_then(|test| test.split_once(" ... "))
        {
            let list = if result == "ok" { &mut self.passed } else { &mut self.failed };
            list.push(name.to_owned());
        }
    }

    /// The number of passed tests whose names contain `part`, as text; a dash if there are none.
    pub fn of(&self, part: &str) -> String {
        self.count(|name| name.contains(part))
    }

    /// The number of passed tests whose names contain none of `parts`, as text.
    pub fn of_others(&self, parts: &[&str]) -> String {
        self.count(|name| !parts.iter().any(|part| name.contains(part)))
    }

    fn count(&self, chosen: impl Fn(&str) -> bool) -> String {
        let count = |tests: &[String]| tests.iter().filter(|name| chosen(name)).count();
        match (count(&self.passed), count(&self.failed)) {
            (0, 0) => "–".to_owned(),
            (passed, failed) => format!("{passed} of {} pass", passed + failed),
        }
    }

    /// The problem, if there is one.
    pub fn problem(&self) -> Option<String> {
        if !self.failed.is_empty() {
            return Some(format!("failed: {}", self.failed.join(", ")));
        }
        (!self.ended || self.passed.is_empty())
            .then(|| "its machine ended before all was run".to_owned())
    }
}

/// Picks the lines to show: results, and what failed tests printed. Scripts print that before the
/// result, and Rust's tests below all results.
#[derive(Default)]
struct Shown {
    /// The last lines since a result.
    before: VecDeque<String>,
    below: bool,
}

impl Shown {
    /// The lines to show when this one comes.
    fn next(&mut self, line: &str) -> Vec<String> {
        if line.starts_with("test ") {
            self.below = false;
            let before = self.before.drain(..);
            let explains = if line.ends_with("... FAILED") { before.collect() } else { Vec::new() };
            return [explains, vec![line.to_owned()]].concat();
        }
        self.below |= line == "failures:";
        if self.below {
            return vec![line.to_owned()];
        }
        if self.before.len() == KEPT {
            self.before.pop_front();
        }
        self.before.push_back(line.to_owned());
        Vec::new()
    }
}

/// Boots the kernel with these options, shows the results of its tests, and waits until its machine
/// ends. All output goes to `console`.
pub fn run(machine: &Machine, options: &str, console: &Path) -> Result<Outcome> {
    let mut console = File::create(console)?;
    let mut machine = Command::new("timeout")
        .arg(LIMIT)
        .args(machine.command_line(options)?)
        // One processor: with two emulated ones, one waits long for what the other holds, and a
        // packet is given up.
        .args(["-smp", "1"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start QEMU")?;
    let (mut outcome, mut shown) = (Outcome::default(), Shown::default());
    for line in BufReader::new(machine.stdout.take().context("QEMU has no output")?).split(b'\n') {
        let line = line?;
        console.write_all(&line)?;
        console.write_all(b"\n")?;
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        shown.next(text).iter().for_each(|line| eprintln!("{line}"));
        outcome.hear(text);
    }
    machine.wait()?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::{END, Outcome, Shown};

    fn heard(lines: &[&str]) -> Outcome {
        let mut outcome = Outcome::default();
        lines.iter().for_each(|line| outcome.hear(line));
        outcome
    }

    #[test]
    fn all_must_pass_and_run() {
        let lines = [
            "running 2 tests",
            "test native::a ... ok",
            "test bundles::a ... ok",
            "test frames::a ... ok",
            "test result: ok. 3 passed",
        ];
        let outcome = heard(&[&lines[..], &[END]].concat());
        assert_eq!(
            (outcome.of("native::"), outcome.of("bundles::")),
            ("1 of 1 pass".into(), "1 of 1 pass".into())
        );
        assert_eq!(outcome.of_others(&["native::", "bundles::"]), "1 of 1 pass");
        assert_eq!(outcome.problem(), None);
        assert_eq!(
            heard(&lines).problem().expect("no end"),
            "its machine ended before all was run"
        );
        assert_eq!(
            heard(&[END]).problem().expect("no test"),
            "its machine ended before all was run"
        );
        let failed = heard(&["test native::a ... FAILED", "skipped b: no namespaces", END]);
        assert_eq!(failed.problem().expect("two"), "failed: native::a, b: no namespaces (skipped)");
        assert_eq!(failed.of("native::"), "0 of 1 pass");
    }

    #[test]
    fn failed_tests_are_shown_with_what_they_printed() {
        let mut shown = Shown::default();
        let mut show = |lines: &[&str]| -> Vec<String> {
            lines.iter().flat_map(|line| shown.next(line)).collect()
        };
        assert_eq!(show(&["[1.0] boot", "test a ... ok"]), ["test a ... ok"]);
        assert_eq!(show(&["error: b", "test b ... FAILED"]), ["error: b", "test b ... FAILED"]);
        assert_eq!(show(&["usual", "test c ... ok"]), ["test c ... ok"]);
        let below = ["failures:", "panicked at", "test result: FAILED. 2 passed; 1 failed"];
        assert_eq!(show(&[&["", ""], &below[..]].concat()), below);
        assert_eq!(show(&["usual"]), Vec::<String>::new());
        let long: Vec<_> = (0..150).map(|number| number.to_string()).collect();
        let long: Vec<_> = long.iter().map(String::as_str).collect();
        let last = show(&[&long[..], &["test d ... FAILED"]].concat());
        assert_eq!((last.len(), last[0].as_str()), (101, "50"));
    }
}
