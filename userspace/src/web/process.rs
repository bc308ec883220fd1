//! The resource usage of this process, as metrics with the names of Prometheus' own libraries.

use std::fs;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};

/// See the module. A value that the system does not tell is 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Process {
    /// CPU time of all threads, in the program and in the kernel.
    pub cpu_seconds: f64,
    /// Memory that is not swapped out.
    pub resident_bytes: f64,
    /// Open files, sockets among them.
    pub open_files: f64,
    /// The limit of these.
    pub most_files: f64,
    /// Time of the start, in seconds since 1970.
    pub start_seconds: f64,
}

impl Process {
    /// The usage of this process, which has run for `uptime`.
    pub fn look(uptime: Duration) -> Self {
        // The start stays the same when the clock is changed.
        static START: OnceLock<Duration> = OnceLock::new();
        let start = || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            now.saturating_sub(uptime)
        };
        let used = getrusage(UsageWho::RUSAGE_SELF).ok();
        let seconds = |time: nix::sys::time::TimeVal| time.num_microseconds() as f64 / 1e6;
        let cpu = used.map(|used| seconds(used.user_time()) + seconds(used.system_time()));
        let pages = fs::read_to_string("/proc/self/statm").ok();
        let pages = pages.and_then(|text| text.split(' ').nth(1)?.parse::<f64>().ok());
        let files = fs::read_dir("/proc/self/fd").map(Iterator::count);
        Self {
            cpu_seconds: cpu.unwrap_or_default(),
            resident_bytes: pages.unwrap_or_default() * page_size() as f64,
            open_files: files.unwrap_or_default() as f64,
            most_files: getrlimit(Resource::Nofile).current.unwrap_or_default() as f64,
            start_seconds: START.get_or_init(start).as_secs_f64(),
        }
    }
}
