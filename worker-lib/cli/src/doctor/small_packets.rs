//! Packets by RDMA that are smaller than they could be: the port's path MTU against the interface's
//! MTU, and the lanes that come of it (rule 37.6 of `docs/spec`).

use std::fmt;

use switchml_protocol::LANES_PER_BLOCK;
use switchml_protocol::node::roce::AROUND;
use switchml_worker::rdma::{DevicePort, Mtu};
use switchml_worker_core::packet::{ip_packet_len, packet_len};

use super::fix::{Fix, HERE};

/// The sizes that a path MTU can have, and the bytes that an interface's MTU holds besides.
const PATH_MTUS: [usize; 5] = [256, 512, 1024, 2048, 4096];
const BESIDE: usize = 96;

/// What a job's packets are like.
pub struct Packets {
    /// The most lanes that the aggregator takes.
    pub max_lanes: usize,
    /// Bytes of their tags.
    pub tag_len: usize,
    /// Whether they go over IPv6.
    pub is_ipv6: bool,
}

impl Packets {
    /// The most lanes with this path MTU.
    fn lanes(&self, path_mtu: usize) -> usize {
        let room = path_mtu.saturating_sub(packet_len(0) + self.tag_len) / 4;
        (room / LANES_PER_BLOCK * LANES_PER_BLOCK).min(self.max_lanes)
    }

    /// Bytes of the IP packet with so many lanes.
    fn size(&self, lanes: usize) -> usize {
        ip_packet_len(packet_len(lanes) + self.tag_len + AROUND, self.is_ipv6)
    }
}

/// Packets that are smaller than they could be, or larger than what the interface takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallPackets {
    port: DevicePort,
    /// The interface towards the aggregator, and its MTU.
    interface: String,
    mtu: usize,
    /// Lanes of a packet, and bytes of its IP packet.
    lanes: usize,
    size: usize,
    /// Lanes that a packet could have, and the interface's MTU that they take.
    most_lanes: usize,
    needed: usize,
}

impl SmallPackets {
    /// Such packets of a port below an interface with this MTU.
    pub fn find(port: &DevicePort, interface: &str, mtu: usize, packets: &Packets) -> Option<Self> {
        let Mtu { active, most } = port.mtu;
        let (lanes, most_lanes) = (packets.lanes(active), packets.lanes(most));
        let least = PATH_MTUS.into_iter().find(|least| packets.lanes(*least) == most_lanes)?;
        let size = packets.size(lanes);
        (lanes < most_lanes || size > mtu).then(|| Self {
            port: port.clone(),
            interface: interface.to_owned(),
            mtu,
            lanes,
            size,
            most_lanes,
            needed: least + BESIDE,
        })
    }

    /// Whether the interface takes more than the port sends, so that its MTU is not the limit.
    fn is_of_port(&self) -> bool {
        self.mtu >= self.needed
    }

    /// The command for more lanes.
    pub fn fix(&self) -> Fix {
        let Self { port: DevicePort { device, port, .. }, interface, needed, .. } = self;
        match self.is_of_port() {
            true => Fix {
                host: format!("{HERE}, for the interface below the device, whose MTU is too small"),
                command: format!("rdma link show {device}/{port}"),
            },
            false => Fix {
                host: "each rank's host, the aggregator's, and switches between".to_owned(),
                command: format!("ip link set dev {interface} mtu {needed}"),
            },
        }
    }
}

impl fmt::Display for SmallPackets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, interface, mtu, lanes, size, most_lanes, needed } = self;
        let (device, active) = (&port.device, port.mtu.active);
        if size > mtu {
            return write!(
                f,
                "large packets: {device} has a path MTU of {active}, so packets of {lanes} lanes \
                 take {size} bytes, and {interface} takes {mtu}"
            );
        }
        write!(
            f,
            "small packets: {device} has a path MTU of {active}, so packets have {lanes} lanes; \
             they could have {most_lanes} "
        )?;
        match self.is_of_port() {
            true => write!(f, "by the MTU of {interface}, which is {mtu}"),
            false => write!(f, "with an MTU of {needed} instead of {mtu} on {interface}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(active: usize, most: usize) -> DevicePort {
        DevicePort { device: "mlx5_0".to_owned(), port: 1, mtu: Mtu { active, most } }
    }

    fn find(active: usize, most: usize, mtu: usize, max_lanes: usize) -> Option<SmallPackets> {
        let packets = Packets { max_lanes, tag_len: 0, is_ipv6: false };
        SmallPackets::find(&port(active, most), "eth0", mtu, &packets)
    }

    /// Rule 37.6: 224 lanes with an MTU of 1500, and 768 with 4192.
    #[test]
    fn a_larger_mtu_is_named_with_its_lanes() {
        let small = find(1024, 4096, 1500, 768).unwrap();
        assert_eq!(
            small.to_string(),
            "small packets: mlx5_0 has a path MTU of 1024, so packets have 224 lanes; they could \
             have 768 with an MTU of 4192 instead of 1500 on eth0"
        );
        assert_eq!(small.fix().command, "ip link set dev eth0 mtu 4192");
        assert_eq!(find(4096, 4096, 4192, 768), None);
    }

    /// 2048 bytes have room for 504 lanes, of which 480 are whole blocks.
    #[test]
    fn only_what_device_and_aggregator_take_is_asked_for() {
        assert_eq!(find(1024, 1024, 9000, 768), None, "the device takes no more");
        assert_eq!(find(1024, 4096, 1500, 224), None, "the aggregator takes no more");
        let small = find(1024, 2048, 1500, 768).unwrap().to_string();
        assert!(small.ends_with("could have 480 with an MTU of 2144 instead of 1500 on eth0"));
        let small = find(1024, 4096, 1500, 352).unwrap().to_string();
        assert!(small.ends_with("could have 352 with an MTU of 2144 instead of 1500 on eth0"));
    }

    #[test]
    fn an_interface_that_takes_more_than_the_port_sends() {
        let small = find(1024, 4096, 4200, 768).unwrap();
        let expected = "they could have 768 by the MTU of eth0, which is 4200";
        assert!(small.to_string().ends_with(expected), "{small}");
        assert_eq!(small.fix().command, "rdma link show mlx5_0/1");
    }

    /// IP, UDP, BTH, DETH, header and ICRC are 20 + 8 + 12 + 8 + 32 + 4 bytes beside 4 * 768 for
    /// lanes; IPv6 takes 20 more.
    #[test]
    fn packets_that_the_interface_does_not_take() {
        let large = find(4096, 4096, 1500, 768).unwrap();
        assert_eq!(
            large.to_string(),
            "large packets: mlx5_0 has a path MTU of 4096, so packets of 768 lanes take 3156 \
             bytes, and eth0 takes 1500"
        );
        assert_eq!(large.fix().command, "ip link set dev eth0 mtu 4192");
        assert_eq!(find(4096, 4096, 3156, 768), None);
        let packets = Packets { max_lanes: 768, tag_len: 0, is_ipv6: true };
        let find = |mtu| SmallPackets::find(&port(4096, 4096), "eth0", mtu, &packets);
        assert_eq!((find(3175).is_some(), find(3176)), (true, None));
    }

    /// 288 bytes have room for 64 lanes behind the header, and with a tag of 8 for 62, of which 32
    /// are a whole block.
    #[test]
    fn tags_take_room() {
        let lanes = |tag_len| Packets { max_lanes: 768, tag_len, is_ipv6: false }.lanes(288);
        assert_eq!([lanes(0), lanes(8)], [64, 32]);
    }
}
