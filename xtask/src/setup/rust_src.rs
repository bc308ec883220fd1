//! The source of `core`, which has no precompiled form for the BPF target.

use super::{announce, compiler::Compiler, debian, or_by_hand};
use crate::command::output;
use anyhow::{Context, Result, anyhow};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Longer than rustup needs for its 4 MB on a slow line; without a network it may wait forever.
const RUSTUP_SECONDS: &str = "60";

/// Whether the source of the compiler's release is there.
pub fn is_there(compiler: &Compiler) -> bool {
    Source::of(compiler).is_there()
}

/// Installs the source of exactly the compiler's release, from rustup or otherwise from Debian.
pub fn ensure(compiler: &Compiler) -> Result<()> {
    if is_there(compiler) {
        return Ok(());
    }
    let source = Source::of(compiler);
    announce(&format!(
        "rust-src {}: core is built from source for BPF; asking rustup",
        compiler.release
    ));
    source.remove_other_release()?;
    let rustup = match fetch_from_rustup() {
        Ok(()) if source.is_there() => return Ok(()),
        // rustup assumes so, but someone removed the files.
        Ok(()) => anyhow!("rustup says that it is there, but it is not"),
        Err(error) => error,
    };
    announce(&format!(
        "rust-src {}: {rustup:#}; fetching Debian's package (45 MB)",
        compiler.release
    ));
    let by_hand = format!(
        "`rustup component add rust-src`, or unpack a package `rust-src` of that version and link \
         its usr/src/rustc-{} as {}",
        compiler.release,
        source.link().display()
    );
    or_by_hand(
        source.fetch_from_debian(),
        &format!("getting rust-src {}", compiler.release),
        &by_hand,
    )
}

/// The place in the toolchain's folder where cargo looks for sources.
struct Source {
    /// `<sysroot>/lib/rustlib/src`
    folder: PathBuf,
    release: String,
}

impl Source {
    fn of(compiler: &Compiler) -> Self {
        Self { folder: compiler.sysroot.join("lib/rustlib/src"), release: compiler.release.clone() }
    }

    /// The path that cargo reads: rustup's folder, which rustup updates together with the compiler,
    /// or our link to an unpacked folder whose name contains its release.
    fn link(&self) -> PathBuf {
        self.folder.join("rust")
    }

    fn unpacked_name(&self) -> String {
        format!("rustc-{}", self.release)
    }

    fn is_there(&self) -> bool {
        let right_release = match fs::read_link(self.link()) {
            Ok(target) => target.ends_with(self.unpacked_name()),
            Err(_) => true,
        };
        right_release && self.link().join("library/core/src/lib.rs").is_file()
    }

    /// Removes our link for an earlier compiler in the same folder.
    fn remove_other_release(&self) -> Result<()> {
        let Ok(target) = fs::read_link(self.link()) else { return Ok(()) };
        fs::remove_file(self.link())
            .with_context(|| format!("cannot remove {}", self.link().display()))?;
        // A relative target is ours and is next to the link; any other target belongs to someone
        // else.
        if target.is_relative() && target.components().count() == 1 {
            remove_folder(&self.folder.join(target))?;
        }
        Ok(())
    }

    /// Downloads, verifies (apt checks Debian's signature) and unpacks Debian's package next to the
    /// link, and then creates the link.
    fn fetch_from_debian(&self) -> Result<()> {
        let work = self.folder.join("unpacking");
        remove_folder(&work)?;
        fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
        let result = self.unpack_in(&work);
        remove_folder(&work)?;
        result
    }

    fn unpack_in(&self, work: &Path) -> Result<()> {
        let package = debian::download("rust-src", &self.release, work)?;
        let name = self.unpacked_name();
        output(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(work))?;
        let target = self.folder.join(&name);
        remove_folder(&target)?;
        fs::create_dir(&target)
            .and_then(|()| {
                let library = work.join("usr/src").join(&name).join("library");
                fs::rename(library, target.join("library"))
            })
            .with_context(|| format!("cannot move the source to {}", target.display()))?;
        symlink(&name, self.link())
            .with_context(|| format!("cannot create {}", self.link().display()))
    }
}

fn fetch_from_rustup() -> Result<()> {
    let mut rustup = Command::new("timeout");
    rustup.args([RUSTUP_SECONDS, "rustup", "--quiet", "component", "add", "rust-src"]);
    output(rustup.env("RUSTUP_MAX_RETRIES", "0")).map(drop).context("rustup cannot get it")
}

fn remove_folder(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}
