//! `cargo xtask p4 doctor`: the tools for P4 that are there, what is known of them, which commands
//! and tests they enable, and what to do next.

mod known;
mod sde;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use switchml_cli::say;
use switchml_rack::{SimpleSwitch, tofino_model, tools};

use super::programs::{self, Program};
use sde::Sde;

/// A tool that a command or a test here starts.
struct Tool {
    name: &'static str,
    /// The argument with which it only tells something about itself; `None` if no such argument is
    /// known.
    tells_with: Option<&'static str>,
    /// What is shown of what it tells; `None` if that is not known.
    read: fn(&str) -> Option<String>,
}

const TOOLS: [Tool; 5] = [
    Tool { name: "p4c-bm2-ss", tells_with: Some("--version"), read: known::compiler_version },
    Tool { name: "simple_switch", tells_with: Some("--version"), read: known::switch_version },
    Tool { name: "p4c-barefoot", tells_with: Some("--version"), read: known::compiler_version },
    // It has no option for its version.
    Tool { name: "bfas", tells_with: Some("-h"), read: known::assembler },
    Tool { name: tofino_model::HARNESS, tells_with: None, read: |_| None },
];

/// What was found of a tool.
enum State {
    Missing,
    /// There, but it does not run, for this reason.
    Broken(PathBuf, String),
    /// There; what it tells, if it was asked.
    There(PathBuf, Option<String>),
}

/// Prints everything. It is an error if a tool is there that does not run.
pub fn run(built: &Path) -> Result<()> {
    let found = TOOLS.map(|tool| (tool.name, tool.look()));
    for (name, state) in &found {
        say!("{name:<19}  {state}");
    }
    for note in notes(&found) {
        say!("note: {note}");
    }
    let sde = Sde::from_environment();
    say!("{:<19}  {sde}\n", "SDE");
    for (what, obstacle) in uses(built) {
        say!("{what:<33}  {}", obstacle.unwrap_or_else(|| "can run".to_owned()));
    }
    let broken = found.iter().filter(|(_, state)| state.is_broken()).map(|(name, _)| *name);
    let broken: Vec<_> = broken.collect();
    let does_not_run = "what is on the PATH does not run";
    ensure!(broken.is_empty(), "install {} again: {does_not_run}", broken.join(", "));
    say!("\nnext: {}", next(&sde, built));
    Ok(())
}

impl Tool {
    fn look(&self) -> State {
        let Some(path) = tools::on_path(self.name) else { return State::Missing };
        let Some(argument) = self.tells_with else { return State::There(path, None) };
        match tell(&path, argument) {
            Ok((succeeded, text)) => match (self.read)(&text) {
                None if !succeeded => State::Broken(path, last_line(&text)),
                about => State::There(path, about),
            },
            Err(error) => State::Broken(path, error.to_string()),
        }
    }
}

impl State {
    fn is_broken(&self) -> bool {
        matches!(self, Self::Broken(..))
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing => f.write_str("not on the PATH"),
            Self::Broken(path, why) => write!(f, "{}: does not run: {why}", path.display()),
            Self::There(path, None) => write!(f, "{}", path.display()),
            Self::There(path, Some(about)) => write!(f, "{about}, {}", path.display()),
        }
    }
}

