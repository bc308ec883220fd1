//! `cargo xtask kernels`: the BPF programs, the daemon and a job on kernels other than this
//! machine's, in QEMU.
//!
//! Without KVM: QEMU interprets the processor, which works everywhere and shows the same to every
//! machine.

mod image;
mod initramfs;
mod machine;

use crate::{
    cargo,
    setup::{self, packages},
};
use anyhow::{Context, Result, ensure};
use std::{
    env::consts::ARCH,
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    time::Instant,
};
use switchml_cli::say;

use image::Kernel;
use machine::Outcome;

/// The kernel of Debian 12, that of Debian 13, and the newest that Debian has.
const KERNELS: [&str; 3] = ["6.1", "6.12", image::NEWEST];

/// What this needs beside the build's packages.
const NEEDED: [(&str, &str); 6] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("strip", "binutils"),
    ("xz", "xz-utils"),
];

/// The tests that run on every kernel: of which target, and what their names contain. The daemon at
/// both hooks: attached, removed, taken over, found by `detach`, with three capabilities; and an
/// all-reduce of two ranks.
const TESTS: [(&str, &[&str]); 2] =
    [("xdp", &["native::", "bundles::"]), ("end_to_end", &["two_workers"])];

/// Tests of the other packages whose binaries are started; cargo builds those along with them.
const OF_BINARIES: [&str; 2] = ["impairment", "bad_input"];

/// Options of `cargo xtask kernels`.
#[derive(clap::Args)]
pub struct Kernels {
    /// Only this kernel of Debian's, such as 6.12, or `newest`; give it once for each
    #[arg(long = "kernel", value_name = "VERSION")]
    kernels: Vec<String>,
}

impl Kernels {
    /// Boots the kernels one after the other, and says in a table what works.
    ///
    /// # Errors
    ///
    /// The first step that failed; or which kernels failed, once all were tried.
    pub fn run(&self) -> Result<()> {
        ensure!(
            ARCH == "x86_64",
            "Debian's cloud kernels are tried on x86_64 alone, and this machine is {ARCH}"
        );
        setup::run()?;
        packages::ensure(&NEEDED, "running other kernels needs")?;
        let folder = cargo::target_folder()?.join("kernels");
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let selected: Vec<&str> = match &self.kernels[..] {
            [] => KERNELS.to_vec(),
            kernels => kernels.iter().map(String::as_str).collect(),
        };
        let kernels = image::find(&folder, &selected)?;
        let tests = build_tests()?;
        let mut rows = Vec::new();
        for kernel in &kernels {
            eprintln!("kernels: Linux {}", kernel.release);
            let begin = Instant::now();
            let initramfs = initramfs::make(kernel, &tests, &TESTS)?;
            let outcome = machine::boot(kernel, &initramfs)?;
            rows.push((kernel, outcome, begin.elapsed().as_secs()));
        }
        conclude(&rows)
    }
}

fn conclude(rows: &[(&Kernel, Outcome, u64)]) -> Result<()> {
    say!("\n| Linux | native XDP | bundles at tc ingress | seconds |\n| --- | --- | --- | --- |");
    let mut failed = Vec::new();
    for (kernel, outcome, seconds) in rows {
        say!(
            "| {} | {} | {} | {seconds} |",
            kernel.release,
            outcome.of("native::"),
            outcome.of("bundles::")
        );
        if let Some(problem) = outcome.problem() {
            failed.push(format!(
                "{}: {problem}; see {}",
                kernel.release,
                kernel.console().display()
            ));
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

/// Builds the tests and the binaries that they start, as `cargo xtask test` does; the path of each.
fn build_tests() -> Result<Vec<(String, PathBuf)>> {
    let mut command = cargo::command("test")?;
    command.args(["--release", "--no-run", "--message-format=json-render-diagnostics"]);
    let targets = TESTS.iter().map(|(target, _)| target).chain(&OF_BINARIES);
    command.args(targets.flat_map(|target| ["--test", target]));
    let output = command.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    ensure!(
        output.status.success(),
        "the tests could not be built; the compiler's messages are above"
    );
    let text = String::from_utf8(output.stdout).context("cargo writes no text")?;
    let messages =
        text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let tests: Vec<_> = messages
        .filter_map(|message| {
            Some((
                message["target"]["name"].as_str()?.to_owned(),
                message["executable"].as_str()?.into(),
            ))
        })
        .filter(|(name, _)| TESTS.iter().any(|(target, _)| target == name))
        .collect();
    ensure!(tests.len() == TESTS.len(), "cargo built {} tests of {}", tests.len(), TESTS.len());
    Ok(tests)
}

/// Runs a command to its end; what it wrote.
fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {program}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} failed ({}): {}", output.status, stderr.trim());
    String::from_utf8(output.stdout).with_context(|| format!("{program} writes no text"))
}
