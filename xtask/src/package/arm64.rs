//! Packages for 64-bit ARM, built on x86-64, and tried out by QEMU.

use super::{Packed, build, check::lint};
use crate::command::{output, succeed};
use crate::setup::packages::ensure as install;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use switchml_cli::say;

/// The cross compiler, with its C library and binutils; and an emulator for ARM programs, which
/// print their own manual pages.
const NEEDED: [(&str, &str); 3] = [
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    ("/usr/aarch64-linux-gnu/include/stdio.h", "libc6-dev-arm64-cross"),
    (build::EMULATOR[0], "qemu-user-static"),
];

/// Installs the emulator of ARM programs, with the libraries that they need.
pub fn install_emulator() -> Result<()> {
    install(&NEEDED, "programs for ARM run with")
}

/// The ends of the names of functions that turn elements into lanes and back.
const LOOPS: [&str; 5] = [
    "numerics::codec::Codec>::exponent>:",
    "numerics::codec::Codec>::encode>:",
    "numerics::codec::Codec>::decode>:",
    "numerics::rotated::encode>:",
    "numerics::rotated::decode>:",
];

/// The least number of NEON instructions in a loop. Loads and stores of NEON registers, which a
/// plain copy has, do not count.
const LEAST: usize = 8;

/// Builds the content of the packages.
pub fn compile() -> Result<Packed> {
    install(&NEEDED, "packages for ARM are built with")?;
    super::compile(build::ARM64)
}

/// Fails unless the packages are clean, their programs start, and results have the same bits as
/// here and are computed with NEON.
pub fn check(packed: &Packed, packages: &[PathBuf]) -> Result<()> {
    install(&[("lintian", "lintian")], "check packages")?;
    lint(packages)?;
    packages.iter().try_for_each(|package| wants_nothing_of_here(package))?;
    for program in ["switchml-worker", "switchml-aggregator"] {
        let mut start = packed.start(program);
        say!("{} on ARM", output(start.arg("--version"))?.lines().next().unwrap_or_default());
    }
    uses_neon(packed)?;
    let [here, there] = [build::AMD64, build::ARM64].map(bits);
    let (here, there) = (here?, there?);
    ensure!(here == there, "other bits than here:\n{here}\nARM:\n{there}");
    say!("{} codecs give the same bits on ARM", here.lines().count());
    let mut tests = of_core("test", build::ARM64)?;
    succeed(tests.args(["--test", "suite", "--", "numerics::", "worked_example::"]))
}

/// Fails if a package depends on a package of the cross compiler's libraries.
fn wants_nothing_of_here(package: &Path) -> Result<()> {
    let wanted = output(Command::new("dpkg-deb").arg("--field").arg(package).arg("Depends"))?;
    let is_clean = !wanted.contains("-cross") && !wanted.contains(':');
    ensure!(is_clean, "{} depends on {}", package.display(), wanted.trim());
    Ok(())
}

/// The output on a target of the example that prints the codecs' bits.
fn bits(target: &str) -> Result<String> {
    output(of_core("run", target)?.args(["--quiet", "--example", "codec_bits"]))
}

fn of_core(subcommand: &str, target: &str) -> Result<Command> {
    let mut command = build::command(subcommand, target)?;
    command.args(["-p", "switchml-worker-core"]);
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", build::EMULATOR.join(" "));
    Ok(command)
}

/// Every 64-bit ARM has NEON, so the compiler uses it by default, where it can vectorize.
fn uses_neon(packed: &Packed) -> Result<()> {
    let mut objdump = Command::new("aarch64-linux-gnu-objdump");
    objdump.args(["--disassemble", "--demangle", "--no-show-raw-insn"]);
    let code = output(objdump.arg(packed.folder.join("switchml-worker")))?;
    for name in LOOPS {
        let function = code
            .split("\n\n")
            .find(|function| function.lines().next().is_some_and(|line| line.ends_with(name)))
            .with_context(|| format!("the worker has no {name}"))?;
        let count = function.lines().filter(|line| is_neon(line)).count();
        ensure!(count >= LEAST, "{name} has {count} instructions of NEON, not {LEAST} or more");
        say!("{count} instructions of NEON in {}", name.trim_end_matches(">:"));
    }
    Ok(())
}

/// Whether a line of objdump has a NEON instruction on vectors, such as `rev32 v0.16b, v0.16b`, but
/// not `ldr q0, [x1]`.
fn is_neon(line: &str) -> bool {
    let operands = line.split('\t').nth(2).unwrap_or_default();
    operands.starts_with('v') && operands.contains('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neon_is_what_works_on_vectors() {
        for (line, expected) in [
            ("  8a0:\trev32\tv0.16b, v0.16b", true),
            ("  8a4:\tfcvtzs\tv1.2d, v2.2d", true),
            ("  8a8:\tldr\tq0, [x1]", false),
            ("  8ac:\tfmul\td0, d1, d2", false),
            ("  8b0:\tret", false),
        ] {
            assert_eq!(is_neon(line), expected, "{line}");
        }
    }
}
