//! Which pipelines add up the parts of packets, and the ports by which frames get there. Without
//! I/O.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::repeat_n;
use std::ops::Range;

use super::pipeline_of;
use super::recirculation::{PortsOfParts, own_port};
use crate::entries::MOST_PARTS;

/// The ways to divide the parts of packets, in order, among pipelines: how many each gets. The
/// first pipeline is that of the ranks.
const DIVISIONS: [&[usize]; 8] =
    [&[4], &[3, 1], &[2, 2], &[1, 3], &[2, 1, 1], &[1, 2, 1], &[1, 1, 2], &[1, 1, 1, 1]];

/// A port of the front panel that may be put in loopback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreePort {
    /// Its name, such as `9/0`.
    pub name: String,
    /// Its number.
    pub number: u16,
}

/// What one pipeline does for the packets of ranks at the same or another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The pipeline.
    pub pipeline: u16,
    /// The parts that it adds up.
    pub parts: Range<usize>,
    /// Whether frames come in by the pipeline's own port.
    pub by_own_port: bool,
    /// The ports in loopback by which they come in.
    pub loops: Vec<FreePort>,
}

/// Where the packets of the ranks at one pipeline are added up: one share or more, the parts in
/// order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout(pub Vec<Share>);

/// Ports by which no frames come in again yet.
struct Room {
    /// The pipelines whose own port is left: that of one with ranks is theirs.
    own: BTreeSet<u16>,
    /// The free ports that are left, by pipeline.
    free: BTreeMap<u16, Vec<FreePort>>,
}

/// Finds a layout for the ranks at each of these pipelines, with as few pipelines as possible;
/// `None` where ports are short. `needed` is the number of ports by which frames of ranks at a
/// pipeline come in again to these parts, if any number is enough.
pub fn find(
    with_ranks: &[u16],
    free: &[FreePort],
    needed: impl Fn(u16, Range<usize>) -> Option<usize>,
) -> BTreeMap<u16, Option<Layout>> {
    let mut room = Room::new(with_ranks, free);
    let mut found: BTreeMap<_, _> = with_ranks.iter().map(|pipeline| (*pipeline, None)).collect();
    // No pipeline takes the ports of another that can do with its own.
    for division in DIVISIONS {
        for (pipeline, layout) in found.iter_mut().filter(|(_, layout)| layout.is_none()) {
            *layout = room.take(*pipeline, division, |parts| needed(*pipeline, parts));
        }
    }
    found
}

impl Room {
    fn new(with_ranks: &[u16], free: &[FreePort]) -> Self {
        let mut by_pipeline: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for port in free {
            by_pipeline.entry(pipeline_of(port.number)).or_default().push(port.clone());
        }
        let own = by_pipeline.keys().filter(|pipeline| !with_ranks.contains(pipeline));
        Self { own: own.copied().collect(), free: by_pipeline }
    }

    /// Takes the ports for ranks at a pipeline, if there are enough.
    fn take(
        &mut self,
        at: u16,
        division: &[usize],
        needed: impl Fn(Range<usize>) -> Option<usize>,
    ) -> Option<Layout> {
        let mut others: Vec<_> =
            self.free.keys().copied().filter(|pipeline| *pipeline != at).collect();
        others.sort_by_key(|pipeline| Reverse(self.left(*pipeline)));
        let mut pipelines = [at].into_iter().chain(others);
        let mut begin = 0;
        let mut shares = Vec::new();
        for count in division {
            let parts = begin..begin + count;
            begin += count;
            let pipeline = pipelines.next()?;
            shares.push(self.share(at, pipeline, needed(parts.clone())?, parts)?);
        }
        for share in &shares {
            self.own.remove(&share.pipeline);
            let of_pipeline = self.free.get_mut(&share.pipeline);
            of_pipeline.into_iter().for_each(|free| drop(free.drain(..share.loops.len())));
        }
        Some(Layout(shares))
    }

    /// How many ports of a pipeline others may take.
    fn left(&self, pipeline: u16) -> usize {
        self.own.contains(&pipeline) as usize + self.free.get(&pipeline).map_or(0, Vec::len)
    }

    /// What a pipeline does for ranks at this one with so many ports, if it has them.
    fn share(&self, at: u16, pipeline: u16, ports: usize, parts: Range<usize>) -> Option<Share> {
        let by_own_port = at == pipeline || self.own.contains(&pipeline);
        let loops = ports - by_own_port as usize;
        let free = self.free.get(&pipeline).map_or(&[][..], |free| free);
        let loops = free.get(..loops)?.to_vec();
        Some(Share { pipeline, parts, by_own_port, loops })
    }
}

impl Layout {
    /// All parts at the pipeline of the ranks, with these ports in loopback.
    pub fn at(pipeline: u16, loops: Vec<FreePort>) -> Self {
        let parts = 0..usize::from(MOST_PARTS);
        Self(vec![Share { pipeline, parts, by_own_port: true, loops }])
    }

    /// The ports by which frames come in to each part.
    pub fn ports(&self) -> PortsOfParts {
        let of_parts = self.0.iter().flat_map(|share| repeat_n(share.ports(), share.parts.len()));
        let of_parts: Vec<_> = of_parts.collect();
        of_parts.try_into().expect("a division has all parts")
    }

    /// The ports in loopback.
    pub fn loops(&self) -> impl Iterator<Item = &FreePort> {
        self.0.iter().flat_map(|share| &share.loops)
    }
}

impl Share {
    /// The ports by which frames come in.
    pub fn ports(&self) -> Vec<u16> {
        let own = self.by_own_port.then(|| own_port(self.pipeline));
        own.into_iter().chain(self.loops.iter().map(|port| port.number)).collect()
    }
}
