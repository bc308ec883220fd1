//! This host's firewall: the chains for rules that let packets pass, and whether it drops packets
//! of a group.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Deserialize;
use socket2::{Domain, Socket, Type};
use switchml_worker::interface::unspecified;

/// Wait for a packet that does not leave this host.
const PATIENCE: Duration = Duration::from_millis(200);

/// Whether packets to a group are dropped on their way in, at the interface towards `target`. This
/// sends a packet that the kernel loops back: it passes the same hook as one from the network,
/// except that rules about the sender may differ.
pub fn drops_group(group: SocketAddrV4, target: SocketAddr) -> io::Result<bool> {
    let sender = UdpSocket::bind(unspecified(target))?;
    sender.connect(target)?;
    let IpAddr::V4(local) = sender.local_addr()?.ip() else { return Ok(false) };
    // The receiver is set up like a rank's.
    let receiver = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    receiver.set_reuse_address(true)?;
    receiver.bind(&SocketAddr::from(group).into())?;
    receiver.join_multicast_v4(group.ip(), &local)?;
    receiver.set_read_timeout(Some(PATIENCE))?;
    let sender = Socket::from(UdpSocket::bind((local, 0))?);
    sender.set_multicast_if_v4(&local)?;
    sender.set_multicast_loop_v4(true)?;
    // The packet does not leave this host. Ranks of other jobs here drop it because it is too
    // short.
    sender.set_multicast_ttl_v4(0)?;
    let receiver = UdpSocket::from(receiver);
    let sent_by = UdpSocket::from(sender);
    sent_by.send_to(&[0], group)?;
    let from = sent_by.local_addr()?;
    let mut packet = [0; 2048];
    loop {
        match receiver.recv_from(&mut packet) {
            Ok((_, sender)) if sender == from => return Ok(false),
            // The packet came from the aggregator.
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock) => return Ok(true),
            Err(error) => return Err(error),
        }
    }
}

/// The output of `nft --json list chains`.
#[derive(Deserialize)]
struct Listing {
    nftables: Vec<Entry>,
}

/// An entry of the listing.
#[derive(Deserialize)]
struct Entry {
    chain: Option<Chain>,
}

#[derive(Deserialize)]
struct Chain {
    family: String,
    table: String,
    name: String,
    /// The type, which only base chains have.
    #[serde(rename = "type")]
    kind: Option<String>,
    hook: Option<String>,
}

/// The chains that IP packets of one version pass at a hook (`input`, `output`), as rules name
/// them; `None` if they cannot be seen, which takes privilege, and `nft`.
pub fn chains(hook: &str, is_ipv6: bool) -> Option<Vec<String>> {
    let mut command = Command::new("nft");
    command.args(["--json", "list", "chains"]).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    parse(&output.stdout, hook, is_ipv6)
}

fn parse(listing: &[u8], hook: &str, is_ipv6: bool) -> Option<Vec<String>> {
    let family = if is_ipv6 { "ip6" } else { "ip" };
    let Listing { nftables } = serde_json::from_slice(listing).ok()?;
    let chains = nftables.into_iter().filter_map(|entry| entry.chain).filter(|chain| {
        chain.kind.as_deref() == Some("filter")
            && chain.hook.as_deref() == Some(hook)
            && [family, "inet"].contains(&chain.family.as_str())
    });
    let name = |Chain { family, table, name, .. }| format!("{family} {table} {name}");
    Some(chains.map(name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_of_the_hook_are_found() {
        let listing = br#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
            {"chain": {"family": "inet", "table": "filter", "name": "out", "handle": 1,
                       "type": "filter", "hook": "output", "prio": 0, "policy": "drop"}},
            {"chain": {"family": "ip", "table": "nat", "name": "out", "handle": 1,
                       "type": "nat", "hook": "output", "prio": 0, "policy": "accept"}},
            {"chain": {"family": "ip6", "table": "filter", "name": "out", "handle": 1,
                       "type": "filter", "hook": "output", "prio": 0, "policy": "accept"}},
            {"chain": {"family": "inet", "table": "filter", "name": "mine", "handle": 2}}]}"#;
        let both = "inet filter out".to_owned();
        assert_eq!(parse(listing, "output", false), Some(vec![both.clone()]));
        assert_eq!(parse(listing, "output", true), Some(vec![both, "ip6 filter out".to_owned()]));
        assert_eq!(parse(listing, "input", false), Some(vec![]));
        assert_eq!(parse(b"not allowed", "input", false), None);
    }
}
