//! The command line of every program: its version, its help, its errors for wrong arguments, and
//! what happens when its output is not read.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use switchml_rack::Binaries;

/// Longer than any program takes to print something.
const PATIENCE: Duration = Duration::from_secs(30);

/// The programs, and their names.
fn programs() -> [(PathBuf, &'static str); 4] {
    let Binaries { aggregator, worker, impairment } = Binaries::for_test().unwrap();
    [
        (aggregator, "switchml-aggregator"),
        (worker, "switchml-worker"),
        (impairment, "switchml-impairment"),
        (env!("CARGO_BIN_EXE_switchml-rack").into(), "switchml-rack"),
    ]
}

/// Runs a program to its end. Returns its exit code and output.
fn run(program: &PathBuf, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(program);
    let mut child =
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("{program:?} {arguments:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (output.status.code().unwrap(), stdout, stderr)
}

#[test]
fn each_tells_its_own_name_and_version() {
    for (program, name) in programs() {
        let (code, version, errors) = run(&program, &["--version"]);
        assert_eq!((code, errors.as_str()), (0, ""), "{name}");
        let release = format!("{name} {}", env!("CARGO_PKG_VERSION"));
        let more = version.strip_prefix(&release).and_then(|more| more.strip_suffix('\n'));
        let more = more.unwrap_or_else(|| panic!("{version}"));
        // Programs for users name their build and protocol, so that users can tell which fit
        // together.
        if ["switchml-aggregator", "switchml-worker"].contains(&name) {
            assert!(is_build(more), "{version}");
        } else {
            assert_eq!(more, "");
        }
        let (code, help, errors) = run(&program, &["--help"]);
        assert_eq!((code, errors.as_str()), (0, ""), "{name}");
        assert!(help.contains(&format!("Usage: {name}")), "{help}");
    }
}

/// Whether a text names a commit and this version of the protocol.
fn is_build(text: &str) -> bool {
    let end = format!(", protocol {})", switchml_protocol::VERSION);
    let commit = text.strip_prefix(" (commit ").and_then(|text| text.strip_suffix(&end));
    commit.is_some_and(|commit| {
        let hash = commit.strip_suffix("-dirty").unwrap_or(commit);
        commit == "unknown" || hash.len() == 12 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[test]
fn wrong_arguments_are_one_line() {
    for (program, name) in programs() {
        for arguments in
            [&["--no-such-option"][..], &["--version=1"], &["no\nsuch\n\ncommand"], &["-"]]
        {
            let (code, printed, errors) = run(&program, arguments);
            assert_eq!(
                (code, printed.as_str(), errors.lines().count()),
                (2, "", 1),
                "{name} {arguments:?}: {errors}"
            );
            assert!(
                errors.starts_with("error: ") && errors.ends_with(" (see --help)\n"),
                "{name} {arguments:?}: {errors}"
            );
        }
    }
}

#[test]
fn a_reader_that_has_gone_away_is_no_failure() {
    for (program, name) in programs() {
        let mut command = Command::new(&program);
        let mut child =
            command.arg("--help").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!((child.wait().unwrap().code(), errors.as_str()), (Some(0), ""), "{name}");
    }
}
