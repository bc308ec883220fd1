//! Runs the aggregator on existing interfaces.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::getuid;
use switchml_rack::Binaries;

/// Becomes the daemon; returns only when that fails.
pub fn serve(binaries: &Binaries, interfaces: &[String]) -> anyhow::Error {
    let mut command = if getuid().is_root() {
        Command::new(&binaries.aggregator)
    } else {
        eprintln!("attaching XDP programs needs root; asking sudo");
        let mut sudo = Command::new("sudo");
        sudo.arg(&binaries.aggregator);
        sudo
    };
    command.args(interfaces.iter().flat_map(|name| ["--iface", name]));
    let error = command.exec();
    anyhow::Error::new(error)
        .context(format!("cannot start {}", command.get_program().to_string_lossy()))
}
