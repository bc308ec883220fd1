//! QEMU of Debian 13, the same on every machine: the first that emulates igb is QEMU 8.
//!
//! QEMU is unpacked below the target folder with all libraries that it needs, and started by their
//! loader, so the system stays unchanged.

use anyhow::{Result, ensure};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::image::Kernel;
use crate::setup::debian::Apt;

const SUITE: &str = "trixie";
const PACKAGE: &str = "qemu-system-x86";

/// QEMU, unpacked.
pub struct Qemu(PathBuf);

impl Qemu {
    /// Downloads QEMU into a folder below `folder`, unless it is already there.
    pub fn fetch(folder: &Path) -> Result<Self> {
        let qemu = Self(folder.join("qemu"));
        if qemu.0.is_dir() {
            return Ok(qemu);
        }
        eprintln!("matrix: downloading Debian's QEMU into {}", qemu.0.display());
        // The folder has another name until it is complete.
        let partial = Self(folder.join("qemu.partial"));
        if partial.0.exists() {
            fs::remove_dir_all(&partial.0)?;
        }
        Apt::new(&folder.join("apt-qemu"), &[SUITE])?.unpack_with_all(PACKAGE, &partial.0)?;
        ensure!(partial.program().is_file(), "no {}", partial.program().display());
        fs::rename(&partial.0, &qemu.0)?;
        Ok(qemu)
    }

    fn program(&self) -> PathBuf {
        self.0.join("usr/bin/qemu-system-x86_64")
    }
}

/// A virtual machine: QEMU, the kernel that it boots, and the initial file system.
pub struct Machine<'a> {
    pub qemu: &'a Qemu,
    pub kernel: &'a Kernel,
    pub initramfs: &'a Path,
}

impl Machine<'_> {
    /// The command line that boots the machine with the console on standard output; `options` are
    /// added to the kernel's.
    pub fn command_line(&self, options: &str) -> Result<Vec<OsString>> {
        let usr = self.qemu.0.join("usr");
        let mut line: Vec<OsString> = vec![usr.join("lib64/ld-linux-x86-64.so.2").into()];
        line.extend(["--library-path".into(), usr.join("lib/x86_64-linux-gnu").into()]);
        line.push(self.qemu.program().into());
        for data in ["share/qemu", "share/seabios"] {
            line.extend(["-L".into(), usr.join(data).into()]);
        }
        // Not with KVM: QEMU emulates the processor, which works everywhere and behaves the same on
        // every machine. In one thread: with a thread for each of two processors, one boot in 50
        // hung, because the second processor's timer never fired.
        let processor = ["-accel", "tcg,thread=single", "-cpu", "max", "-machine", "q35"];
        let console = ["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"];
        line.extend([processor, console].concat().into_iter().map(OsString::from));
        line.extend(["-m", "2G", "-append"].map(OsString::from));
        line.push(
            format!("console=ttyS0 quiet loglevel=1 panic=-1 no_timer_check {options}").into(),
        );
        line.extend(["-kernel".into(), self.kernel.image()?.into()]);
        line.extend(["-initrd".into(), self.initramfs.into()]);
        Ok(line)
    }
}
