//! The plan of a host's world, and the packets that were sent in it.

use std::sync::{Arc, RwLock};

use super::super::plan::Plan;
use super::bounds::Bounds;

/// A world.
pub struct Host {
    pub plan: Plan,
    /// The ranks that share memory are the first ones, and rank 0 is the taker.
    pub bounds: Bounds,
    /// Every packet that the network has had in any state. A state knows them by number.
    packets: RwLock<Vec<Arc<Packet>>>,
}

/// A packet in the network.
#[derive(Debug, PartialEq, Eq)]
pub struct Packet {
    pub to: To,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    Aggregator,
    /// All that get a copy of a RESULT to all: the taker, and ranks that do not share.
    All,
    Rank(u16),
}

impl Host {
    pub fn new(plan: Plan, bounds: Bounds) -> Self {
        Self { plan, bounds, packets: RwLock::default() }
    }

    pub fn packet(&self, number: usize) -> Arc<Packet> {
        self.packets.read().expect("no panic")[number].clone()
    }

    /// The number of a packet.
    pub fn number(&self, to: To, bytes: Vec<u8>) -> usize {
        let packet = Packet { to, bytes };
        let mut packets = self.packets.write().expect("no panic");
        packets.iter().position(|known| **known == packet).unwrap_or_else(|| {
            packets.push(Arc::new(packet));
            packets.len() - 1
        })
    }
}
