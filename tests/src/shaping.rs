//! Links of a chosen rate.

use crate::{Error, Namespace, Rack, Racks, network::UP};

/// How long a link may send at full speed after a pause. With less, a timer that is late on a busy
/// machine would cost throughput.
const BURST_MS: u64 = 4;

/// The least size of a bucket in bytes: larger packets are split, and superpackets have up to 64
/// KiB.
const LEAST_BURST: u64 = 128 << 10;

/// The time that a link may queue, similar to a switch.
const QUEUE_MS: u64 = 50;

/// All links of a rack at a rate, in each direction, until this is dropped. A switch host's single
/// port has the rate of all workers' links together.
///
/// Both token buckets of a link are in the worker's namespace: at `eth0` for packets that leave,
/// and at an `ifb` device that arriving packets pass first. A queue at the switch's port, as in
/// reality, would not slow down packets that XDP redirects, because they pass no queueing
/// discipline. So all data paths, and other programs on the workers, see the same links. The
/// uplinks of [`Racks`] have their buckets in the middle of the link.
#[derive(Default)]
pub struct Shaping<'a> {
    /// Interfaces shaped in both directions.
    ends: Vec<(&'a Namespace, String)>,
    /// Interfaces shaped only for packets that leave.
    outlets: Vec<(&'a Namespace, String)>,
}

impl<'a> Shaping<'a> {
    /// Shapes the links to `rate` bits per second, Ethernet headers counted.
    pub fn new(rack: &'a Rack, rate: u64) -> Result<Self, Error> {
        let mut shaping = Self::default();
        rack.workers().iter().try_for_each(|worker| shaping.shape(worker, "eth0", rate))?;
        if let Some(network) = rack.network() {
            shaping.shape(network, UP, rate * rack.workers().len() as u64)?;
        }
        Ok(shaping)
    }

    /// Shapes the link of one worker to `rate`.
    pub fn of(worker: &'a Namespace, rate: u64) -> Result<Self, Error> {
        let mut shaping = Self::default();
        shaping.shape(worker, "eth0", rate)?;
        Ok(shaping)
    }

    /// Shapes the links of all workers to `rate`, and each uplink to `uplink` bits per second.
    pub fn of_racks(racks: &'a Racks, rate: u64, uplink: u64) -> Result<Self, Error> {
        if racks.open_wires().is_some() {
            return Err(Error::WiresOpen);
        }
        let mut shaping = Self::default();
        racks.workers().iter().try_for_each(|worker| shaping.shape(worker, "eth0", rate))?;
        for (wires, end) in racks.uplink_ends() {
            shaping.outlets.push((wires, end.clone()));
            wires.tool("tc", &format!("qdisc add dev {end} {}", bucket(uplink)))?;
        }
        Ok(shaping)
    }

    fn shape(&mut self, namespace: &'a Namespace, device: &str, rate: u64) -> Result<(), Error> {
        self.ends.push((namespace, device.to_owned()));
        let bucket = bucket(rate);
        namespace.tool("ip", "link add ifb0 type ifb")?;
        namespace.tool("ip", "link set ifb0 up")?;
        namespace.tool("tc", &format!("qdisc add dev ifb0 {bucket}"))?;
        namespace.tool("tc", &format!("qdisc add dev {device} ingress"))?;
        let (everything, redirect) =
            ("protocol all u32 match u32 0 0", "action mirred egress redirect dev ifb0");
        namespace
            .tool("tc", &format!("filter add dev {device} ingress {everything} {redirect}"))?;
        namespace.tool("tc", &format!("qdisc add dev {device} {bucket}"))
    }
}

fn bucket(rate: u64) -> String {
    let burst = (rate / 8 * BURST_MS / 1000).max(LEAST_BURST);
    format!("root tbf rate {rate}bit burst {burst} latency {QUEUE_MS}ms")
}

impl Drop for Shaping<'_> {
    fn drop(&mut self) {
        // Something may never have been made.
        for (namespace, device) in self.ends.iter().chain(&self.outlets) {
            let _ = namespace.tool("tc", &format!("qdisc del dev {device} root"));
        }
        for (namespace, device) in &self.ends {
            let _ = namespace.tool("tc", &format!("qdisc del dev {device} ingress"));
            let _ = namespace.tool("ip", "link del ifb0");
        }
    }
}
