//! Adds up the packets of this host's ranks, in memory that they share, before they are sent.

#![allow(unsafe_code)]

mod meeting;
mod segment;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use switchml_protocol::RANKS_PER_GROUP;
use switchml_protocol::header::{HEADER_LEN, Header, flags};
use switchml_worker_core::local_sum::{Cell, Step, add_up, is_like};
use switchml_worker_core::packet::{len_of, packet_len};
use zerocopy::FromBytes;

use crate::control::Assigned;
use crate::interface::unspecified;
use crate::transport::Transport;
use meeting::Topic;
use segment::{Extent, Place, Segment};

/// A rank at the meeting of its host's ranks.
pub(crate) struct Meeting {
    meeting: meeting::Meeting,
    place: usize,
}

impl Meeting {
    /// Meets the ranks of this host that belong to the same session and group, since a partial sum
    /// stays within a group. Must be called before the rank is ready. `None` over loopback, where
    /// there is no link to save.
    ///
    /// # Errors
    /// When the ranks that are there have no memory to share.
    pub fn enter(assigned: &Assigned, rank: u16) -> io::Result<Option<Self>> {
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
        Ok(Some(Self { meeting, place }))
    }

    /// The ranks that have met, once all ranks are ready; `None` if there are no others.
    pub fn end(self) -> Option<Team> {
        let Self { meeting, place } = self;
        let segment = meeting.end();
        let ranks = segment.ranks().filter(|ranks| ranks.len() > 1)?;
        Some(Team { segment, ranks, place })
    }
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
    /// The place of this rank.
    place: usize,
}

impl Team {
    /// The ranks of the team, including this one, in ascending order.
    pub fn ranks(&self) -> Vec<u16> {
        let mut ranks = self.ranks.clone();
        ranks.sort_unstable();
        ranks
    }
}

/// The local sums of a driver.
pub(crate) struct LocalSums {
    segment: Arc<Segment>,
    shard: usize,
    place: usize,
    /// All places that are taken, as a set.
    all: u32,
    /// Headers of packets that are written, and have not arrived yet.
    written: Vec<Header>,
    /// Bytes of a full packet.
    packet_len: usize,
}

impl LocalSums {
    /// The local sums of a shard whose full packets have `packet_len` bytes.
    pub fn new(team: &Team, shard: usize, packet_len: usize) -> Self {
        let &Team { ref segment, ref ranks, place } = team;
        let (segment, all) = (Arc::clone(segment), (1 << ranks.len()) - 1);
        Self { segment, shard, place, all, written: Vec::new(), packet_len }
    }

    /// Has the packet with this header, written by `fill`, wait for those of the other ranks. If it
    /// cannot, it joins the batch as it is (rule 12.11).
    ///
    /// # Errors
    /// The errors of [`Transport::packet`].
    pub fn put(
        &mut self,
        transport: &mut impl Transport,
        header: &Header,
        fill: impl FnOnce(&mut [u8]),
    ) -> io::Result<()> {
        let may_wait = header.flags & (flags::RETRANSMIT | flags::EMPTY) == 0;
        if may_wait && self.claim(header) {
            // SAFETY: the cell is claimed, so nobody reads this rank's packet before it arrives.
            fill(unsafe {
                self.segment.packet_mut(self.at(self.place, header), header.lanes.get())
            });
            self.written.push(*header);
            // Packets that travel together arrive together, so that other ranks add up whole
            // superpackets.
            if self.written.len() >= transport.batch(self.packet_len) {
                self.arrive(transport)?;
            }
            return Ok(());
        }
        let step = self.update(header, |cell, me, all, round| cell.pass(me, all, round));
        self.send_held(transport, header, step.leaves)?;
        fill(transport.packet(len_of(header))?);
        Ok(())
    }

    /// Shows the other ranks the packets written since the last time. Sums that are complete then
    /// join the batch.
    ///
    /// # Errors
    /// The errors of [`Transport::packet`].
    pub fn arrive(&mut self, transport: &mut impl Transport) -> io::Result<()> {
        let mut written = std::mem::take(&mut self.written);
        for header in written.drain(..) {
            let step = self.update(&header, |cell, me, all, round| cell.arrive(me, all, round));
            let is_sent = self.send_held(transport, &header, step.leaves)?;
            if step.goes || !is_sent {
                self.send_own(transport, &header)?;
            }
        }
        self.written = written;
        Ok(())
    }

    /// Whether this rank may write its packet.
    fn claim(&self, header: &Header) -> bool {
        let (me, round) = (self.me(), header.round.get());
        let claim = |word| Some(Cell::from_word(word).claim(me, round)?.word());
        let cell = self.segment.cell(self.shard, header.slot.get());
        cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, claim).is_ok()
    }

    /// Updates a cell. `step` gets this rank and all ranks, as sets, and the round.
    fn update(&self, header: &Header, step: impl Fn(Cell, u32, u32, u32) -> Step) -> Step {
        let (me, all, round) = (self.me(), self.all, header.round.get());
        let word = self.segment.cell(self.shard, header.slot.get());
        let mut seen = word.load(Ordering::Acquire);
        loop {
            let step = step(Cell::from_word(seen), me, all, round);
            let next = step.cell.word();
            match word.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return step,
                Err(other) => seen = other,
            }
        }
    }

    /// Adds the partial sum of the packets at places `leaves`, if there are any, to the batch.
    /// False if they belong to another call than this header: their ranks send again, and the
    /// aggregator tells which rank called what.
    fn send_held(
        &self,
        transport: &mut impl Transport,
        header: &Header,
        leaves: u32,
    ) -> io::Result<bool> {
        if leaves == 0 {
            return Ok(true);
        }
        let lanes = header.lanes.get();
        let places = (0..u32::BITS).filter(|place| leaves >> place & 1 == 1);
        // SAFETY: the cell has given these packets to this rank to read, until `left`.
        let packet = |place| unsafe { self.segment.packet(self.at(place as usize, header), lanes) };
        let mut packets = places.map(packet);
        let is_right = |packet: &[u8]| {
            let head = packet.get(..HEADER_LEN).and_then(|head| Header::read_from_bytes(head).ok());
            head.is_some_and(|head| is_like(header, &head))
        };
        let are_right = packets.clone().all(is_right);
        if are_right && let Some(first) = packets.next() {
            let sum = transport.packet(packet_len(lanes.into()))?;
            sum.copy_from_slice(first);
            add_up(sum, packets);
        }
        let left = |word| Some(Cell::from_word(word).left(leaves).word());
        let cell = self.segment.cell(self.shard, header.slot.get());
        // The update never fails.
        let _ = cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, left);
        Ok(are_right)
    }

    /// Adds this rank's own packet, which is written, to the batch.
    fn send_own(&self, transport: &mut impl Transport, header: &Header) -> io::Result<()> {
        let lanes = header.lanes.get();
        let packet = transport.packet(packet_len(lanes.into()))?;
        // SAFETY: no other rank writes it.
        packet.copy_from_slice(unsafe { self.segment.packet(self.at(self.place, header), lanes) });
        Ok(())
    }

    fn at(&self, rank: usize, header: &Header) -> Place {
        Place { shard: self.shard, rank, slot: header.slot.get() }
    }

    /// This rank, as a set.
    fn me(&self) -> u32 {
        1 << self.place
    }
}
