//! The interfaces of this host that NCCL may use.

use std::ffi::CString;
use std::net::IpAddr;
use std::path::Path;

/// NCCL's assumption for an interface that does not tell its speed, in Mb/s.
const UNKNOWN_SPEED: i32 = 10_000;

/// An interface, with the strings that NCCL gets pointers to.
pub struct Device {
    pub name: CString,
    pub pci_path: Option<CString>,
    pub address: IpAddr,
    /// Speed in Mb/s.
    pub speed: i32,
}

/// The interfaces that are up, have an address, and match `filter`, the value of
/// `NCCL_SOCKET_IFNAME`. Without a filter, loopback and Docker's bridges count only if there are no
/// others.
pub fn usable(filter: Option<&str>) -> std::io::Result<Vec<Device>> {
    let mut found: Vec<(String, IpAddr)> = Vec::new();
    for interface in if_addrs::get_if_addrs()? {
        let address = interface.ip();
        if !interface.is_oper_up() || link_local(address) {
            continue;
        }
        match found.iter_mut().find(|(name, _)| *name == interface.name) {
            Some((_, known)) if known.is_ipv6() && address.is_ipv4() => *known = address,
            Some(_) => {}
            None => found.push((interface.name, address)),
        }
    }
    if let Some(filter) = filter {
        found.retain(|(name, _)| matches(filter, name));
    } else if found.iter().any(|(name, _)| !is_last_resort(name)) {
        found.retain(|(name, _)| !is_last_resort(name));
    }
    Ok(found.into_iter().filter_map(|(name, address)| device(&name, address)).collect())
}

/// Whether an address is link-local: such an address needs the interface's number, which differs
/// between hosts.
fn link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn is_last_resort(name: &str) -> bool {
    name == "lo" || name.starts_with("docker")
}

/// NCCL's rule: names begin with one of the list; after `^` they must not; after `=` they are
/// whole names.
fn matches(filter: &str, name: &str) -> bool {
    let (wanted, list) = filter.strip_prefix('^').map_or((true, filter), |rest| (false, rest));
    let (whole, list) = list.strip_prefix('=').map_or((false, list), |rest| (true, rest));
    let fits = |item: &str| if whole { name == item } else { name.starts_with(item) };
    list.split(',').filter(|item| !item.is_empty()).any(fits) == wanted
}

fn device(name: &str, address: IpAddr) -> Option<Device> {
    let folder = Path::new("/sys/class/net").join(name);
    let speed = std::fs::read_to_string(folder.join("speed")).ok();
    let speed = speed.and_then(|text| text.trim().parse().ok()).filter(|speed| *speed > 0);
    let pci_path = std::fs::canonicalize(folder.join("device")).ok();
    let pci_path =
        pci_path.and_then(|path| CString::new(path.into_os_string().into_encoded_bytes()).ok());
    Some(Device {
        name: CString::new(name).ok()?,
        pci_path,
        address,
        speed: speed.unwrap_or(UNKNOWN_SPEED),
    })
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn filters_are_prefixes_exact_names_or_their_opposites() {
        assert!(matches("eth", "eth0"));
        assert!(matches("ib,eth", "eth0"));
        assert!(!matches("ib", "eth0"));
        assert!(!matches("=eth", "eth0"));
        assert!(matches("=eth0", "eth0"));
        assert!(!matches("^eth", "eth0"));
        assert!(matches("^=eth", "eth0"));
        assert!(!matches("^lo,eth", "eth0"));
    }
}
