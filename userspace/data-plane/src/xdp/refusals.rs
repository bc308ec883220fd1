//! What helps when a driver refuses native XDP, by its own sentence.
//!
//! Drivers' sentences have no common form, but they name what stands in the way: the MTU, the
//! number of queues, or an offload.

/// The MTU of Ethernet, which every driver with XDP takes.
const USUAL_MTU: u32 = 1500;

/// Words of sentences about frames that are too long.
const OF_MTU: [&str; 7] = ["mtu", "jumbo", "frame", "frames", "frags", "linear", "large"];
/// Words of sentences about queues.
const OF_QUEUES: [&str; 6] = ["queue", "queues", "ring", "rings", "channel", "channels"];
/// Words of sentences about offloads, and the features of `ethtool -K` that these are.
const OF_OFFLOADS: [(&str, &str); 6] = [
    ("lro", "lro"),
    ("gro_hw", "rx-gro-hw"),
    ("hw-gro", "rx-gro-hw"),
    ("rsc", "lro"),
    ("csum", "rx"),
    ("checksum", "rx"),
];

/// Whether the sentence says that the driver has no native XDP. (net/core/dev.c)
pub fn is_for_lack_of_xdp(said: &str) -> bool {
    said.to_ascii_lowercase().contains("driver does not support xdp in native mode")
}

/// What helps against this refusal at an interface with this MTU.
pub fn remedy(said: Option<&str>, name: &str, mtu: u32) -> String {
    let said = said.unwrap_or_default().to_ascii_lowercase();
    let is_in_word = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
    let words: Vec<_> = said.split(|letter| !is_in_word(letter)).collect();
    let has = |word: &&str| words.contains(word);
    let offload = OF_OFFLOADS.iter().find(|(word, _)| words.iter().any(|said| said.contains(word)));
    let change = if OF_QUEUES.iter().any(has) {
        Some(format!("change the number of queues (`ethtool -L {name} combined N`, shown by `-l`)"))
    } else if let Some((_, feature)) = offload {
        Some(format!("turn that off (`ethtool -K {name} {feature} off`)"))
    } else if OF_MTU.iter().any(has) || (said.is_empty() && mtu > USUAL_MTU) {
        Some(format!("lower the MTU on both ends (`ip link set {name} mtu {USUAL_MTU}`)"))
    } else {
        None
    };
    let log = if said.is_empty() { " (the kernel's log may say more)" } else { "" };
    match change {
        Some(change) => format!("{change}{log}, or use --mode bundle"),
        None => format!("use --mode bundle{log}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sentences of the kernel's drivers, where NL_SET_ERR_MSG_MOD puts the driver's name first.
    #[test]
    fn a_drivers_sentence_has_its_remedy() {
        let mtu = "lower the MTU on both ends (`ip link set p0 mtu 1500`), or use --mode bundle";
        let queues = "change the number of queues (`ethtool -L p0 combined N`, shown by `-l`), or \
                      use --mode bundle";
        let lro = "turn that off (`ethtool -K p0 lro off`), or use --mode bundle";
        for (said, expected) in [
            ("veth: Peer MTU is too large to set XDP", mtu),
            ("veth: XDP expects number of rx queues not less than peer tx queues", queues),
            ("virtio_net: MTU too large to enable XDP", mtu),
            ("virtio_net: Can't set XDP while host is implementing LRO, disable LRO first", lro),
            (
                "virtio_net: XDP expects header/data in single page, any_header_sg required",
                "use --mode bundle",
            ),
            ("igc: Jumbo frames not supported", mtu),
            ("vmxnet3: MTU too large for XDP", mtu),
            ("hv_netvsc: XDP: mtu too large", mtu),
            ("hv_netvsc: XDP: not support LRO", lro),
            ("mtk_soc_eth: XDP not supported with HWLRO", lro),
            ("mvneta: Hardware Buffer Management not supported on XDP", "use --mode bundle"),
        ] {
            assert_eq!(remedy(Some(said), "p0", 1500), expected, "{said}");
        }
    }

    #[test]
    fn without_a_sentence_a_large_mtu_is_the_likely_cause() {
        assert_eq!(
            remedy(None, "p0", 9000),
            "lower the MTU on both ends (`ip link set p0 mtu 1500`) (the kernel's log may say \
             more), or use --mode bundle"
        );
        assert_eq!(remedy(None, "p0", 1500), "use --mode bundle (the kernel's log may say more)");
    }

    #[test]
    fn the_kernel_says_when_a_driver_has_none() {
        assert!(is_for_lack_of_xdp("Underlying driver does not support XDP in native mode"));
        assert!(!is_for_lack_of_xdp("veth: Peer MTU is too large to set XDP"));
    }
}
