//! The memory in which the ranks of this host add up their packets before they are sent, and in
//! which they read results that one of them has received; and how these ranks meet.

#![allow(unsafe_code)]

mod bell;
mod meeting;
mod results;
mod segment;

use std::borrow::Cow;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use switchml_protocol::RANKS_PER_GROUP;
use switchml_worker_core::local_sum::{self, Cell, Claimed, Memory, Readable};

use crate::control::Assigned;
use crate::interface::unspecified;
use bell::Bell;
use meeting::Topic;
pub(crate) use results::LocalResults;
use segment::{Extent, MOST_SHARDS, Place, Segment};

/// A rank at the meeting of its host's ranks.
pub(crate) struct Meeting {
    meeting: meeting::Meeting,
    topic: Topic,
    place: usize,
    /// The taker of this rank's results, and this rank's bells by shard, if it reads them.
    reads: Option<(u16, Vec<Option<Bell>>)>,
}

impl Meeting {
    /// Meets the ranks of this host that belong to the same session and group, since a partial sum
    /// stays within a group. Must be called before the rank is ready. `None` over loopback, where
    /// there is no link to save. A rank that `gets_copies` of results reads those of the first one
    /// instead, if it can.
    ///
    /// # Errors
    /// When the ranks that are there have no memory to share.
    pub fn enter(assigned: &Assigned, rank: u16, gets_copies: bool) -> io::Result<Option<Self>> {
        let &Assigned { job, epoch, data_address: aggregator, .. } = assigned;
        let local = local_address(aggregator)?;
        if local.is_loopback() {
            return Ok(None);
        }
        let slots = usize::from(assigned.slots);
        let (shards, lanes) = (assigned.shards().count(), usize::from(assigned.max_lanes));
        let extent = Extent { shards, slots, lanes };
        let group = rank / RANKS_PER_GROUP;
        let topic = Topic { aggregator, local, job, epoch, group, extent };
        let meeting = meeting::Meeting::enter(&topic)?;
        let place = meeting.segment.enter(rank);
        let place = place.ok_or_else(|| io::Error::other("more than 24 of them share memory"))?;
        let may_read = gets_copies && place > 0 && shards <= MOST_SHARDS;
        let reads = if may_read { reads(&topic, &meeting.segment, place) } else { None };
        Ok(Some(Self { meeting, topic, place, reads }))
    }

    /// The rank whose copies of results this one reads, if it needs none of its own.
    pub fn taker(&self) -> Option<u16> {
        Some(self.reads.as_ref()?.0)
    }

    /// The ranks that have met, once all ranks are ready; `None` if there are no others.
    pub fn end(self) -> Option<Team> {
        let Self { meeting, topic, place, reads } = self;
        let segment = meeting.end();
        let ranks = segment.ranks().filter(|ranks| ranks.len() > 1)?;
        let bells = reads.map(|(_, bells)| bells);
        Some(Team { segment, topic, ranks, place, bells })
    }
}

/// Has this rank read the results of the first one (rule 38.1), and returns that and the bells by
/// which it is woken; `None` if it cannot, and must get its own.
fn reads(topic: &Topic, segment: &Segment, place: usize) -> Option<(u16, Vec<Option<Bell>>)> {
    let bell = |shard| Bell::new(&topic.bell(place, shard)?).map(Some);
    let bells = (0..topic.extent.shards).map(bell).collect::<io::Result<_>>().ok()?;
    let taker = segment.first()?;
    segment.read_along(place);
    Some((taker, bells))
}

/// The source address of packets to `aggregator`.
fn local_address(aggregator: SocketAddr) -> io::Result<IpAddr> {
    let socket = UdpSocket::bind(unspecified(aggregator))?;
    // Sends nothing: it only looks up the route.
    socket.connect(aggregator)?;
    Ok(socket.local_addr()?.ip())
}

/// The ranks of this host that share memory.
pub(crate) struct Team {
    segment: Arc<Segment>,
    /// The ranks in the order of their places.
    ranks: Vec<u16>,
    topic: Topic,
    /// The place of this rank.
    place: usize,
    /// This rank's bells by shard, if it reads results of the first one.
    bells: Option<Vec<Option<Bell>>>,
}

impl Team {
    /// The ranks of the team, including this one, in ascending order.
    pub fn ranks(&self) -> Vec<u16> {
        let mut ranks = self.ranks.clone();
        ranks.sort_unstable();
        ranks
    }

    /// The local sums of a shard; a superpacket carries `batch` packets.
    pub fn sums(&self, shard: usize, batch: usize) -> LocalSums {
        LocalSums::new(self.memory(shard), self.place, self.ranks.len(), batch)
    }

    /// The local results of a shard: those that this rank posts for others, or reads; `None` if it
    /// does neither. To be called once for each shard.
    pub fn results(&mut self, shard: usize) -> Option<LocalResults> {
        let (memory, ranks) = (self.memory(shard), self.ranks.len());
        if let Some(bells) = &mut self.bells {
            return Some(LocalResults::reading(memory, ranks, bells.get_mut(shard)?.take()?));
        }
        let bell = |place| Some((place, self.topic.bell(place, shard).ok()?));
        let others: Vec<_> = self.segment.readers().filter_map(bell).collect();
        if self.place > 0 || others.is_empty() {
            return None;
        }
        Some(LocalResults::posting(memory, ranks, others))
    }

    fn memory(&self, shard: usize) -> Shard {
        Shard { segment: Arc::clone(&self.segment), shard, place: self.place }
    }
}

/// The local sums of a driver.
pub(crate) type LocalSums = local_sum::LocalSums<Shard>;

/// A shard's part of the shared memory, as this rank uses it.
pub(crate) struct Shard {
    segment: Arc<Segment>,
    shard: usize,
    /// The place of this rank.
    place: usize,
}

impl Shard {
    fn at(&self, rank: usize, slot: u16) -> Place {
        Place { shard: self.shard, rank, slot }
    }
}

impl Memory for Shard {
    fn change<T>(&self, slot: u16, change: impl Fn(Cell) -> Option<(Cell, T)>) -> Option<T> {
        let word = self.segment.cell(self.shard, slot);
        let mut seen = word.load(Ordering::Acquire);
        loop {
            let (next, besides) = change(Cell::from_word(seen))?;
            let next = next.word();
            match word.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(besides),
                Err(other) => seen = other,
            }
        }
    }

    fn write(&mut self, claimed: &Claimed, fill: impl FnOnce(&mut [u8])) {
        let place = self.at(self.place, claimed.slot());
        // SAFETY: the cell is claimed, so nobody reads this rank's packet before it arrives.
        fill(unsafe { self.segment.packet_mut(place, claimed.lanes()) });
    }

    fn read(&self, readable: &Readable) -> Cow<'_, [u8]> {
        let place = self.at(readable.place(), readable.slot());
        // SAFETY: nobody writes the packet while it may be read.
        Cow::Borrowed(unsafe { self.segment.packet(place, readable.lanes()) })
    }
}
