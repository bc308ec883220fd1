//! The daemon's program, as a process.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The options of a daemon in software, on loopback.
pub const IN_SOFTWARE: [&str; 6] =
    ["--data-plane", "software", "--control", "127.0.0.1:0", "--data-port", "0"];

pub fn aggregator(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_switchml-aggregator"));
    command.args(arguments);
    command
}

/// A daemon, killed when dropped.
pub struct Program {
    pub process: Child,
    pub control: SocketAddr,
}

impl Program {
    /// Starts a daemon by this command, and waits until it is ready. Also returns the rest of its
    /// log, which must be read, or the daemon would block.
    pub fn start(command: &mut Command) -> (Self, impl Iterator<Item = String> + Send + use<>) {
        let mut process = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let log = BufReader::new(process.stderr.take().expect("piped"));
        let mut log = log.lines().map(|line| line.expect("text"));
        let ready = log.find(|line| line.contains("ready: control ")).expect("ready");
        let address = ready.split("ready: control ").nth(1).and_then(|rest| rest.split(',').next());
        let control = address.and_then(|address| address.parse().ok()).expect("an address");
        (Self { process, control }, log)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The processor time that a process has used; it may have ended, and not been waited for.
pub fn busy(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is not reaped");
    // utime and stime are fields 14 and 15 (proc(5)), in ticks of 10 ms; the name before them ends
    // with a parenthesis.
    let fields: Vec<_> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
    let ticks: u64 =
        fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(10 * ticks)
}
