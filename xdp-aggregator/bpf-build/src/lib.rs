//! For build scripts. Builds a BPF program of this workspace into `OUT_DIR/<package>`, to be
//! embedded with `aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/<package>"))`.
//!
//! Not with aya-build: it leaves out `-Z build-std`, which the BPF target needs, unless the
//! compiler is a nightly one or `RUSTC_BOOTSTRAP` is set for the whole build.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

const TARGET: &str = "bpfel-unknown-none";
const PROFILE: &str = "bpf";

/// Files that every program is built from, relative to the workspace.
const COMMON_INPUTS: [&str; 3] = ["Cargo.toml", "Cargo.lock", ".cargo/config.toml"];

/// Builds the binary of `package` with its feature `bpf`; and once more for each of `variants`,
/// with that feature besides, into `OUT_DIR/<package>-<variant>`. `inputs` are the folders of the
/// workspace's crates that it is made of, relative to the workspace; the build script runs again
/// when something in them changes.
///
/// Cargo shows why it failed, if it did.
pub fn build(package: &str, variants: &[&str], inputs: &[&str]) -> ExitCode {
    let workspace = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let sources =
        inputs.iter().flat_map(|folder| [format!("{folder}/src"), format!("{folder}/Cargo.toml")]);
    for input in sources.chain(COMMON_INPUTS.map(str::to_owned)) {
        println!("cargo::rerun-if-changed={}", workspace.join(input).display());
    }
    let usual = compile(package, "bpf", package);
    let with = |variant: &&str| {
        compile(package, &format!("bpf,{variant}"), &format!("{package}-{variant}"))
    };
    match usual.and_then(|()| variants.iter().try_for_each(with)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            println!("cargo::error={reason}");
            ExitCode::FAILURE
        }
    }
}

fn compile(package: &str, features: &str, name: &str) -> Result<(), String> {
    let out = PathBuf::from(variable("OUT_DIR")?);
    check_tools()?;
    // A separate target folder, because the outer cargo holds the lock of the usual one. It is next
    // to the folder `build`, so that all programs share their dependencies.
    let profile = out.ancestors().nth(3).ok_or("OUT_DIR is in no target folder")?;
    let target_dir = profile.join("bpf-target");
    let status = Command::new(variable("CARGO")?)
        .args(["build", "--package", package, "--features", features])
        .args(["--profile", PROFILE, "--target", TARGET])
        // The target has no precompiled core; building it is an unstable option, which the variable
        // allows on stable.
        .args(["-Z", "build-std=core"])
        .env("RUSTC_BOOTSTRAP", "1")
        .arg("--target-dir")
        .arg(&target_dir)
        .args(remaps()?)
        // The outer build's flags and wrappers (clippy, sanitizers, target-cpu) are for the host.
        // Without them .cargo/config.toml's flags for the BPF target hold.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .status()
        .map_err(|e| format!("cannot start cargo for the BPF program: {e}"))?;
    if !status.success() {
        return Err(format!("building the BPF program failed ({status}); its messages are below"));
    }
    let object = target_dir.join(TARGET).join(PROFILE).join(package);
    let copy = out.join(name);
    fs::copy(&object, &copy)
        .map_err(|e| format!("cannot copy {} to {}: {e}", object.display(), copy.display()))?;
    Ok(())
}

/// The outer build's names for folders of this machine, so that the program's BTF has them, too.
/// Cargo adds such flags to those of .cargo/config.toml.
fn remaps() -> Result<Vec<String>, String> {
    let flags = variable("CARGO_ENCODED_RUSTFLAGS")?;
    let remaps = flags.split('\x1f').filter(|flag| flag.starts_with("--remap-path-prefix="));
    let quoted: Vec<_> = remaps.map(|flag| format!("{flag:?}")).collect();
    if quoted.is_empty() {
        return Ok(Vec::new());
    }
    let flags = format!("target.{TARGET}.rustflags=[{}]", quoted.join(","));
    Ok(vec!["--config".to_owned(), flags])
}

/// A fresh Rust installation lacks the BPF linker and the source of `core`.
fn check_tools() -> Result<(), String> {
    const HINT: &str = "run `cargo xtask setup`";
    let works = |command: &mut Command| command.output().is_ok_and(|o| o.status.success());
    if !works(Command::new("bpf-linker").arg("--version")) {
        return Err(format!("bpf-linker is missing or does not start: {HINT}"));
    }
    let sysroot = Command::new(variable("RUSTC")?)
        .args(["--print", "sysroot"])
        .output()
        .map_err(|e| format!("cannot ask rustc for its sysroot: {e}"))?;
    let sysroot = String::from_utf8_lossy(&sysroot.stdout);
    let core = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core");
    if !core.is_dir() {
        return Err(format!("rust-src is missing ({} not found): {HINT}", core.display()));
    }
    Ok(())
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|e| format!("{name}: {e}; cargo sets it for build scripts"))
}
