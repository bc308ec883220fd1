//! All errors, each in one line that says what to do.

use crate::{MAX_MTU, MAX_WORKERS, MIN_MTU};
use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

/// Why a rack could not be built, or a process in it did not do what was expected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The number of workers is out of range.
    #[error("a rack of {0} workers was asked for; it takes 1 to {MAX_WORKERS}")]
    Workers(usize),

    /// The number of racks is 0, or larger than the number of workers.
    #[error("{racks} racks of {workers} workers in all were asked for; each rack has one at least")]
    Racks {
        /// The number of racks.
        racks: usize,
        /// The number of workers in all.
        workers: usize,
    },

    /// Something was asked for that several racks do not have.
    #[error(
        "several racks are stars of Linux hosts without VLANs; leave out {0}, or have one rack"
    )]
    NotInRacks(&'static str),

    /// The MTU is out of range.
    #[error("an MTU of {0} bytes was asked for; native XDP on veth allows {MIN_MTU} to {MAX_MTU}")]
    Mtu(u32),

    /// bmv2 was asked for, in another rack than a star.
    #[error("bmv2 runs in racks with a port for each worker; leave the topology at star")]
    Topology,

    /// A VLAN was asked for, in another rack than a star, or with bmv2.
    #[error(
        "VLANs are in racks with a port for each worker; leave the topology at star, and use \
         neither bmv2 nor bad links"
    )]
    Vlan,

    /// IPv6 was asked for where it is not available.
    #[error("neither bmv2 nor a router with NAT has IPv6; leave IPv6 out, or the mode or topology")]
    Ipv6,

    /// Bad links were asked for in a rack that has no wires.
    #[error("this rack's links are whole; bad links need a rack made with RackOptions::wires")]
    NoWires,

    /// Shaped links were asked for where the uplinks are open.
    #[error("these racks' uplinks are open for bad links; shaped ones need racks made without")]
    WiresOpen,

    /// The kernel refused something that a rack needs.
    #[error(
        "cannot {what}: {source}; a rack needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_BPF) and \
         Linux 5.9 or later"
    )]
    Kernel {
        /// The operation that failed.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },

    /// A file that a program needs could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },

    /// A program could not be started.
    #[error("cannot start `{command}` in {namespace}: {source}{}", install_hint(source))]
    Start {
        /// The command line.
        command: String,
        /// The namespace to run it in.
        namespace: String,
        /// The operating system's error.
        source: io::Error,
    },

    /// A configuration tool (`ip`, `ethtool`) ran and failed.
    #[error("`{command}` in {namespace} failed ({status}): {stderr}")]
    Tool {
        /// The command line.
        command: String,
        /// The namespace that it ran in.
        namespace: String,
        /// The exit status.
        status: ExitStatus,
        /// The tool's standard error.
        stderr: String,
    },

    /// A process did not do in time what the test waited for.
    #[error("{process}: no {what} within {waited:?}; its last lines:\n{tail}")]
    Timeout {
        /// The process's name.
        process: String,
        /// What the test waited for.
        what: String,
        /// The timeout.
        waited: Duration,
        /// The last lines of the process's output.
        tail: String,
    },

    /// A process ended unexpectedly.
    #[error("{process}: {what}, but it ended ({status}); its last lines:\n{tail}")]
    Ended {
        /// The process's name.
        process: String,
        /// What was expected instead.
        what: String,
        /// The exit status.
        status: ExitStatus,
        /// The last lines of the process's output.
        tail: String,
    },

    /// A system call on a process failed.
    #[error("cannot {what} {process}: {source}")]
    Process {
        /// The process's name.
        process: String,
        /// The operation that failed.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },

    /// A binary that the rack runs is not built.
    #[error(
        "{} does not exist; build it: cargo build --release -p switchml-userspace \
         -p switchml-worker-cli -p switchml-impairment",
        .0.display()
    )]
    NotBuilt(PathBuf),

    /// Torchrun is not where the interpreter is.
    #[error(
        "{} does not exist; torchrun comes with torch: `pip install torch` in that environment",
        .0.display()
    )]
    NoTorchrun(PathBuf),

    /// A script run by torchrun failed: the ranks, and their last lines.
    #[error("the script failed; its last lines:\n{0}")]
    Script(String),

    /// Ranks that trained together differ, or printed something else than agreed.
    #[error("training went wrong: {0}")]
    Training(String),

    /// A program that [`Mode::Bmv2`](crate::Mode::Bmv2) needs is not installed.
    #[error(
        "{0}; bmv2 needs simple_switch of https://github.com/p4lang/behavioral-model, built with \
         Thrift and nanomsg, and p4c-bm2-ss of https://github.com/p4lang/p4c"
    )]
    NoSimpleSwitch(String),

    /// The binaries could not be built.
    #[error("`{command}` failed: {why}")]
    Build {
        /// The command line.
        command: String,
        /// How.
        why: String,
    },
}

fn install_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "; `cargo xtask setup` installs the tools that racks need (iproute2, ethtool, nftables)"
        }
        _ => "",
    }
}
