//! All errors, each in one line that says what to do.

use crate::{MAX_MTU, MAX_WORKERS, MIN_MTU};
use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

/// Why a rack could not be built, or a process in it did not do what was expected.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error("a rack of {0} workers was asked for; it takes 1 to {MAX_WORKERS}")]
    Workers(usize),
    #[error("{racks} racks of {workers} workers in all were asked for; each rack has one at least")]
    Racks { racks: usize, workers: usize },
    #[error(
        "several racks are stars of Linux hosts without VLANs; leave out {0}, or have one rack"
    )]
    NotInRacks(&'static str),
    #[error("an MTU of {0} bytes was asked for; native XDP on veth allows {MIN_MTU} to {MAX_MTU}")]
    Mtu(u32),
    #[error("bmv2 runs in racks with a port for each worker; leave the topology at star")]
    Topology,
    #[error(
        "VLANs are in racks with a port for each worker; leave the topology at star, and use \
         neither bmv2 nor bad links"
    )]
    Vlan,
    #[error("neither bmv2 nor a router with NAT has IPv6; leave IPv6 out, or the mode or topology")]
    Ipv6,
    #[error("this rack's links are whole; bad links need a rack made with RackOptions::wires")]
    NoWires,
    #[error("these racks' uplinks are open for bad links; shaped ones need racks made without")]
    WiresOpen,
    #[error(
        "cannot {what}: {source}; a rack needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_BPF) and \
         Linux 6.1 or later"
    )]
    Kernel { what: String, source: io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot start `{command}` in {namespace}: {source}{}", install_hint(source))]
    Start { command: String, namespace: String, source: io::Error },
    #[error("`{command}` in {namespace} failed ({status}): {stderr}")]
    Tool { command: String, namespace: String, status: ExitStatus, stderr: String },
    #[error("{process}: no {what} within {waited:?}; its last lines:\n{tail}")]
    Timeout { process: String, what: String, waited: Duration, tail: String },
    #[error("{process}: {what}, but it ended ({status}); its last lines:\n{tail}")]
    Ended { process: String, what: String, status: ExitStatus, tail: String },
    #[error("cannot {what} {process}: {source}")]
    Process { process: String, what: &'static str, source: io::Error },
    #[error(
        "{} does not exist; build it: cargo build --release -p switchml-userspace \
         -p switchml-worker-cli -p switchml-impairment",
        .0.display()
    )]
    NotBuilt(PathBuf),
    #[error(
        "{} does not exist; torchrun comes with torch: `pip install torch` in that environment",
        .0.display()
    )]
    NoTorchrun(PathBuf),
    #[error("the script failed; its last lines:\n{0}")]
    Script(String),
    #[error("training went wrong: {0}")]
    Training(String),
    #[error(
        "{0}; bmv2 needs simple_switch of https://github.com/p4lang/behavioral-model, built with \
         Thrift and nanomsg, and p4c-bm2-ss of https://github.com/p4lang/p4c"
    )]
    NoSimpleSwitch(String),
    #[error("`{command}` failed: {why}")]
    Build { command: String, why: String },
}

fn install_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "; `cargo xtask setup` installs the tools that racks need (iproute2, ethtool, nftables)"
        }
        _ => "",
    }
}
