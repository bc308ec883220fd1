//! System calls for a namespace's thread and its children.
#![allow(unsafe_code)]

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::{io, os::unix::process::CommandExt, process::Command};

/// Moves the calling thread, and the processes that it will start, into a new network namespace,
/// and into a new mount namespace with a `/sys` and a BPF file system that belong to it.
pub fn enter_new_namespace() -> io::Result<()> {
    // SAFETY: unsharing is unsafe only for the descriptor table (UnshareFlags::FILES), which stays
    // shared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::NEWNS) }?;
    // Later mounts must not show up in the mount namespace that this process came from.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    mount("rack", "/sys", "sysfs", MountFlags::empty(), None)?;
    mount("rack", "/sys/fs/bpf", "bpf", MountFlags::empty(), None)?;
    Ok(())
}

/// Makes the kernel kill the command's process when the thread that starts it ends, however that
/// comes about.
pub fn die_with_parent(command: &mut Command) {
    let parent = getpid();
    let ask = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died just before; then the signal would never come.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::NotConnected.into()) }
    };
    // SAFETY: between fork and exec `ask` makes two system calls; it takes no lock and does not
    // allocate.
    unsafe { command.pre_exec(ask) };
}
