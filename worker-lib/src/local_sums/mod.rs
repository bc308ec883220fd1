//! The memory in which the ranks of this host add up their packets before they are sent, and in
//! which they read results that one of them has received; and how these ranks meet. If all ranks
//! of the job meet, and none has an aggregator elsewhere, that memory is their aggregator.

#![allow(unsafe_code)]

mod bell;
mod meeting;
mod results;
mod segment;
mod slots;

use std::borrow::Cow;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::os::unix::net as unix;
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
use slots::LocalSlots;

/// A rank at the meeting of its host's ranks.
pub(crate) struct Meeting {
    meeting: meeting::Meeting,
    topic: Topic,
    place: usize,
    /// This rank's bells by shard, if others can wake it.
    bells: Option<OwnBells>,
    /// The taker of this rank's results, if it reads them.
    taker: Option<u16>,
}

/// Bells of a rank by shard, until its drivers take them.
type OwnBells = Vec<Option<Bell>>;

/// How a rank gets results without shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Service {
    /// Whether ranks serve each other.
    pub by_peers: bool,
    /// Whether the rank gets results as copies.
    pub by_copies: bool,
}

impl Meeting {
    /// Meets the ranks of this host that belong to the same session and group, since a partial sum
    /// stays within a group. Must be called before the rank is ready. `None` over loopback, where
    /// there is no link to save, unless memory can replace the aggregator. A rank that gets copies
    /// of results reads those of the first one instead, if it can.
    ///
    /// # Errors
    /// When the ranks that are there have no memory to share.
    pub fn enter(assigned: &Assigned, rank: u16, service: Service) -> io::Result<Option<Self>> {
        let &Assigned { job, epoch, data_address: aggregator, .. } = assigned;
        let local = local_address(aggregator)?;
        if local.is_loopback() && !service.by_peers {
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
        let reads = service.by_copies && place > 0 && !local.is_loopback();
        let bells = if reads || service.by_peers { bells(&topic, place) } else { None };
        if bells.is_some() && service.by_peers {
            meeting.segment.equip(place);
        }
        // Rule 38.1.
        let taker = meeting.segment.first().filter(|_| reads && bells.is_some());
        if taker.is_some() {
            meeting.segment.read_along(place);
        }
        Ok(Some(Self { meeting, topic, place, bells, taker }))
    }

    /// The rank whose copies of results this one reads, if it needs none of its own.
    pub fn taker(&self) -> Option<u16> {
        self.taker
    }

    /// The ranks that have met, of all `ranks` of the job, once all are ready; `None` if there are
    /// no others, or only memory that replaces the aggregator would help and some are elsewhere.
    pub fn end(self, ranks: u16) -> Option<Team> {
        let Self { meeting, topic, place, bells, taker } = self;
        let segment = meeting.end();
        let is_whole = segment.has_all_equipped(ranks.into());
        if topic.local.is_loopback() && !is_whole {
            return None;
        }
        let ranks = segment.ranks().filter(|ranks| ranks.len() > 1)?;
        Some(Team { segment, topic, ranks, place, bells, reads: taker.is_some(), is_whole })
    }
}

/// The bells of the rank at a place; `None` if others cannot wake it.
fn bells(topic: &Topic, place: usize) -> Option<OwnBells> {
    let bell = |shard| Bell::new(&topic.bell(place, shard)?).map(Some);
    let shards = topic.extent.shards;
    (shards <= MOST_SHARDS).then(|| (0..shards).map(bell).collect::<io::Result<_>>().ok())?
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
    /// This rank's bells by shard, if others can wake it.
    bells: Option<OwnBells>,
    /// Whether this rank reads results of the first one.
    reads: bool,
    /// Whether all ranks of the job are here, and can share slots.
    is_whole: bool,
}

/// What ranks of a host do for a shard in their memory.
pub(crate) enum SharedMemory {
    /// All of it: they need no aggregator.
    Slots(LocalSlots),
    /// They add up what they send; and this rank posts results for others, or reads them, or does
    /// neither.
    Sums(LocalSums, Option<LocalResults>),
}

impl SharedMemory {
    /// The results that this rank posts for others, or reads, if it does.
    pub fn results(&mut self) -> Option<&mut LocalResults> {
        match self {
            Self::Slots(_) => None,
            Self::Sums(_, results) => results.as_mut(),
        }
    }

    /// The next packet for this rank in the memory, of a chunk that it `awaits`.
    pub fn read(&mut self, awaits: impl Fn(u16, u16) -> bool) -> Option<Cow<'_, [u8]>> {
        match self {
            Self::Slots(slots) => slots.read(awaits),
            Self::Sums(_, results) => results.as_mut()?.read(awaits),
        }
    }

    /// Waits by `wait`, which returns soon once the descriptor is readable, if it gets one, unless
    /// there is something to read already.
    pub fn wait(
        &mut self,
        wait: impl FnOnce(Option<BorrowedFd<'_>>) -> io::Result<()>,
    ) -> io::Result<()> {
        match self {
            Self::Slots(slots) => slots.wait(wait),
            Self::Sums(_, Some(results)) => results.wait(wait),
            Self::Sums(_, None) => wait(None),
        }
    }
}

impl Team {
    /// The ranks of the team, including this one, in ascending order.
    pub fn ranks(&self) -> Vec<u16> {
        let mut ranks = self.ranks.clone();
        ranks.sort_unstable();
        ranks
    }

    /// Whether these are all ranks of the job, which then need no aggregator.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// What the ranks do for a shard, of which a superpacket carries `batch` packets. To be called
    /// once for each shard.
    pub fn share(&mut self, shard: usize, batch: usize) -> SharedMemory {
        if let Some(slots) = self.slots(shard) {
            return SharedMemory::Slots(slots);
        }
        let sums = LocalSums::new(self.memory(shard), self.place, self.ranks.len(), batch);
        SharedMemory::Sums(sums, self.results(shard))
    }

    /// The slots of a shard, if all ranks of the job share them.
    fn slots(&mut self, shard: usize) -> Option<LocalSlots> {
        if !self.is_whole {
            return None;
        }
        let others: Vec<_> = (0..self.ranks.len()).filter(|place| *place != self.place).collect();
        let others = self.bells_at(shard, others);
        let bell = self.take_bell(shard)?;
        let session = (self.topic.epoch, self.topic.extent.slots as u16);
        Some(LocalSlots::new(self.memory(shard), session, self.ranks.clone(), bell, others))
    }

    /// The local results of a shard: those that this rank posts for others, or reads; `None` if it
    /// does neither.
    fn results(&mut self, shard: usize) -> Option<LocalResults> {
        let (memory, ranks) = (self.memory(shard), self.ranks.len());
        if self.reads {
            return Some(LocalResults::reading(memory, ranks, self.take_bell(shard)?));
        }
        let others = self.bells_at(shard, self.segment.readers());
        if self.place > 0 || others.is_empty() {
            return None;
        }
        Some(LocalResults::posting(memory, ranks, others))
    }

    fn take_bell(&mut self, shard: usize) -> Option<Bell> {
        self.bells.as_mut()?.get_mut(shard)?.take()
    }

    /// The names of the bells at these places, with the places.
    fn bells_at(
        &self,
        shard: usize,
        places: impl IntoIterator<Item = usize>,
    ) -> Vec<(usize, unix::SocketAddr)> {
        let bell = |place| Some((place, self.topic.bell(place, shard).ok()?));
        places.into_iter().filter_map(bell).collect()
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
