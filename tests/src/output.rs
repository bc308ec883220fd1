//! The output of a process so far, line by line.

use crate::deadline::Deadline;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The stream of a process that a line came from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Output that a thread per stream fills, and that other threads wait for.
#[derive(Default)]
pub struct Output {
    log: Mutex<Log>,
    changed: Condvar,
}

#[derive(Default)]
struct Log {
    lines: Vec<(Stream, String)>,
    /// Streams that have not ended.
    open: usize,
}

impl Output {
    /// Starts to collect the output of `source`, until it ends.
    pub fn collect(self: &Arc<Self>, stream: Stream, source: impl Read + Send + 'static) {
        self.log().open += 1;
        let output = Arc::clone(self);
        std::thread::spawn(move || {
            let mut source = BufReader::new(source);
            let mut line = Vec::new();
            // An error ends the stream like its end does; nothing more can be read.
            while matches!(source.read_until(b'\n', &mut line), Ok(1..)) {
                let text = String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned();
                output.log().lines.push((stream, text));
                output.changed.notify_all();
                line.clear();
            }
            output.log().open -= 1;
            output.changed.notify_all();
        });
    }

    /// Waits for the first line, of either stream, that contains `pattern`; earlier lines count
    /// too. `None` if both streams end, or the time passes, without one.
    pub fn wait_for_line(&self, pattern: &str, timeout: Duration) -> Option<String> {
        let find = |log: &Log| {
            log.lines.iter().find(|(_, line)| line.contains(pattern)).map(|(_, line)| line.clone())
        };
        find(&self.wait_until(timeout, |log| log.open == 0 || find(log).is_some()))
    }

    /// Waits until both streams have ended.
    pub fn wait_closed(&self, timeout: Duration) {
        drop(self.wait_until(timeout, |log| log.open == 0));
    }

    /// One stream's text so far.
    pub fn text(&self, stream: Stream) -> String {
        self.log()
            .lines
            .iter()
            .filter(|(from, _)| *from == stream)
            .map(|(_, line)| line.clone() + "\n")
            .collect()
    }

    /// The last lines of both streams, for an error message.
    pub fn tail(&self) -> String {
        const LINES: usize = 20;
        let log = self.log();
        let lines: Vec<_> = log.lines[log.lines.len().saturating_sub(LINES)..]
            .iter()
            .map(|(_, l)| l.as_str())
            .collect();
        if lines.is_empty() { "(none)".to_owned() } else { lines.join("\n") }
    }

    fn wait_until(&self, timeout: Duration, done: impl Fn(&Log) -> bool) -> MutexGuard<'_, Log> {
        let deadline = Deadline::after(timeout);
        let mut log = self.log();
        while !done(&log) {
            let left = deadline.left();
            if left.is_zero() {
                break;
            }
            log = self.changed.wait_timeout(log, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        log
    }

    /// A thread that panicked while it held the log left at worst a line too few.
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
