//! `cargo xtask p4 doctor` with fake tools, which tell what real ones do.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

const COMPILER: (&str, &str) = (
    "p4c-bm2-ss",
    "echo p4c-bm2-ss >&2; echo 'Version 1.2.5.15 (SHA: 5b948b037a BUILD: Release)' >&2",
);
const TOFINOS: [(&str, &str); 2] = [
    ("p4c-barefoot", "echo p4c-barefoot >&2; echo 'Version 9.13.4' >&2"),
    ("bfas", "echo \"usage: $0 [-l:Mo:gqtvh] file...\""),
];
const SWITCH: (&str, &str) = (
    "simple_switch",
    "case $1 in --version) echo 1.15.0-9f76fe9b ;; \
     --help) echo '  --thrift-port arg'; echo '  --notifications-addr arg' ;; esac",
);

/// Writes these programs into a folder.
fn install(folder: &Path, tools: &[(&str, &str)]) {
    fs::create_dir_all(folder).unwrap();
    for (name, script) in tools {
        let file = folder.join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// Whether the doctor succeeds with this PATH and this SDE, and what it says.
fn doctor(path: &Path, sde: Option<&Path>) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["p4", "doctor"]).env("PATH", path).env_remove("SDE").env_remove("SDE_INSTALL");
    if let Some(sde) = sde {
        command.env("SDE", sde);
    }
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// The rest of the line that begins with this word, without the folder of the tools.
fn line(text: &str, folder: &Path, start: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(start));
    let line = line.unwrap_or_else(|| panic!("no {start:?} in {text}")).trim();
    line.replace(&format!("{}", folder.display()), "F")
}

#[test]
fn without_any_tool_it_says_where_to_begin() {
    let folder = TempDir::new().unwrap();
    let (succeeds, text) = doctor(folder.path(), None);
    assert!(succeeds, "{text}");
    let line = |start: &str| line(&text, folder.path(), start);
    for tool in ["p4c-bm2-ss", "simple_switch", "p4c-barefoot", "bfas", "tofino_test_harness"] {
        assert_eq!(line(tool), "not on the PATH");
    }
    assert_eq!(line("SDE"), "neither $SDE nor $SDE_INSTALL is set");
    assert_eq!(line("cargo xtask p4 build"), "no bfas, no p4c-barefoot, no p4c-bm2-ss on the PATH");
    assert_eq!(line("test tofino_model"), "no tofino_test_harness on the PATH");
    let next = text.lines().last().unwrap();
    assert!(next.starts_with("next: install p4c and bmv2,"), "{text}");
}

#[test]
fn open_tools_enable_all_but_the_chips_model() {
    let folder = TempDir::new().unwrap();
    install(folder.path(), &[&[COMPILER, SWITCH], &TOFINOS[..]].concat());
    let (succeeds, text) = doctor(folder.path(), None);
    assert!(succeeds, "{text}");
    let line = |start: &str| line(&text, folder.path(), start);
    assert_eq!(line("p4c-bm2-ss"), "1.2.5.15 (SHA: 5b948b037a BUILD: Release), F/p4c-bm2-ss");
    assert_eq!(line("simple_switch"), "1.15.0-9f76fe9b, F/simple_switch");
    assert_eq!(line("p4c-barefoot"), "9.13.4, F/p4c-barefoot");
    assert_eq!(line("bfas"), "runs, F/bfas");
    // Release 1.2.5.15 is before p4lang/p4c#5753.
    assert!(line("note:").contains("loses every `select`"), "{text}");
    for use_ in ["check", "build", "test"] {
        assert_eq!(line(&format!("cargo xtask p4 {use_}")), "can run");
    }
    assert_eq!(line("cargo xtask run --data-plane bmv2"), "can run");
}

#[test]
fn an_sde_that_is_not_on_the_path_is_the_next_step() {
    let (folder, sde) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    install(folder.path(), &[COMPILER]);
    install(&sde.path().join("install/bin"), &[&TOFINOS[..], &[("bf_switchd", "")]].concat());
    fs::write(sde.path().join("bf-sde-9.13.4.manifest"), "").unwrap();
    let (succeeds, text) = doctor(folder.path(), Some(sde.path()));
    assert!(succeeds, "{text}");
    let line = |start: &str| line(&text, sde.path(), start);
    assert_eq!(line("SDE"), "9.13.4, F/install, with bf_switchd, p4c-barefoot, bfas");
    assert_eq!(
        line("cargo xtask p4 check"),
        "can run; skips p4/tofino.p4, p4/tofino_256.p4, p4/tofino_combiner.p4"
    );
    assert_eq!(line("next:"), "put F/install/bin on the PATH");
}

/// A library is missing: the dynamic loader ends the program with 127.
#[test]
fn a_tool_that_does_not_run_is_an_error() {
    let folder = TempDir::new().unwrap();
    let error = "simple_switch: error while loading shared libraries: libthrift.so: cannot open";
    install(
        folder.path(),
        &[COMPILER, ("simple_switch", &format!("echo '{error}' >&2; exit 127"))],
    );
    let (succeeds, text) = doctor(folder.path(), None);
    assert!(!succeeds, "{text}");
    let line = |start: &str| line(&text, folder.path(), start);
    assert_eq!(line("simple_switch"), format!("F/simple_switch: does not run: {error}"));
    let error = "install simple_switch again: what is on the PATH does not run";
    assert_eq!(text.lines().last(), Some(&*format!("error: {error}")), "{text}");
}