/// Whether a tool succeeds when it is asked, and what it writes to its output and its errors.
fn tell(tool: &Path, argument: &str) -> std::io::Result<(bool, String)> {
    let output = Command::new(tool).arg(argument).stdin(Stdio::null()).output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

fn last_line(text: &str) -> String {
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    last.map_or_else(|| "it says nothing".to_owned(), |line| line.trim().to_owned())
}

/// What is known of what was found.
fn notes(found: &[(&str, State)]) -> Vec<String> {
    let there = |wanted: &str| {
        found.iter().find(|(name, _)| *name == wanted).and_then(|(_, state)| match state {
            State::There(path, about) => Some((path, about.clone().unwrap_or_default())),
            _ => None,
        })
    };
    let mut notes = Vec::new();
    if let Some((compiler, _)) = there("p4c-barefoot") {
        // Its own number is always 9.13.4. What is installed beside it is of the same p4c.
        let beside = there("p4c-bm2-ss").filter(|(path, _)| path.parent() == compiler.parent());
        notes.push(known::of_tofinos_compiler(beside.map(|(_, version)| version).as_deref()));
    }
    if let Some((switch, _)) = there("simple_switch") {
        let (_, options) = tell(switch, "--help").unwrap_or_default();
        notes.extend(known::of_switch(&options));
    }
    notes
}

/// Commands and tests, and what hinders each.
fn uses(built: &Path) -> Vec<(&'static str, Option<String>)> {
    let lacks = |programs: &[Program]| {
        let tools = programs.iter().flat_map(|program| tools::missing(program.tools));
        let tools: BTreeSet<_> = tools.collect();
        (!tools.is_empty()).then(|| tools.into_iter().collect::<Vec<_>>())
    };
    let sources = programs::ALL.map(|program| (program.source, lacks(&[program])));
    let skipped = sources.iter().filter(|(_, lacks)| lacks.is_some()).map(|(source, _)| *source);
    let skipped: Vec<_> = skipped.collect();
    let check = (!skipped.is_empty()).then(|| format!("can run; skips {}", skipped.join(", ")));
    let build = match lacks(&programs::ALL) {
        Some(tools) if skipped.len() == programs::ALL.len() => {
            Some(format!("no {} on the PATH", tools.join(", no ")))
        }
        _ => check.clone(),
    };
    let bmv2 = SimpleSwitch::obstacle();
    vec![
        ("cargo xtask p4 check", check),
        ("cargo xtask p4 build", build),
        ("cargo xtask p4 test", bmv2.clone()),
        ("cargo xtask run --data-plane bmv2", bmv2),
        ("test tofino_model", tofino_model::obstacle(built)),
    ]
}

fn next(sde: &Sde, built: &Path) -> String {
    let tofino = tools::missing(programs::TOFINO.tools);
    if let Some(folder) = sde.folder_with(&tofino) {
        return format!("put {} on the PATH", folder.display());
    }
    let is_there = |tool: &str| tools::on_path(tool).is_some();
    step(is_there).unwrap_or_else(|| match tofino_model::not_built(built) {
        Some(_) => "cargo xtask p4 build".to_owned(),
        None => "cargo xtask p4 deploy ADDRESS:PORT, to a switch that runs bf_switchd".to_owned(),
    })
}

/// What to install next; `None` if there are tools for Tofino, which need no others.
fn step(is_there: impl Fn(&str) -> bool) -> Option<String> {
    let has = |tools: &[&str]| tools.iter().all(|tool| is_there(tool));
    let (step, tools) = match () {
        () if has(programs::TOFINO.tools) => return None,
        () if has(&SimpleSwitch::TOOLS) => ("2", "p4c with its Tofino backend"),
        () => ("1", "p4c and bmv2, which need no hardware"),
    };
    Some(format!("install {tools}: docs/tofino.md, From nothing to a switch, step {step}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_for_tofino_alone_are_enough() {
        let next = |tools: &[&str]| step(|tool| tools.contains(&tool));
        let step_of = |tools: &[&str]| next(tools).map(|line| line.chars().last());
        assert_eq!(step_of(&[]), Some(Some('1')));
        assert_eq!(step_of(&["p4c-bm2-ss"]), Some(Some('1')), "no switch");
        assert_eq!(step_of(&["p4c-bm2-ss", "simple_switch", "bfas"]), Some(Some('2')));
        assert_eq!(next(&["p4c-barefoot", "bfas"]), None);
        let all = ["p4c-bm2-ss", "simple_switch", "p4c-barefoot", "bfas"];
        assert_eq!(next(&all), None);
    }
}
