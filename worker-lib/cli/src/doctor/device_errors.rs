//! An RDMA device's own counters of errors: packets that the kernel never sees end there.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use switchml_worker::rdma::DevicePort;

/// The kernel reads counters from devices this often at most (`RDMA_HW_STATS_DEFAULT_LIFESPAN`),
/// with some time on top.
const LIFESPAN: Duration = Duration::from_millis(20);

/// Which way packets go that a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

/// The names of counters of lost datagrams, the way of these, and what befell them. Each is in its
/// driver in Linux (`drivers/infiniband`): mlx5's, bnxt_re's, irdma's, rxe's. Others count what
/// only connections have. Soft-RoCE (rxe) does not count wrong ICRCs.
const COUNTERS: [(&str, Way, &str); 12] = [
    ("rx_icrc_encapsulated", Way::In, "came with a wrong ICRC"),
    ("out_of_buffer", Way::In, "found no buffer"),
    ("rx_roce_errors", Way::In, "came damaged"),
    ("rx_roce_discards", Way::In, "were dropped on their way in"),
    ("rx_out_of_buffer", Way::In, "found no buffer"),
    ("tx_roce_errors", Way::Out, "could not be sent"),
    ("tx_roce_discards", Way::Out, "were dropped on their way out"),
    ("ip4InDiscards", Way::In, "were dropped on their way in"),
    ("ip6InDiscards", Way::In, "were dropped on their way in"),
    ("ip4OutNoRoutes", Way::Out, "had no route"),
    ("ip6OutNoRoutes", Way::Out, "had no route"),
    ("send_err", Way::Out, "could not be sent"),
];

/// Counters of errors of a device's port, or their growth. The device has only some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceErrors(BTreeMap<&'static str, u64>);

impl DeviceErrors {
    /// The counters now.
    pub fn read(of: &DevicePort) -> Self {
        sleep(LIFESPAN);
        Self::read_below(Path::new("/sys/class/infiniband"), of)
    }

    fn read_below(class: &Path, DevicePort { device, port, .. }: &DevicePort) -> Self {
        let folder = class.join(format!("{device}/ports/{port}/hw_counters"));
        let read = |name: &'static str| {
            let text = fs::read_to_string(folder.join(name)).ok()?;
            Some((name, text.trim().parse().ok()?))
        };
        Self(COUNTERS.iter().filter_map(|(name, ..)| read(name)).collect())
    }

    /// The growth of the counters since `before`: those that have grown.
    pub fn since(&self, before: &Self) -> Self {
        let growth = |(name, now): (&&'static str, &u64)| {
            let growth = now.saturating_sub(*before.0.get(name)?);
            Some((*name, growth)).filter(|_| growth > 0)
        };
        Self(self.0.iter().filter_map(growth).collect())
    }

    /// Whether they are those of Soft-RoCE.
    pub fn are_of_soft_roce(&self) -> bool {
        self.0.contains_key("send_err")
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Packets that were lost on their way in.
    pub fn received(&self) -> u64 {
        self.sum(Way::In)
    }

    /// Packets that were lost on their way out.
    pub fn sent(&self) -> u64 {
        self.sum(Way::Out)
    }

    fn sum(&self, way: Way) -> u64 {
        self.all().filter(|(_, of, ..)| *of == way).map(|(.., count)| count).sum()
    }

    fn all(&self) -> impl Iterator<Item = (&'static str, Way, &'static str, u64)> {
        COUNTERS.iter().filter_map(|&(name, way, what)| Some((name, way, what, *self.0.get(name)?)))
    }
}

impl fmt::Display for DeviceErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |(name, _, what, count)| format!("{count} packets {what} ({name})");
        f.write_str(&self.all().map(words).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
impl DeviceErrors {
    /// These counters.
    pub fn of(counts: &[(&'static str, u64)]) -> Self {
        Self(counts.iter().copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use switchml_worker::rdma::Mtu;

    #[test]
    fn counters_are_read_and_compared() {
        let class = tempfile::tempdir().unwrap();
        let folder = class.path().join("mlx5_0/ports/2/hw_counters");
        fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        let mtu = Mtu { active: 1024, most: 4096 };
        let of = |port| DevicePort { device: "mlx5_0".to_owned(), port, mtu };
        write("out_of_buffer", "7\n");
        write("rx_icrc_encapsulated", "0\n");
        write("rx_write_requests", "1\n");
        write("tx_roce_errors", "1\n");
        let before = DeviceErrors::read_below(class.path(), &of(2));
        write("rx_icrc_encapsulated", "12\n");
        write("rx_write_requests", "2\n");
        write("tx_roce_errors", "4\n");
        let growth = DeviceErrors::read_below(class.path(), &of(2)).since(&before);
        assert_eq!((growth.received(), growth.sent(), growth.is_empty()), (12, 3, false));
        let expected = "12 packets came with a wrong ICRC (rx_icrc_encapsulated), 3 packets could \
                        not be sent (tx_roce_errors)";
        assert_eq!(growth.to_string(), expected);
        let other = DeviceErrors::read_below(class.path(), &of(1));
        assert_eq!(other, DeviceErrors::default(), "there is no such port");
    }

    #[test]
    fn what_has_not_grown_is_no_error() {
        let errors = |count| DeviceErrors::of(&[("send_err", count)]);
        assert!(errors(7).since(&errors(7)).is_empty());
        // The device was reset, or had no such counter before.
        assert!(errors(1).since(&errors(7)).is_empty());
        assert!(errors(1).since(&DeviceErrors::default()).is_empty());
    }
}
