//! Writes the pages of docs/reference, and the settings of a communicator for C and Python, so that
//! they say what the source says: `cargo xtask gen` runs it. The programs print what they know of
//! themselves; the libraries have lists.

mod environment;
mod errors;
mod settings;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use switchml_rack::Binaries;

/// The first line of each page.
const ABOUT: &str = "<!-- Made by `cargo xtask gen` from the source: change it there. -->\n\n";

const COMMAND_LINES: &str = "\
# Command lines

This page is for users and operators. It lists the options of `switchml-worker` and
`switchml-aggregator`, as `--help` prints them. An option overrides its variable.
[Environment variables](environment.md) has all variables.

";

const CONFIGURATION: &str = "\
# Configuration file

This page is for operators. It lists the keys of the file that `switchml-aggregator --config FILE`
reads, in TOML. The service of the packages reads `/etc/switchml/aggregator.toml`. Each key is the
name of an [option](command-lines.md#switchml-aggregator). An option on the command line overrides
the file. If a key is unknown, or its value is not allowed, the daemon does not start.
`switchml-aggregator --config FILE --check-config` checks a file.

";

const METRICS: &str = "\
# Metrics

This page is for operators. It lists the metrics that an aggregator has at `/metrics`, at the port
of the control plane. Jobs with many ranks have the metrics with the label `rank` for the 16 ranks
with the highest values. If a metric does not apply to an aggregator, it is missing.

";

/// Writes docs/reference and the settings of other languages from the source.
#[derive(clap::Parser)]
struct Reference {
    /// Write nothing; fail if a file is not what would be written
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let Reference { check } = switchml_cli::parse();
    match files().and_then(|files| files.iter().try_for_each(|file| file.settle(check))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A file: its path in the repository, and its text.
struct Made {
    path: &'static str,
    text: String,
}

impl Made {
    /// A page of parts that end with empty lines.
    fn page(path: &'static str, intro: &str, parts: &[String]) -> Self {
        let text = format!("{ABOUT}{intro}{}", parts.concat());
        Self { path, text: text.trim_end().to_owned() + "\n" }
    }

    /// Writes the file, or checks it.
    fn settle(&self, check: bool) -> Result<()> {
        let path = workspace().join(self.path);
        if !check {
            return fs::write(&path, &self.text)
                .with_context(|| format!("cannot write {}", path.display()));
        }
        let is_current = fs::read_to_string(&path).is_ok_and(|committed| committed == self.text);
        ensure!(
            is_current,
            "{} is not what the source says; run `cargo xtask gen`",
            path.display()
        );
        Ok(())
    }
}

fn files() -> Result<[Made; 7]> {
    let Binaries { worker, aggregator, .. } = Binaries::for_test()?;
    let of_daemon = |page| printed(&aggregator, &["reference", page]);
    let lines = [printed(&worker, &["reference"])?, of_daemon("command-lines")?];
    Ok([
        Made::page("docs/reference/command-lines.md", COMMAND_LINES, &lines),
        Made::page(
            "docs/reference/configuration.md",
            CONFIGURATION,
            &[of_daemon("configuration")?],
        ),
        Made::page("docs/reference/environment.md", environment::INTRO, &environment::parts()),
        Made::page("docs/reference/errors.md", errors::INTRO, &errors::parts(workspace())?),
        Made::page("docs/reference/metrics.md", METRICS, &[of_daemon("metrics")?]),
        Made { path: settings::C_PATH, text: settings::c() },
        Made { path: settings::PYTHON_PATH, text: settings::python() },
    ])
}

/// What a program prints.
fn printed(program: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    let output = command.args(arguments).output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned() + "\n\n")
}

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_files_are_what_the_source_says() {
        for file in files().expect("files") {
            file.settle(true).expect("current");
        }
    }
}
