//! Causes that ranks by RDMA alone have, in one line each, with the command that fixes them.

use std::fmt;

use switchml_worker::control::AggregatorStatus;
use switchml_worker::rdma::{DevicePort, Unusable};

use super::device_errors::DeviceErrors;
use super::fix::{Fix, HERE, THERE, interfaces};
use super::small_packets::SmallPackets;

/// What stands in the way of a rank by RDMA, or slows it down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// A rank would fail at once.
    NoRdma {
        /// What the rank would say.
        why: Unusable,
        /// What helps if the aggregator does not take RDMA.
        there: Fix,
    },
    /// The aggregator's host gets datagrams to RDMA's port, and no messages.
    Unheard(DevicePort),
    /// Packets are smaller than they could be, or do not fit.
    SmallPackets(SmallPackets),
    /// The device has lost packets.
    Errors {
        /// The device's port.
        port: DevicePort,
        /// The packets.
        errors: DeviceErrors,
        /// Whether nothing comes back because of that.
        breaks: bool,
    },
}

impl Obstacle {
    /// Why a rank would fail at once with the aggregator that has this status.
    pub fn no_rdma(why: Unusable, status: &AggregatorStatus) -> Self {
        let start = |options: &str| Fix {
            host: THERE.to_owned(),
            command: format!("switchml-aggregator --rocev2{options}"),
        };
        let there = match status.data_plane.as_str() {
            _ if !status.parent.is_empty() => Fix {
                host: format!("{HERE}, without --rdma 1: combiners take none"),
                command: "unset SWITCHML_RDMA".to_owned(),
            },
            "xdp" => start(&interfaces(status.ports.iter().map(|port| port.name.as_str()))),
            _ => start(" --data-plane software"),
        };
        Self::NoRdma { why, there }
    }

    /// Whether it breaks things, and does not only slow them down.
    pub fn breaks(&self) -> bool {
        match self {
            Self::NoRdma { .. } | Self::Unheard(_) => true,
            Self::SmallPackets(_) => false,
            Self::Errors { breaks, .. } => *breaks,
        }
    }

    /// The command that fixes it, or tells more where no command does.
    pub fn fix(&self) -> Fix {
        match self {
            Self::NoRdma { why, there } => make_usable(why, there),
            Self::SmallPackets(small) => small.fix(),
            Self::Unheard(DevicePort { device, port, .. }) => {
                Fix { host: HERE.to_owned(), command: format!("rdma link show {device}/{port}") }
            }
            Self::Errors { port: DevicePort { device, port, .. }, .. } => Fix {
                host: HERE.to_owned(),
                command: format!("rdma statistic show link {device}/{port}"),
            },
        }
    }
}

