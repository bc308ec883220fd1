//! Machines in QEMU.

use anyhow::Result;
use std::ffi::OsString;
use std::path::Path;

use super::image::Kernel;
use crate::setup::unpacked::QEMU;

/// A virtual machine: QEMU, the kernel that it boots, and the initial file system.
pub struct Machine<'a> {
    /// The folder of [`QEMU`].
    pub qemu: &'a Path,
    pub kernel: &'a Kernel,
    pub initramfs: &'a Path,
}

impl Machine<'_> {
    /// The command line that boots the machine with the console on standard output; `options` are
    /// added to the kernel's.
    pub fn command_line(&self, options: &str) -> Result<Vec<OsString>> {
        let usr = self.qemu.join("usr");
        let mut line: Vec<OsString> = vec![usr.join("lib64/ld-linux-x86-64.so.2").into()];
        line.extend(["--library-path".into(), usr.join("lib/x86_64-linux-gnu").into()]);
        line.push(self.qemu.join(QEMU.program).into());
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
