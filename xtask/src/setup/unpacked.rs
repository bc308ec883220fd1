//! Programs in Debian's packages, unpacked below the target folder: the system stays unchanged.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::announce;
use super::debian::Apt;
use crate::command::output;

/// A package, and a program in it.
pub struct Unpacked {
    name: &'static str,
    suite: &'static str,
    package: &'static str,
    pub program: &'static str,
    /// Whether all that the package needs is unpacked with it.
    is_whole: bool,
}

/// Installing it would start it. The oldest suite with Prometheus has programs that run with every
/// later C library.
pub const PROMETHEUS: Unpacked = Unpacked {
    name: "prometheus",
    suite: "bookworm",
    package: "prometheus",
    program: "usr/bin/promtool",
    is_whole: false,
};

/// QEMU of Debian 13, the same on every machine: the first that emulates igb is QEMU 8. Its own
/// loader starts it.
pub const QEMU: Unpacked = Unpacked {
    name: "qemu",
    suite: "trixie",
    package: "qemu-system-x86",
    program: "usr/bin/qemu-system-x86_64",
    is_whole: true,
};

impl Unpacked {
    /// Its folder below this one, which is made if it is missing.
    pub fn ensure(&self, below: &Path) -> Result<PathBuf> {
        let Self { name, suite, package, program, is_whole } = self;
        let folder = below.join(name);
        if folder.is_dir() {
            return Ok(folder);
        }
        announce(&format!("downloading Debian's {package} into {}", folder.display()));
        // The folder has another name until it is complete.
        let partial = folder.with_extension("partial");
        if partial.exists() {
            fs::remove_dir_all(&partial)?;
        }
        let apt = Apt::new(&folder.with_extension("apt"), &[suite])?;
        if *is_whole {
            apt.unpack_with_all(package, &partial)?;
        } else {
            let file = apt.download(package)?;
            output(Command::new("dpkg-deb").arg("--extract").arg(&file).arg(&partial))?;
            fs::remove_file(file)?;
        }
        ensure!(partial.join(program).is_file(), "Debian's {package} has no {program}");
        fs::rename(&partial, &folder)?;
        Ok(folder)
    }
}