/// The command for each reason why RDMA cannot be used.
fn make_usable(why: &Unusable, there: &Fix) -> Fix {
    let here = |condition: &str, command: &str| Fix {
        host: format!("{HERE}{condition}"),
        command: command.to_owned(),
    };
    match why {
        Unusable::NotTaken(_) => there.clone(),
        Unusable::NoDevice => here(
            ", if its NIC has RDMA, with the NIC's driver (mlx5_ib, irdma, bnxt_re, …)",
            "modprobe mlx5_ib",
        ),
        Unusable::NoAddress { .. } => {
            here(", whose way to the aggregator has to leave by one of these", "rdma link show")
        }
        Unusable::OtherKind { .. } => here(
            ", whose NIC has to be set to RoCE v2; this lists what it has",
            "grep . /sys/class/infiniband/*/ports/*/gid_attrs/types/* 2>/dev/null",
        ),
        Unusable::NoLibrary(_) => {
            here(" (with dnf: libibverbs)", "apt install libibverbs1 ibverbs-providers")
        }
        Unusable::NoProvider(_) => here("", "apt install ibverbs-providers"),
        Unusable::NoMemory(_) => here(
            ", in the shell that starts ranks (in a service: LimitMEMLOCK=infinity)",
            "ulimit -l unlimited",
        ),
        Unusable::Other(_) => here(", to learn more", "ls -l /dev/infiniband; dmesg"),
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRdma { why, .. } => write!(f, "no RDMA: {why}"),
            Self::Unheard(DevicePort { device, .. }) => write!(
                f,
                "messages of {device} get lost, while datagrams to UDP port 4791 get to the \
                 aggregator's host: they leave by another port or VLAN, or the NIC there keeps \
                 them for the host's own RDMA (mlx5: enable_roce)"
            ),
            Self::SmallPackets(small) => small.fmt(f),
            Self::Errors { port: DevicePort { device, .. }, errors, .. } => write!(
                f,
                "lost by {device}: {errors}, while this ran; packets of other programs count, too"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use switchml_worker::control::Port;

    use super::*;

    fn status(data_plane: &str, ports: &[&str]) -> AggregatorStatus {
        let port = |name: &&str| Port { name: (*name).to_owned(), ..Port::default() };
        AggregatorStatus {
            address: "10.0.0.254:48865".to_owned(),
            version: "1".to_owned(),
            data_plane: data_plane.to_owned(),
            attachment: String::new(),
            slots_total: 0,
            slots_free: 0,
            ports: ports.iter().map(port).collect(),
            parent: String::new(),
        }
    }

    #[test]
    fn an_aggregator_without_rdma_is_started_with_it() {
        let why = Unusable::NotTaken("10.0.0.254:48864".parse().unwrap());
        let command = |status: &AggregatorStatus| {
            let fix = Obstacle::no_rdma(why.clone(), status).fix();
            assert_eq!(fix.host, "the aggregator's host");
            fix.command
        };
        assert_eq!(
            command(&status("xdp", &["p0", "p1"])),
            "switchml-aggregator --rocev2 --iface p0 --iface p1"
        );
        assert_eq!(
            command(&status("software", &[])),
            "switchml-aggregator --rocev2 --data-plane software"
        );
    }

    #[test]
    fn a_combiner_stays_one() {
        let why = Unusable::NotTaken("10.0.0.254:48864".parse().unwrap());
        let combiner =
            AggregatorStatus { parent: "10.0.0.1:48865".to_owned(), ..status("xdp", &["p0"]) };
        let Fix { host, command } = Obstacle::no_rdma(why, &combiner).fix();
        assert_eq!((host.starts_with(HERE), &*command), (true, "unset SWITCHML_RDMA"));
    }

    /// Each reason for which a rank cannot use RDMA, with its line and its command.
    #[test]
    fn what_is_missing_here_is_named_with_a_command() {
        let local = "10.0.0.7".parse().unwrap();
        for (why, line, command) in [
            (Unusable::NoDevice, "no RDMA: this host has no RDMA device", "modprobe mlx5_ib"),
            (
                Unusable::NoAddress { local, devices: "mlx5_0".to_owned() },
                "no RDMA: none of this host's RDMA devices (mlx5_0) has 10.0.0.7",
                "rdma link show",
            ),
            (
                Unusable::OtherKind { local, entries: "entry 0 of x (IB/RoCE v1)".to_owned() },
                "no RDMA: 10.0.0.7 is entry 0 of x (IB/RoCE v1), and not of RoCE v2",
                "grep . /sys/class/infiniband/*/ports/*/gid_attrs/types/* 2>/dev/null",
            ),
            (
                Unusable::NoLibrary("libibverbs.so.1 cannot be loaded: x".to_owned()),
                "no RDMA: libibverbs.so.1 cannot be loaded: x",
                "apt install libibverbs1 ibverbs-providers",
            ),
            (
                Unusable::NoProvider("mlx5_0".to_owned()),
                "no RDMA: libibverbs does not know the device mlx5_0: is its driver installed \
                 (ibverbs-providers)?",
                "apt install ibverbs-providers",
            ),
            (
                Unusable::NoMemory("Cannot allocate memory".to_owned()),
                "no RDMA: the RDMA device gives no registered memory (see `ulimit -l`): Cannot \
                 allocate memory",
                "ulimit -l unlimited",
            ),
        ] {
            let obstacle = Obstacle::no_rdma(why, &status("xdp", &[]));
            assert_eq!((obstacle.to_string().as_str(), obstacle.breaks()), (line, true));
            let Fix { host, command: given } = obstacle.fix();
            assert_eq!(given, command);
            assert!(host.starts_with("this host"), "{host}");
        }
    }
}
