//! The network of a method: one rack, or several with uplinks; and the aggregator of its ranks.

use std::net::IpAddr;

use anyhow::Result;
use switchml_rack::{Aggregator, Binaries, Carried, Namespace, Plane, Rack, Racks, Shaping, Tree};

use super::measured::{Method, Serving as Kind};

/// The network that ranks are in.
pub enum Ground {
    Rack(Box<Rack>),
    Racks(Box<Racks>),
}

impl Ground {
    /// The network that the method needs.
    pub fn new(method: Method, workers: usize) -> Result<Self> {
        let options = method.rack(workers);
        Ok(match method.racks() {
            None => Self::Rack(Box::new(Rack::new(options)?)),
            Some(racks) => Self::Racks(Box::new(Racks::new(racks, options)?)),
        })
    }

    /// All workers, by rank.
    pub fn workers(&self) -> &[Namespace] {
        match self {
            Self::Rack(rack) => rack.workers(),
            Self::Racks(racks) => racks.workers(),
        }
    }

    /// The address of the worker of this rank.
    pub fn address(&self, rank: usize) -> IpAddr {
        match self {
            Self::Rack(_) => Rack::worker_address(rank).into(),
            Self::Racks(racks) => racks.worker_address(rank),
        }
    }

    /// A host that is no worker.
    pub fn top(&self) -> &Namespace {
        match self {
            Self::Rack(rack) => rack.switch(),
            Self::Racks(racks) => racks.root(),
        }
    }

    /// The address of that host.
    pub fn top_address(&self) -> IpAddr {
        match self {
            Self::Rack(rack) => rack.aggregator_address(),
            Self::Racks(racks) => racks.root_address(),
        }
    }

    /// Shapes all links, uplinks included, to `rate` bits per second.
    pub fn shape(&self, rate: u64) -> Result<Shaping<'_>> {
        Ok(match self {
            Self::Rack(rack) => Shaping::new(rack, rate)?,
            Self::Racks(racks) => Shaping::of_racks(racks, rate, rate)?,
        })
    }

    /// The bytes that each uplink has carried so far.
    pub fn carried(&self) -> Result<Vec<Carried>> {
        Ok(match self {
            Self::Rack(_) => Vec::new(),
            Self::Racks(racks) => racks.carried()?,
        })
    }

    /// Bytes that the uplinks carried since then, up and down, of the one that carried most.
    pub fn carried_since(&self, before: &[Carried]) -> Result<Option<[f64; 2]>> {
        let now = self.carried()?;
        let pairs = || now.iter().zip(before);
        let up = pairs().map(|(now, before)| now.up - before.up).max();
        let down = pairs().map(|(now, before)| now.down - before.down).max();
        Ok(up.zip(down).map(|(up, down)| [up as f64, down as f64]))
    }
}

/// The aggregator of a method's ranks.
pub enum Serving {
    One(Aggregator),
    Tree(Tree),
}

impl Serving {
    /// Starts it, if the method has one.
    pub fn start(method: Method, ground: &Ground, binaries: &Binaries) -> Result<Option<Self>> {
        Ok(Some(match (method.serving(), ground) {
            (Kind::Nothing, _) => return Ok(None),
            (Kind::Software, Ground::Rack(rack)) => {
                Self::One(Aggregator::software_in_rack(binaries, rack)?)
            }
            (Kind::Bundles(options), Ground::Rack(rack)) => {
                Self::One(Aggregator::in_rack_with(binaries, rack, options)?)
            }
            (_, Ground::Rack(rack)) => Self::One(Aggregator::in_rack(binaries, rack)?),
            (Kind::Forwarding, Ground::Racks(racks)) => {
                Self::Tree(Tree::without_combiners(binaries, racks, Plane::Programs)?)
            }
            (Kind::Software, Ground::Racks(racks)) => {
                Self::Tree(Tree::new(binaries, racks, Plane::Software)?)
            }
            (_, Ground::Racks(racks)) => Self::Tree(Tree::new(binaries, racks, Plane::Programs)?),
        }))
    }

    /// The control plane that a rank joins.
    pub fn control(&self, rank: usize) -> &str {
        match self {
            Self::One(aggregator) => aggregator.control(),
            Self::Tree(tree) => tree.control(rank),
        }
    }

    /// The fingerprint of its certificate, if it has one.
    pub fn fingerprint(&self) -> Option<&str> {
        match self {
            Self::One(aggregator) => {
                Some(aggregator.fingerprint()).filter(|fingerprint| !fingerprint.is_empty())
            }
            Self::Tree(_) => None,
        }
    }

    /// The daemons, by process.
    pub fn processes(&mut self) -> Vec<u32> {
        match self {
            Self::One(aggregator) => vec![aggregator.process().id()],
            Self::Tree(tree) => {
                let root = tree.root().process().id();
                let combiners = tree.combiners().iter_mut().flatten();
                combiners.map(|combiner| combiner.process().id()).chain([root]).collect()
            }
        }
    }

    /// Ends it cleanly.
    pub fn stop(self) -> Result<()> {
        match self {
            Self::One(aggregator) => aggregator.stop()?,
            Self::Tree(tree) => tree.stop()?,
        }
        Ok(())
    }
}
