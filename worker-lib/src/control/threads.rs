//! The number of data threads that this host can use.

use std::{fs, thread};

/// Bits per second that a data thread moves in each direction, with margin:
/// `docs/research/benchmarks.md`.
const PER_THREAD: f64 = 12.5e9;
/// Identifies this host; equal in all its namespaces and containers.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The number of data threads that the ranks of this host can use together for each of a job's
/// aggregators, and the host's identity: enough threads to fill the link towards the aggregator if
/// its speed is known, and no more than processors.
pub(super) fn of_this_host(link: Option<f64>, aggregators: u32) -> (u32, String) {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    match fs::read_to_string(BOOT_ID) {
        Ok(host) => (wanted(processors, link).div_ceil(aggregators.max(1)), host.trim().to_owned()),
        // Without an identity, it is unknown which ranks share the processors.
        Err(_) => (1, String::new()),
    }
}

fn wanted(processors: usize, speed: Option<f64>) -> u32 {
    let of_link = speed.map_or(usize::MAX, |speed| (speed / PER_THREAD).ceil() as usize);
    processors.min(of_link).max(1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_and_link_bound_the_threads() {
        assert_eq!((wanted(16, None), wanted(1, None)), (16, 1));
        assert_eq!([10e9, 25e9, 40e9, 100e9].map(|speed| wanted(64, Some(speed))), [1, 2, 4, 8]);
        assert_eq!((wanted(2, Some(100e9)), wanted(16, Some(0.0))), (2, 1));
    }

    #[test]
    fn this_host_has_a_name() {
        let (threads, host) = of_this_host(None, 1);
        assert!(threads >= 1);
        assert_eq!(of_this_host(None, 1000).0, 1);
        assert_eq!(host.len(), 36, "{host}");
    }
}
