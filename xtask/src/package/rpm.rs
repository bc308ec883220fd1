//! RPMs, which cargo-generate-rpm makes from the metadata in the crates' Cargo.toml. They need at
//! least the C library version of the machine that built them.

use super::{Packed, build, files, layout};
use crate::cargo;
use crate::command::{output, succeed};
use crate::setup::{cargo_tool::GENERATE_RPM, packages};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use switchml_cli::say;

/// Crates with a program to pack, and the program's name.
const PROGRAMS: [(&str, &str); 2] =
    [("userspace", "switchml-aggregator"), ("worker-lib/cli", "switchml-worker")];

/// Files of each package that people look for.
const SHIPPED: [(&str, &[&str]); 2] = [
    (
        "switchml-aggregator",
        &[
            "/usr/bin/switchml-aggregator",
            "/usr/lib/systemd/system/switchml-aggregator.service",
            "/usr/lib/sysusers.d/switchml-aggregator.conf",
            "/usr/lib/tmpfiles.d/switchml-aggregator.conf",
            "/etc/switchml/aggregator.toml",
            "/usr/share/man/man8/switchml-aggregator.8",
            "/usr/share/man/man8/switchml-aggregator-status.8",
            "/usr/share/man/man5/switchml-aggregator.toml.5",
        ],
    ),
    ("switchml-worker", &["/usr/bin/switchml-worker", "/usr/share/man/man1/switchml-worker.1"]),
];

/// The files of the daemon's package that are not generated, with the paths where they are
/// installed.
const FILES: [(&str, &str); 3] = [
    ("service", "usr/lib/systemd/system/switchml-aggregator.service"),
    ("sysusers", "usr/lib/sysusers.d/switchml-aggregator.conf"),
    ("tmpfiles", "usr/lib/tmpfiles.d/switchml-aggregator.conf"),
];

/// Makes the RPMs of the programs in the folder.
pub fn make(packed: &Packed, folder: &Path) -> Result<()> {
    let tool = GENERATE_RPM.ensure(&cargo::target_folder()?)?;
    for (package, program) in PROGRAMS {
        lay_out(packed, program, &packed.folder.join("rpm").join(program))?;
        let time = build::commit_time()?;
        let mut rpm = Command::new(&tool);
        rpm.args(["generate-rpm", "--package", package, "--target", build::AMD64]);
        rpm.args(["--source-date", &time]).arg("--target-dir").arg(build::target_folder()?);
        succeed(rpm.arg("--output").arg(folder).current_dir(cargo::workspace()))?;
    }
    Ok(())
}

/// Lays out a program in a new folder, as it is installed.
fn lay_out(packed: &Packed, program: &str, root: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(root);
    let (bin, pages) = (root.join("usr/bin"), packed.folder.join("rpm/pages"));
    for folder in [&bin, &pages] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let mut strip = Command::new("strip");
    succeed(strip.arg("-o").arg(bin.join(program)).arg(packed.folder.join(program)))?;
    succeed(packed.start(program).arg("pages").arg(&pages))?;
    let share = root.join("usr/share");
    for page in files(&pages)? {
        let name = page.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let place = match name.rsplit_once('.') {
            Some((_, "bash")) => format!("bash-completion/completions/{program}"),
            Some((_, "fish")) => format!("fish/vendor_completions.d/{name}"),
            Some((_, section)) => format!("man/man{section}/{name}"),
            None => format!("zsh/site-functions/{name}"),
        };
        layout::copy(&page, &share.join(place))?;
    }
    fs::remove_dir_all(&pages).context("cannot clean up")?;
    if program == "switchml-aggregator" {
        for (kind, place) in FILES {
            let from = format!("userspace/deploy/debian/{program}.{kind}");
            layout::copy(&cargo::workspace().join(from), &root.join(place))?;
        }
    }
    Ok(())
}

/// Fails unless the RPMs in the folder have the expected files.
pub fn check(folder: &Path) -> Result<()> {
    packages::ensure(&[("rpm", "rpm")], "look into RPMs")?;
    for (name, expected) in SHIPPED {
        let is_it = |file: &&PathBuf| {
            let file = file.file_name().unwrap_or_default().to_string_lossy();
            file.starts_with(name) && file.ends_with(".rpm")
        };
        let all = files(folder)?;
        let package = all.iter().find(is_it).with_context(|| format!("no RPM of {name}"))?;
        let listed = output(Command::new("rpm").args(["-qlp"]).arg(package))?;
        for file in expected {
            ensure!(listed.lines().any(|line| line == *file), "{name} has no {file}");
        }
    }
    say!("RPMs: complete");
    Ok(())
}
