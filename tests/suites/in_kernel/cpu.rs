//! The CPU of a thread, and the tests that need two CPUs.
#![allow(unsafe_code)]

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use switchml_rack::skip;

/// The CPUs that this process may use.
pub fn cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(None).expect("the process has an affinity");
    (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect()
}

/// Two CPUs; if there is only one, reports that the test is skipped.
pub fn two_cpus(test: &str) -> Option<[usize; 2]> {
    let two = cpus().first_chunk().copied();
    if two.is_none() {
        skip(test, "it needs two CPUs");
    }
    two
}

/// Keeps this thread on that CPU.
pub fn pin_to(cpu: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(None, &cpus).expect("the CPU is there");
}

/// Lets this thread run before all others, for measurements of less than a millisecond. Where that
/// is forbidden, they are not as good.
pub fn go_first() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads the parameter; 0 is this thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &lowest) };
}
