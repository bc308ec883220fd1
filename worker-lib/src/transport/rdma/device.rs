//! Which RDMA device a local address belongs to, as the kernel says below `/sys/class/infiniband`.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use super::unusable::Unusable;

/// An entry of a port's table of addresses (GIDs).
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    pub device: String,
    pub port: u8,
    /// The entry's number.
    pub index: u8,
}

/// The entry of this local address for RoCEv2; or why there is none.
pub fn find(local: IpAddr) -> Result<Entry, Unusable> {
    find_below(Path::new("/sys/class/infiniband"), local)
}

fn find_below(class: &Path, local: IpAddr) -> Result<Entry, Unusable> {
    let (devices, mut others) = (names(class), Vec::new());
    for device in &devices {
        let ports = class.join(device).join("ports");
        for port in names(&ports) {
            let folder = ports.join(&port);
            for index in names(&folder.join("gids")) {
                if gid(&folder, &index) != Some(as_gid(local)) {
                    continue;
                }
                let kind = fs::read_to_string(folder.join("gid_attrs/types").join(&index));
                let kind = kind.unwrap_or_default();
                if let ("RoCE v2", Ok(port), Ok(index)) = (kind.trim(), port.parse(), index.parse())
                {
                    return Ok(Entry { device: device.clone(), port, index });
                }
                if kind.trim() != "RoCE v2" {
                    others.push(format!("entry {index} of {device} ({})", kind.trim()));
                }
            }
        }
    }
    Err(match (devices.is_empty(), others.is_empty()) {
        (true, _) => Unusable::NoDevice,
        (_, true) => {
            let devices: Vec<_> = devices.iter().map(|device| describe(class, device)).collect();
            Unusable::NoAddress { local, devices: devices.join(", ") }
        }
        _ => Unusable::OtherKind { local, entries: others.join(" and ") },
    })
}

/// A device's name, and whether it has link-local addresses alone: those are there even if its
/// interface has no address.
fn describe(class: &Path, device: &str) -> String {
    let ports = class.join(device).join("ports");
    let ports = names(&ports).into_iter().map(|port| ports.join(port));
    let gids: Vec<_> = ports
        .flat_map(|port| names(&port.join("gids")).into_iter().map(move |index| gid(&port, &index)))
        .flatten()
        .collect();
    match !gids.is_empty() && gids.iter().all(Ipv6Addr::is_unicast_link_local) {
        true => format!("{device} with link-local addresses alone"),
        false => device.to_owned(),
    }
}

/// An address as RDMA has it: one of IPv4 is mapped.
pub fn as_gid(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// What an entry holds; `None` for an empty one, which is 0, or cannot be read.
fn gid(port: &Path, index: &str) -> Option<Ipv6Addr> {
    let text = fs::read_to_string(port.join("gids").join(index)).ok()?;
    text.trim().parse().ok().filter(|gid: &Ipv6Addr| !gid.is_unspecified())
}

/// The names in a folder in order, none if there is no such folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices as the kernel shows them: one has addresses of both kinds, one of the older kind
    /// alone, and one has link-local addresses and an empty entry.
    fn class() -> tempfile::TempDir {
        let class = tempfile::tempdir().unwrap();
        let entry = |device: &str, port: u8, index: u8, gid: &str, kind: &str| {
            let folder = class.path().join(format!("{device}/ports/{port}"));
            fs::create_dir_all(folder.join("gids")).unwrap();
            fs::create_dir_all(folder.join("gid_attrs/types")).unwrap();
            fs::write(folder.join(format!("gids/{index}")), format!("{gid}\n")).unwrap();
            fs::write(folder.join(format!("gid_attrs/types/{index}")), kind).unwrap();
        };
        entry("mlx5_0", 1, 0, "0000:0000:0000:0000:0000:ffff:0a00:0007", "IB/RoCE v1\n");
        entry("mlx5_0", 1, 1, "0000:0000:0000:0000:0000:ffff:0a00:0007", "RoCE v2\n");
        entry("mlx5_0", 2, 11, "fd88:0000:0000:0000:0000:0000:0000:0007", "RoCE v2\n");
        entry("rxe0", 1, 0, "0000:0000:0000:0000:0000:ffff:0a00:0008", "IB/RoCE v1\n");
        entry("rxe1", 1, 0, "fe80:0000:0000:0000:5054:00ff:fe12:3456", "RoCE v2\n");
        entry("rxe1", 1, 1, "0000:0000:0000:0000:0000:0000:0000:0000", "RoCE v2\n");
        class
    }

    #[test]
    fn an_address_is_found_for_roce_v2() {
        let class = class();
        let find = |address: &str| find_below(class.path(), address.parse().unwrap());
        let entry = |device: &str, port, index| Ok(Entry { device: device.into(), port, index });
        assert_eq!(find("10.0.0.7"), entry("mlx5_0", 1, 1));
        assert_eq!(find("fd88::7"), entry("mlx5_0", 2, 11));
    }

    #[test]
    fn what_is_missing_is_said() {
        let class = class();
        let why = |class: &Path, address: &str| {
            find_below(class, address.parse().unwrap()).expect_err("nothing").to_string()
        };
        assert_eq!(
            why(class.path(), "10.0.0.9"),
            "none of this host's RDMA devices (mlx5_0, rxe0, rxe1 with link-local addresses \
             alone) has 10.0.0.9"
        );
        assert_eq!(
            why(class.path(), "10.0.0.8"),
            "10.0.0.8 is entry 0 of rxe0 (IB/RoCE v1), and not of RoCE v2"
        );
        assert_eq!(why(&class.path().join("none"), "10.0.0.7"), "this host has no RDMA device");
    }
}
