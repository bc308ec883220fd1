//! A running program of the rack.

use crate::Error;
use crate::deadline::Deadline;
use crate::output::{Output, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

/// Time for the output of a process that has ended to arrive. It is there already, unless a
/// grandchild holds the stream open.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// A process in a [`Namespace`](crate::Namespace); killed and reaped when the value is dropped, and
/// at the latest with the rack.
pub struct Process {
    name: String,
    child: Child,
    /// A descriptor of the process, valid even after it ended and its id was reused.
    pidfd: OwnedFd,
    output: Arc<Output>,
}

impl Process {
    pub(crate) fn new(name: &str, mut child: Child) -> Result<Self, Error> {
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).map_err(|error| {
            let _ = child.kill();
            let _ = child.wait();
            Error::Process { process: name.to_owned(), what: "watch", source: error.into() }
        })?;
        let output = Arc::new(Output::default());
        if let Some(stdout) = child.stdout.take() {
            output.collect(Stream::Stdout, stdout);
        }
        if let Some(stderr) = child.stderr.take() {
            output.collect(Stream::Stderr, stderr);
        }
        Ok(Self { name: name.to_owned(), child, pidfd, output })
    }

    /// The name given at the start.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process's number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The process's standard output so far.
    pub fn stdout(&self) -> String {
        self.output.text(Stream::Stdout)
    }

    /// The process's standard error so far.
    pub fn stderr(&self) -> String {
        self.output.text(Stream::Stderr)
    }

    /// Waits until the process has printed a line that contains `pattern`, and returns the line.
    /// Earlier lines count.
    pub fn wait_for_line(&mut self, pattern: &str, timeout: Duration) -> Result<String, Error> {
        let deadline = Deadline::after(timeout);
        if let Some(line) = self.output.wait_for_line(pattern, timeout) {
            return Ok(line);
        }
        let what = format!("line with \"{pattern}\"");
        // The streams may have ended before the process.
        match self.wait(deadline.left()) {
            Ok(status) => Err(self.ended(format!("waited for a {what}"), status)),
            Err(Error::Timeout { .. }) => Err(self.timeout(what, timeout)),
            Err(error) => Err(error),
        }
    }

    /// Waits until the process ends, with any status.
    pub fn wait(&mut self, timeout: Duration) -> Result<ExitStatus, Error> {
        if !self.wait_exit(timeout).map_err(|source| self.failed("wait for", source))? {
            return Err(self.timeout("end".to_owned(), timeout));
        }
        let status = self.child.wait().map_err(|source| self.failed("reap", source))?;
        self.output.wait_closed(OUTPUT_GRACE);
        Ok(status)
    }

    /// Waits until the process ends, which must be with exit status 0.
    pub fn wait_success(&mut self, timeout: Duration) -> Result<(), Error> {
        let status = self.wait(timeout)?;
        if status.success() { Ok(()) } else { Err(self.ended("should succeed".to_owned(), status)) }
    }

    /// Whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends the process a signal ([`Signal::STOP`] and [`Signal::CONT`] freeze and continue a
    /// rank).
    pub fn signal(&self, signal: Signal) -> Result<(), Error> {
        pidfd_send_signal(&self.pidfd, signal).map_err(|error| self.failed("signal", error.into()))
    }

    /// Asks the process to end (SIGTERM), and kills it when it has not ended after `grace`. Returns
    /// its exit status.
    pub fn terminate(&mut self, grace: Duration) -> Result<ExitStatus, Error> {
        // The process may have ended by itself; the status tells.
        let _ = self.signal(Signal::TERM);
        match self.wait(grace) {
            Err(Error::Timeout { .. }) => self.kill(),
            ended => ended,
        }
    }

    /// Kills the process (SIGKILL), so that it cannot leave normally, and returns its exit status.
    pub fn kill(&mut self) -> Result<ExitStatus, Error> {
        self.child.kill().map_err(|source| self.failed("kill", source))?;
        let status = self.child.wait().map_err(|source| self.failed("reap", source))?;
        self.output.wait_closed(OUTPUT_GRACE);
        Ok(status)
    }

    /// Whether the process has ended within the timeout; it is not reaped yet.
    fn wait_exit(&self, timeout: Duration) -> io::Result<bool> {
        let deadline = Deadline::after(timeout);
        loop {
            // A time that does not fit is treated as unlimited.
            let left = Timespec::try_from(deadline.left()).ok();
            match poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], left.as_ref()) {
                Ok(ready) => return Ok(ready > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) fn timeout(&self, what: String, waited: Duration) -> Error {
        Error::Timeout { process: self.name.clone(), what, waited, tail: self.output.tail() }
    }

    pub(crate) fn ended(&self, what: String, status: ExitStatus) -> Error {
        self.output.wait_closed(OUTPUT_GRACE);
        Error::Ended { process: self.name.clone(), what, status, tail: self.output.tail() }
    }

    fn failed(&self, what: &'static str, source: io::Error) -> Error {
        Error::Process { process: self.name.clone(), what, source }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both calls do nothing for a process that was reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
