//! The chains of this host's firewall, which rules that let packets pass go into.

use std::process::{Command, Stdio};

use serde::Deserialize;

/// What `nft --json list chains` prints.
#[derive(Deserialize)]
struct Listing {
    nftables: Vec<Entry>,
}

/// One of the things that it lists.
#[derive(Deserialize)]
struct Entry {
    chain: Option<Chain>,
}

#[derive(Deserialize)]
struct Chain {
    family: String,
    table: String,
    name: String,
    /// Those of base chains alone.
    #[serde(rename = "type")]
    kind: Option<String>,
    hook: Option<String>,
}

/// The chains that IP packets of one kind pass at a hook (`input`, `output`), as rules name them;
/// `None` if they cannot be seen, which takes privilege, and `nft`.
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
