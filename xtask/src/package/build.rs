//! The build of the packages' content: in a separate target folder, for a target by name, and
//! without this machine's folders in the output.

use crate::command::output;
use crate::{cargo, setup::Compiler};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::{env, process::Command};

/// The target that this machine builds without a cross compiler.
pub const AMD64: &str = "x86_64-unknown-linux-gnu";

/// The target that needs the cross compiler which [`super::arm64`] installs.
pub const ARM64: &str = "aarch64-unknown-linux-gnu";

/// The emulator of ARM programs, which find their loader and libraries below this folder.
pub const EMULATOR: [&str; 3] = ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"];

/// The target folder of these builds. Their flags differ from those of other builds, which would
/// otherwise be rebuilt after each package.
pub fn target_folder() -> Result<PathBuf> {
    Ok(cargo::target_folder()?.join("package-build"))
}

/// The folder with the release's binaries for a target.
pub fn folder(target: &str) -> Result<PathBuf> {
    Ok(target_folder()?.join(target).join("release"))
}

/// A cargo command, such as `build`, that makes a release for a target.
pub fn command(subcommand: &str, target: &str) -> Result<Command> {
    let mut command = command_in(&target_folder()?, subcommand, target)?;
    if target == ARM64 {
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
    }
    Ok(command)
}

/// A cargo command, such as `zigbuild`, that makes a release for a target in a target folder.
/// Zig's names of targets may end with a version of glibc.
pub fn command_in(folder: &Path, subcommand: &str, target: &str) -> Result<Command> {
    let mut command = cargo::command_in(subcommand, folder);
    command.args(["--release", "--locked", "--target", target]);
    let mut flags = set_environment(&mut command)?;
    if target.ends_with("-musl") {
        // Zig's start files and C library, not Rust's own, which not every Rust has.
        flags.push("-Clink-self-contained=no".to_owned());
        command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    }
    with_std(&mut command, target)?;
    Ok(command)
}

/// The compiler's name of one of Zig's targets.
pub fn target_of(zigs: &str) -> &str {
    zigs.split('.').next().unwrap_or(zigs)
}

/// Builds the standard library, too, for a target for which this Rust has none. Its source is
/// there, because the BPF programs need the source of `core`.
pub fn with_std(command: &mut Command, target: &str) -> Result<()> {
    let library = Compiler::find()?.sysroot.join("lib/rustlib").join(target_of(target)).join("lib");
    // Rust's own musl would be another one than that which the flags above choose.
    if target.ends_with("-musl") || !library.is_dir() {
        command.args(["-Z", "build-std=std,panic_abort"]).env("RUSTC_BOOTSTRAP", "1");
    }
    Ok(())
}

/// Sets flags that replace folders of this machine in the compilers' output. Returns the flags for
/// Rust. bpf-build does the same for BPF programs.
pub fn set_environment(command: &mut Command) -> Result<Vec<String>> {
    let mut folders = vec![(cargo::workspace().canonicalize()?, "/switchml")];
    // The target folder may be outside the workspace.
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
        // Packages have no debug information; it depends on folders, and the linker's build ID
        // depends on it.
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("SOURCE_DATE_EPOCH", commit_time()?);
    Ok(rust)
}

/// The time of the commit, in seconds since 1970, which the output gets as its time.
pub fn commit_time() -> Result<String> {
    let mut git = Command::new("git");
    git.current_dir(cargo::workspace()).args(["log", "-1", "--format=%ct"]);
    Ok(output(&mut git)?.trim().to_owned())
}
