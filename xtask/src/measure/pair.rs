//! The racks of a comparison with other libraries.

use std::process::Command;

use anyhow::Result;
use switchml_rack::{Aggregator, Binaries, Rack, RackOptions, Shaping};

use super::ranks::meet;

/// Two racks: `ours` with an aggregator, and `plain`, without a program at the switch's ports.
pub struct Pair {
    // Dropped in this order.
    pub aggregator: Aggregator,
    pub ours: Rack,
    pub plain: Rack,
}

impl Pair {
    pub fn new(ranks: usize, binaries: &Binaries) -> Result<Self> {
        let rack = || Rack::new(RackOptions { workers: ranks, ..RackOptions::default() });
        let (ours, plain) = (rack()?, rack()?);
        let aggregator = Aggregator::in_rack(binaries, &ours)?;
        Ok(Self { aggregator, ours, plain })
    }

    /// Gives all links this rate in bits per second, if any, until what this returns is dropped.
    pub fn shape(&self, rate: Option<u64>) -> Result<Vec<Shaping<'_>>> {
        let racks = [&self.ours, &self.plain].into_iter();
        let shape = |rate| racks.map(|rack| Ok(Shaping::new(rack, rate)?)).collect();
        rate.map_or_else(|| Ok(Vec::new()), shape)
    }

    /// Tells a process in torch who it is, and where ranks meet.
    pub fn tell(&self, command: &mut Command, rank: usize, port: usize) {
        command.env("RANK", rank.to_string());
        command.env("WORLD_SIZE", self.ours.workers().len().to_string());
        command.env("GLOO_SOCKET_IFNAME", "eth0").env("OMP_NUM_THREADS", "1");
        meet(command, port);
    }
}
