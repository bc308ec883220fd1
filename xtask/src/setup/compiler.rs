//! The compiler that this workspace is built with.

use crate::command::output;
use anyhow::{Context, Result};
use std::{path::PathBuf, process::Command};

/// The compiler's versions and its folder. The source of `core` and the BPF linker must match them
/// exactly.
pub struct Compiler {
    /// The compiler's release, such as `1.95.0`.
    pub release: String,
    /// The machine that the compiler runs on, such as `x86_64-unknown-linux-gnu`.
    pub host: String,
    /// The major version of the compiler's LLVM, such as `22`.
    pub llvm_major: String,
    /// The folder that the compiler is installed in.
    pub sysroot: PathBuf,
}

impl Compiler {
    /// Asks `rustc`.
    pub fn find() -> Result<Self> {
        let version = output(Command::new("rustc").arg("-vV"))?;
        let field = |name: &str| {
            version.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).with_context(
                || format!("`rustc -vV` has no line `{name}`: it must be rustup's Rust"),
            )
        };
        let llvm = field("LLVM version:")?;
        Ok(Self {
            release: field("release:")?.to_owned(),
            host: field("host:")?.to_owned(),
            llvm_major: llvm.split('.').next().unwrap_or(llvm).to_owned(),
            sysroot: PathBuf::from(
                output(Command::new("rustc").args(["--print", "sysroot"]))?.trim(),
            ),
        })
    }
}
