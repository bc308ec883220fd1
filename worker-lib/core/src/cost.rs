//! How long an all-reduce takes if links are all that takes time: with aggregators, and in a ring.
//!
//! Every host has a tensor of M bytes and a link of B each way. Times are in units of M / B, the
//! time that a host needs to send its tensor; `docs/research/scaling.md` derives them. What headers
//! add is counted apart, by [`Framing`].
//!
//! `switchml-worker plan` and `doctor`, the daemon's log (`userspace/core/src/shared_ports.rs`) and
//! `cargo xtask bench stripes` tell these times.

use switchml_protocol::{LANES_PER_BLOCK, MAX_LANES};

use crate::numerics::Codec;
use crate::packet::{ip_packet_len, packet_len};

/// The time of a ring with so many members, each of which sends to the next.
pub fn ring(members: u32) -> f64 {
    2.0 * (f64::from(members) - 1.0) / f64::from(members)
}

/// The time with aggregators on `beside` of the ranks' hosts, and dedicated ones that have
/// `capacity` times the link of a rank's host together; there is at least one of either. Each adds
/// up the part of rule 36.4.
pub fn aggregated(hosts: u32, beside: u32, capacity: f64) -> f64 {
    let (n, m) = (f64::from(hosts), f64::from(beside));
    if beside == 0 || capacity >= n {
        // Each host's tensor comes in at the dedicated aggregators, and leaves its own link.
        return (n / capacity).max(1.0);
    }
    load(hosts, part_beside_ranks(n, m, capacity))
}

/// How often the link of a rank's host carries a tensor each way in a sum, if an aggregator on that
/// host adds up this part, 0 without one, and the host's ranks share memory: their contributions to
/// the other parts leave, and the results of this one, for each of the other hosts.
pub fn load(hosts: u32, part: f64) -> f64 {
    1.0 + (f64::from(hosts) - 2.0) * part
}

/// The part y of an aggregator on a rank's host, of which there are m, beside dedicated ones that
/// have c times the link of a rank together:
///
/// ```text
/// m y + c t / n = 1,  t = 1 + (n - 2) y   =>   y = (n - c) / (n m + c (n - 2))
/// ```
pub(crate) fn part_beside_ranks(n: f64, m: f64, c: f64) -> f64 {
    (n - c) / (n * m + c * (n - 2.0))
}

/// How elements travel. Frames are counted as Linux counts them: with 14 bytes of Ethernet's, and
/// without preamble and checksum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Framing {
    /// In our packets, of so many lanes, as sums of floats: with a word of exponents for each.
    Packets {
        /// Lanes of a full packet.
        lanes: usize,
    },
    /// In a stream of TCP over IPv4, with timestamps, at this MTU.
    Tcp {
        /// The largest IP packet, in bytes.
        mtu: usize,
    },
}

impl Framing {
    /// The largest packets at an MTU, without tags (rule 11.4).
    pub fn packets_at(mtu: usize) -> Self {
        let blocks = mtu.saturating_sub(packet_headers()) / 4 / LANES_PER_BLOCK;
        Self::Packets { lanes: (blocks * LANES_PER_BLOCK).min(MAX_LANES) }
    }

    /// Bytes of a link for each byte that it carries.
    pub fn overhead(self) -> f64 {
        match self {
            Self::Packets { lanes } => {
                let (payload, headers) = ((4 * lanes) as f64, (ETHERNET + packet_headers()) as f64);
                (payload + headers) / payload * (1.0 + 1.0 / lanes as f64)
            }
            Self::Tcp { mtu } => (mtu + ETHERNET) as f64 / (mtu - TCP_HEADERS) as f64,
        }
    }
}

const ETHERNET: usize = 14;
/// IPv4's, TCP's, and its timestamps.
const TCP_HEADERS: usize = 20 + 20 + 12;

const fn packet_headers() -> usize {
    ip_packet_len(packet_len(0), false)
}

/// Bytes in packets of `bytes` of elements: fewer if elements travel in 16 or 8 bits.
pub fn bytes_in_packets(bytes: usize, codec: Codec) -> f64 {
    let payload = 4 * MAX_LANES;
    bytes as f64 * payload as f64 / codec.bytes_per_chunk(MAX_LANES) as f64
}

