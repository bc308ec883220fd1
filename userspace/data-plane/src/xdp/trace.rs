//! The lines of single packets that the programs write with `--trace`.

use std::io;

use aya::Ebpf;
use aya_log::EbpfLogger;
use log::{Log, Metadata, Record};
use switchml_protocol::outcome::Outcome;
use tracing::info;

use super::StartError;
use crate::worker_thread::{Stop, WorkerThread};

/// Logs the outcome of each packet, as long as the thread lives.
///
/// # Errors
///
/// When the object has no trace, or no thread can be started.
pub fn follow(object: &mut Ebpf) -> Result<WorkerThread, StartError> {
    let failed = |why: String| StartError::Load(format!("cannot trace packets: {why}"));
    let mut lines =
        EbpfLogger::init_with_logger(object, Lines).map_err(|error| failed(error.to_string()))?;
    let follow = move |stop: &Stop| {
        while stop.wait_readable(&lines)? {
            lines.flush();
        }
        Ok::<_, io::Error>(())
    };
    WorkerThread::spawn("trace", follow).map_err(|error| failed(error.to_string()))
}

/// Puts the programs' numbers into words.
struct Lines;

impl Log for Lines {
    fn enabled(&self, _: &Metadata) -> bool {
        true
    }

    fn log(&self, record: &Record) {
        if let Some(line) = in_words(&record.args().to_string()) {
            info!("{line}");
        }
    }

    fn flush(&self) {}
}

/// The line for a trace of job, rank, slot, round and the outcome's number.
fn in_words(numbers: &str) -> Option<String> {
    let numbers: Vec<u32> =
        numbers.split(' ').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    let [job, rank, slot, round, outcome] = numbers[..] else { return None };
    let outcome = Outcome::from_number(outcome.try_into().ok()?)?;
    Some(format!("packet: job {job}, rank {rank}, slot {slot}, round {round}: {}", outcome.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_words() {
        let outcome = Outcome::Completed as u8;
        let line = in_words(&format!("5 1023 511 4294967295 {outcome}"));
        let expected = "packet: job 5, rank 1023, slot 511, round 4294967295: completed";
        assert_eq!(line.as_deref(), Some(expected));
        assert_eq!(in_words("5 1 2 3"), None);
        assert_eq!(in_words("5 1 2 3 255"), None);
    }
}
