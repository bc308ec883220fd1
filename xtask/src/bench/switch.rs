//! Processor time of the switch's program, from the kernel's statistics on BPF programs.

use std::os::fd::{FromRawFd, OwnedFd};
use std::{fs, io};

use anyhow::{Context, Result};

/// A command of `linux/bpf.h`. Aya has a function for it, but takes long to compile.
const BPF_ENABLE_STATS: u32 = 32;
const BPF_STATS_RUN_TIME: u32 = 0;

/// While this exists, the kernel measures how long BPF programs run; it ends at the latest with the
/// process. It costs some time in each run.
pub struct Clock {
    _held: OwnedFd,
}

impl Clock {
    /// Starts the clock.
    pub fn start() -> Result<Self> {
        let kind = BPF_STATS_RUN_TIME;
        // SAFETY: the kernel reads as many bytes as it is told, which live until it returns.
        let fd = unsafe {
            libc::syscall(libc::SYS_bpf, BPF_ENABLE_STATS, &raw const kind, size_of_val(&kind))
        };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0);
        let fd = fd.ok_or_else(io::Error::last_os_error).context("cannot time BPF programs")?;
        // SAFETY: the kernel made the descriptor for this call, and nobody else owns it.
        Ok(Self { _held: unsafe { OwnedFd::from_raw_fd(fd) } })
    }
}

/// Total run time in seconds of the BPF programs that a process holds.
pub fn seconds(process: u32) -> Result<f64> {
    let folder = format!("/proc/{process}/fdinfo");
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {folder}"))?;
    let mut programs: Vec<(u64, u64)> = entries
        .filter_map(|entry| program(&fs::read_to_string(entry.ok()?.path()).ok()?))
        .collect();
    // The process may hold a program more than once.
    programs.sort_unstable();
    programs.dedup_by_key(|program| program.0);
    Ok(programs.iter().map(|program| program.1).sum::<u64>() as f64 / 1e9)
}

/// The number of the BPF program, and its run time in nanoseconds, if the description is of a
/// program.
fn program(description: &str) -> Option<(u64, u64)> {
    let field = |name: &str| {
        let line = description.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').trim().parse().ok()
    };
    Some((field("prog_id")?, field("run_time_ns")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_told_from_what_else_a_process_holds() {
        let link = "pos:\t0\nflags:\t02000000\nlink_type:\ttcx\nlink_id:\t7\nprog_id:\t27\n";
        let text = "pos:\t0\nprog_type:\t3\nprog_id:\t27\nrun_time_ns:\t1500\nrun_cnt:\t3\n";
        assert_eq!(program(text), Some((27, 1500)));
        assert_eq!(program(link), None);
        assert_eq!(program("pos:\t0\n"), None);
    }
}