/// Seconds that a link of so many bits per second is busy for, in a call of so many of the units
/// above.
pub fn seconds(units: f64, bytes: f64, framing: Framing, link: u64) -> f64 {
    units * bytes * framing.overhead() * 8.0 / link as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Precision, ReduceOp, Reduction};

    /// Rounded to two places, as docs/research/scaling.md has them.
    fn rounded(time: f64) -> f64 {
        (time * 100.0).round() / 100.0
    }

    /// The table of docs/research/scaling.md: 2 n (n - 1) / (n^2 + c n - 2 c), and n / c.
    #[test]
    fn times_are_those_of_the_theorem() {
        let row = |n: u32| {
            let both = [0, 1, 2, n].map(|c| rounded(aggregated(n, n, c.into())));
            (rounded(ring(n)), both, aggregated(n, 0, 1.0))
        };
        // 2 * 3 / 4 = 1.5; with c = 1 24 / 18, with c = 2 24 / 20.
        assert_eq!(row(4), (1.5, [1.5, 1.33, 1.2, 1.0], 4.0));
        // 2 * 7 / 8 = 1.75; with c = 1 112 / 70, with c = 2 112 / 76.
        assert_eq!(row(8), (1.75, [1.75, 1.6, 1.47, 1.0], 8.0));
    }

    #[test]
    fn a_ring_of_four_beside_one_spare_host() {
        // 4 / 1.5, and 1.333 / 1.5.
        assert_eq!(rounded(aggregated(4, 0, 1.0) / ring(4)), 2.67);
        assert_eq!(rounded(aggregated(4, 4, 1.0) / ring(4)), 0.89);
    }

    #[test]
    fn nothing_is_faster_than_a_hosts_own_link() {
        assert_eq!(aggregated(4, 0, 40.0), 1.0);
        assert_eq!(aggregated(4, 4, 40.0), 1.0);
        // A single aggregator, on a rank's host, takes in what the three others send.
        assert_eq!(aggregated(4, 1, 0.0), 3.0);
        assert_eq!(aggregated(2, 2, 0.0), 1.0);
    }

    /// Of 4 hosts without a dedicated aggregator each sends 3 / 4 and 3 times 1 / 4. A host alone
    /// has nobody to send to.
    #[test]
    fn a_part_leaves_its_host_for_each_of_the_others() {
        assert_eq!([load(4, 0.25), load(4, 0.0), load(2, 0.5), load(1, 1.0)], [1.5, 1.0, 1.0, 0.0]);
    }

    /// 352 lanes are 1408 bytes, with 20 + 8 + 32 of headers and 14 of Ethernet's; 353 words travel
    /// for 352. A segment of TCP has 1448 bytes in a frame of 1514.
    #[test]
    fn headers_and_exponents_are_counted() {
        let packets = Framing::packets_at(1500);
        assert_eq!(packets, Framing::Packets { lanes: 352 });
        assert!((packets.overhead() - 1482.0 / 1408.0 * 353.0 / 352.0).abs() < 1e-12);
        assert!((Framing::Tcp { mtu: 1500 }.overhead() - 1514.0 / 1448.0).abs() < 1e-12);
        assert_eq!(Framing::packets_at(3400), Framing::Packets { lanes: 768 });
        assert_eq!(Framing::packets_at(9000), Framing::Packets { lanes: 768 });
        // 16 MiB at 1 Gb/s: 134.2 ms without headers.
        let milliseconds = 1e3 * seconds(1.0, 16_777_216.0, packets, 1_000_000_000);
        assert_eq!(rounded(milliseconds), 141.67);
    }

    #[test]
    fn fewer_bits_are_fewer_bytes() {
        let bytes = |precision, ranks| {
            let sum = Reduction::new(ReduceOp::Sum, precision);
            bytes_in_packets(1 << 20, Codec::reduction(DType::F32, sum, ranks, 1 << 18).unwrap())
        };
        assert_eq!(bytes(Precision::Exact, 4), 1_048_576.0);
        assert_eq!(bytes(Precision::Bits16, 4), 524_288.0);
        assert_eq!(bytes(Precision::Bits8, 4), 262_144.0);
        assert_eq!(bytes(Precision::Bits8, 33), 524_288.0, "among so many, in 16 bits");
    }
}
