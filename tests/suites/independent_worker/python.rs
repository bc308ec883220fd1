//! A rank in Python.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use switchml_rack::{Process, Rack, skip};
use tempfile::TempDir;

use crate::script::Script;

/// The interpreter; none for the test `name`, which is said.
pub fn interpreter(name: &str) -> Option<PathBuf> {
    let python = std::env::var_os("SWITCHML_PYTHON");
    if python.is_none() {
        let how = "`cargo xtask test -- -p switchml-rack --test independent_worker` makes an \
                   environment and sets it";
        skip(name, &format!("SWITCHML_PYTHON is not set; {how}"));
    }
    python.map(PathBuf::from)
}

/// The folder that has the package.
fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A process that makes the calls of a script.
pub struct Rank {
    pub rank: usize,
    process: Process,
    files: Files,
}

/// The files with a rank's calls and results. They are removed when this is dropped.
struct Files(TempDir);

impl Files {
    fn calls(&self) -> PathBuf {
        self.0.path().join("calls")
    }

    fn results(&self) -> PathBuf {
        self.0.path().join("results")
    }
}

impl Rank {
    pub fn start(
        python: &Path,
        rack: &Rack,
        control: &str,
        job: &str,
        rank: usize,
        script: &Script,
    ) -> Self {
        let files = Files(tempfile::tempdir().unwrap());
        let calls: Vec<_> = script.steps.iter().map(|step| step.line(rank)).collect();
        fs::write(files.calls(), calls.join("\n")).unwrap();
        let mut command = Command::new(python);
        command.args([
            "-m",
            script.module,
            control,
            job,
            &rank.to_string(),
            &script.ranks.to_string(),
        ]);
        command.args([files.calls(), files.results()]);
        command.env("PYTHONPATH", self::folder()).env("PYTHONDONTWRITEBYTECODE", "1");
        let process = rack.worker(rank).spawn(&format!("rank {rank}, in Python"), command).unwrap();
        Self { rank, process, files }
    }

    /// The result of each call, and how many packets were sent again.
    pub fn finish(mut self, patience: Duration) -> (Vec<Vec<u8>>, u64) {
        self.process.wait_success(patience).unwrap();
        let text = fs::read_to_string(self.files.results()).unwrap();
        let printed = self.process.stdout();
        let resent =
            printed.lines().find_map(|line| line.strip_prefix("sent again: ")?.parse().ok());
        (text.lines().map(bytes).collect(), resent.unwrap_or_else(|| panic!("{printed}")))
    }
}

fn bytes(line: &str) -> Vec<u8> {
    let digits = line.as_bytes().chunks(2).map(|digits| std::str::from_utf8(digits).unwrap());
    digits.map(|digits| u8::from_str_radix(digits, 16).unwrap()).collect()
}

/// Whoever reads the modules of the core needs to read no others.
#[test]
fn the_core_imports_no_option() {
    let mut modules = 0;
    for entry in fs::read_dir(folder().join("independent_worker")).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_none_or(|extension| extension != "py") {
            continue;
        }
        modules += 1;
        let text = fs::read_to_string(&file).unwrap();
        let imports = text.lines().any(|line| line.trim_start().starts_with("from .options"));
        assert!(!imports, "{}", file.display());
    }
    assert!(modules > 8, "{modules}");
}

/// The worker's types are right, and it imports nothing of the product.
#[test]
fn types_are_right() {
    let Some(python) = interpreter("types_are_right") else { return };
    let mut command = Command::new(python);
    command.current_dir(folder()).args([
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        "/dev/null",
        "independent_worker",
    ]);
    let output = command.output().unwrap();
    let [printed, told] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{printed}{told}");
}
