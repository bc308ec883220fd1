//! How cargo builds what packages contain: in a target folder of its own, for a target by name, and
//! without this machine's folders in what comes out.

use super::text;
use crate::{cargo, setup::Compiler};
use anyhow::Result;
use std::{env, path::PathBuf, process::Command};

/// What this machine builds without a cross compiler.
pub const AMD64: &str = "x86_64-unknown-linux-gnu";

/// Needs a cross compiler, as [`super::arm64`] installs it.
pub const ARM64: &str = "aarch64-unknown-linux-gnu";

/// Runs programs of that, which find their loader and libraries below the folder.
pub const EMULATOR: [&str; 3] = ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"];

/// Where cargo puts all of this. Flags differ from those of other builds, which would otherwise be
/// built again after each package.
pub fn target_folder() -> Result<PathBuf> {
    Ok(cargo::target_folder()?.join("package-build"))
}

/// The folder with the release's binaries for a target.
pub fn folder(target: &str) -> Result<PathBuf> {
    Ok(target_folder()?.join(target).join("release"))
}

/// A command of cargo's, such as `build`, that makes a release for a target.
pub fn command(subcommand: &str, target: &str) -> Result<Command> {
    let mut command = cargo::command_in(subcommand, &target_folder()?);
    command.args(["--release", "--locked", "--target", target]);
    let mut flags = set_environment(&mut command)?;
    if target.ends_with("-musl") {
        // Zig's start files and C library, not Rust's own, which not every Rust has.
        flags.push("-Clink-self-contained=no".to_owned());
        command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    }
    if target == ARM64 {
        with_std(&mut command);
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
    }
    Ok(command)
}

/// Adds the standard library to what is built, for a target that this Rust has none for. The
/// source of it is there, because the BPF programs need that of `core`.
pub fn with_std(command: &mut Command) {
    command.args(["-Z", "build-std=std,panic_abort"]).env("RUSTC_BOOTSTRAP", "1");
}

/// Replaces folders of this machine in what compilers write, by flags; those for Rust. bpf-build
/// does so for BPF programs.
pub fn set_environment(command: &mut Command) -> Result<Vec<String>> {
    let mut folders = vec![(cargo::workspace().canonicalize()?, "/switchml")];
    // Whether below the workspace or not.
    folders.push((target_folder()?, "/target"));
    let home = |name, folder| {
        env::var_os(name).map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(folder)))
    };
    folders.extend(home("CARGO_HOME", ".cargo").map(|folder| (folder, "/cargo")));
    folders.push((Compiler::find()?.sysroot, "/rust"));
    let pairs: Vec<_> =
        folders.iter().map(|(folder, name)| format!("{}={name}", folder.display())).collect();
    let rust: Vec<_> = pairs.iter().map(|pair| format!("--remap-path-prefix={pair}")).collect();
    let c: Vec<_> = pairs.iter().map(|pair| format!("-ffile-prefix-map={pair}")).collect();
    command
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_ENCODED_RUSTFLAGS", rust.join("\x1f"))
        .env("CFLAGS", c.join(" "))
        // Packages have none; the linker's build ID depends on it, and it on folders.
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("SOURCE_DATE_EPOCH", commit_time()?);
    Ok(rust)
}

/// When the commit was made, in seconds since 1970: what is built says that it is as old.
pub fn commit_time() -> Result<String> {
    let mut git = Command::new("git");
    git.current_dir(cargo::workspace()).args(["log", "-1", "--format=%ct"]);
    Ok(text(&mut git)?.trim().to_owned())
}
