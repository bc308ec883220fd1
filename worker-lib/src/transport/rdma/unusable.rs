//! Why a rank cannot use RDMA.

use std::io;
use std::net::{IpAddr, SocketAddr};

/// What stands in the way of a rank by RDMA, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The data plane at this address lacks ROCE (rule 37.1).
    #[error("the aggregator at {0} does not take it (it has no --rocev2)")]
    NotTaken(SocketAddr),
    /// The kernel shows no RDMA device.
    #[error("this host has no RDMA device")]
    NoDevice,
    /// No device has the local address of the way to the aggregator.
    #[error("none of this host's RDMA devices ({devices}) has {local}")]
    NoAddress {
        /// The address.
        local: IpAddr,
        /// The devices, with what they have instead if that says something.
        devices: String,
    },
    /// Devices have the address only for other kinds of RDMA.
    #[error("{local} is {entries}, and not of RoCE v2")]
    OtherKind {
        /// The address.
        local: IpAddr,
        /// The entries in devices' tables, with their kinds.
        entries: String,
    },
    /// The library is missing.
    #[error("{0}")]
    NoLibrary(String),
    /// The library lacks this device's driver.
    #[error(
        "libibverbs does not know the device {0}: is its driver installed (ibverbs-providers)?"
    )]
    NoProvider(String),
    /// Too little memory can be locked.
    #[error("the RDMA device gives no registered memory (see `ulimit -l`): {0}")]
    NoMemory(String),
    /// Something else.
    #[error("{0}")]
    Other(String),
}

impl From<io::Error> for Unusable {
    fn from(error: io::Error) -> Self {
        Self::Other(error.to_string())
    }
}

impl From<Unusable> for io::Error {
    fn from(unusable: Unusable) -> Self {
        Self::other(unusable)
    }
}
