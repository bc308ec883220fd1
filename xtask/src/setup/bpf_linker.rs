//! bpf-linker, built against the compiler's own LLVM, so that the two always speak the same
//! bitcode.

use super::{announce, compiler::Compiler, or_by_hand};
use crate::command::output;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use switchml_rack::tools;

pub const VERSION: &str = "0.13.0";

/// Whether the bpf-linker in `PATH` has the right version and the compiler's LLVM.
pub fn is_there(compiler: &Compiler) -> bool {
    llvm_library(&compiler.sysroot.join("lib")).is_ok_and(|llvm| matches(&llvm))
}

/// Installs bpf-linker into cargo's folder unless the one in `PATH` has the right version and the
/// compiler's LLVM.
pub fn ensure(compiler: &Compiler) -> Result<()> {
    let libraries = compiler.sysroot.join("lib");
    let llvm = llvm_library(&libraries)?;
    if matches(&llvm) {
        return Ok(());
    }
    announce(&format!(
        "bpf-linker {VERSION}: it links the BPF program; building it takes about a minute"
    ));
    let by_hand = format!(
        "link {} as lib/libLLVM.so in some folder, then LLVM_PREFIX=<that folder> cargo install \
         --locked bpf-linker --version {VERSION} --no-default-features --features llvm-{}",
        libraries.join(&llvm).display(),
        compiler.llvm_major
    );
    or_by_hand(install(compiler, &libraries, &llvm), "installing bpf-linker", &by_hand)?;
    ensure!(
        matches(&llvm),
        "bpf-linker {VERSION} was installed, but PATH leads to another one: put cargo's bin folder \
         first in PATH"
    );
    Ok(())
}

/// The file name of the compiler's shared LLVM, such as `libLLVM.so.22.1-rust-1.95.0-stable`.
fn llvm_library(folder: &Path) -> Result<String> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .find(|name| name.starts_with("libLLVM.so."))
        .with_context(|| {
            format!(
                "{} has no libLLVM.so.*: this compiler is not rustup's; install rustup's, or \
                 bpf-linker by hand",
                folder.display()
            )
        })
}

/// Whether the bpf-linker in `PATH` starts, has the wanted version, and is linked with the library
/// `llvm`, whose name contains the compiler's release.
fn matches(llvm: &str) -> bool {
    let Some(linker) = tools::on_path("bpf-linker") else { return false };
    // Cargo sets LD_LIBRARY_PATH to the compiler's libraries; the linker must find them without it.
    let version = output(Command::new(&linker).arg("--version").env_remove("LD_LIBRARY_PATH"));
    version.is_ok_and(|version| version.trim() == format!("bpf-linker {VERSION}"))
        && fs::read(&linker).is_ok_and(|binary| contains(&binary, llvm.as_bytes()))
}

fn install(compiler: &Compiler, libraries: &Path, llvm: &str) -> Result<()> {
    // The build searches for libLLVM.so, and bpf-linker remembers the folder where it was found. So
    // during the build there is a link in the folder where the library stays.
    let _link = TemporaryLink::create(libraries.join("libLLVM.so"), llvm)?;
    output(
        Command::new("cargo")
            .args(["install", "--locked", "--force", "--quiet", "bpf-linker", "--version", VERSION])
            .args(["--no-default-features", "--features", &format!("llvm-{}", compiler.llvm_major)])
            .env("LLVM_PREFIX", &compiler.sysroot)
            // The linker runs for a second in each build: optimizing it would take longer than it
            // saves.
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
            // Builds in cargo's own temporary folder, without flags for this workspace.
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("RUSTFLAGS")
            .current_dir("/"),
    )
    .map(drop)
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// A symbolic link that lives as long as this value.
struct TemporaryLink(PathBuf);

impl TemporaryLink {
    fn create(link: PathBuf, target: &str) -> Result<Self> {
        // Remove a link that an interrupted run left behind.
        if link.is_symlink() {
            fs::remove_file(&link).with_context(|| format!("cannot replace {}", link.display()))?;
        }
        symlink(target, &link).with_context(|| format!("cannot create {}", link.display()))?;
        Ok(Self(link))
    }
}

impl Drop for TemporaryLink {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
