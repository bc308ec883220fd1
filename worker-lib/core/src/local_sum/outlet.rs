//! A rank's packets on their way through the memory that it shares with other ranks.

use std::borrow::Cow;

use switchml_protocol::wire::header::{HEADER_LEN, Header, Kind, flags};
use zerocopy::FromBytes;

use super::{Cell, Step, add_up, is_like};
use crate::wire::Wire;

/// A shard's part of the memory that ranks of a host share, as one of these ranks uses it.
pub trait Memory {
    /// Changes a slot's cell by compare-and-swap: to what `change` makes of it, if anything, which
    /// may have to be called again. Returns what it gives besides.
    fn change<T>(&self, slot: u16, change: impl Fn(Cell) -> Option<(Cell, T)>) -> Option<T>;

    /// Has `fill` write this rank's packet.
    fn write(&mut self, place: &Claimed, fill: impl FnOnce(&mut [u8]));

    /// A rank's packet.
    fn read(&self, place: &Readable) -> Cow<'_, [u8]>;
}

/// The rank's own packet of a slot whose cell it has claimed: nobody reads it before the rank
/// arrives. Only this module makes one.
pub struct Claimed {
    slot: u16,
    lanes: u16,
}

impl Claimed {
    /// The slot.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// The lanes of the packet.
    pub fn lanes(&self) -> u16 {
        self.lanes
    }
}

/// A packet that nobody writes now: the rank's own, or one that the slot's cell has given it to
/// read, until it says [`Cell::left`]. Only this module makes one.
pub struct Readable {
    place: usize,
    slot: u16,
    lanes: u16,
}

impl Readable {
    /// The place of the packet's rank.
    pub fn place(&self) -> usize {
        self.place
    }

    /// The slot.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// The lanes of the packet.
    pub fn lanes(&self) -> u16 {
        self.lanes
    }
}

/// The local sums of a rank's shard.
pub struct LocalSums<M> {
    memory: M,
    /// The rank's place.
    place: usize,
    /// All places that are taken, as a set.
    all: u32,
    /// Headers of packets that are written, and have not arrived yet.
    written: Vec<Header>,
    /// Packets of a superpacket.
    batch: usize,
}

impl<M: Memory> LocalSums<M> {
    /// The local sums of a shard of the rank at `place` among `ranks` of its host, of which a
    /// superpacket carries `batch` packets.
    pub fn new(memory: M, place: usize, ranks: usize, batch: usize) -> Self {
        Self { memory, place, all: (1 << ranks) - 1, written: Vec::new(), batch }
    }

    /// Has the packet with this header, written by `fill`, wait for those of the other ranks. If it
    /// cannot, it joins the superpacket as it is (rule 12.11).
    fn put<W: Wire>(
        &mut self,
        wire: &mut W,
        header: &Header,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), W::Error> {
        let (slot, lanes) = (header.slot.get(), header.lanes.get());
        let may_wait = header.flags & (flags::RETRANSMIT | flags::EMPTY) == 0;
        if may_wait && self.claim(header) {
            self.memory.write(&Claimed { slot, lanes }, fill);
            self.written.push(*header);
            // Packets that travel together arrive together, so that other ranks add up whole
            // superpackets.
            return if self.written.len() >= self.batch { self.arrive(wire) } else { Ok(()) };
        }
        let step = self.update(header, |cell, me, all, round| cell.pass(me, all, round));
        self.send_held(wire, header, step.leaves)?;
        wire.put(header, fill)
    }

    /// Shows the other ranks the packets written since the last time. Sums that are complete then
    /// join the superpacket.
    fn arrive<W: Wire>(&mut self, wire: &mut W) -> Result<(), W::Error> {
        let mut written = std::mem::take(&mut self.written);
        for header in written.drain(..) {
            let step = self.update(&header, |cell, me, all, round| cell.arrive(me, all, round));
            let is_sent = self.send_held(wire, &header, step.leaves)?;
            if step.goes || !is_sent {
                let own = self.memory.read(&readable(self.place, &header));
                wire.put(&header, |packet| packet.copy_from_slice(&own))?;
            }
        }
        self.written = written;
        Ok(())
    }

    /// Whether this rank may write its packet.
    fn claim(&self, header: &Header) -> bool {
        let (me, round) = (1 << self.place, header.round.get());
        let claim = |cell: Cell| Some((cell.claim(me, round)?, ()));
        self.memory.change(header.slot.get(), claim).is_some()
    }

    /// Updates a cell. `step` gets this rank and all ranks, as sets, and the round.
    fn update(&self, header: &Header, step: impl Fn(Cell, u32, u32, u32) -> Step) -> Step {
        let (me, all, round) = (1 << self.place, self.all, header.round.get());
        let taken = self.memory.change(header.slot.get(), |cell| {
            let step = step(cell, me, all, round);
            Some((step.cell, step))
        });
        // Every cell has a next step.
        taken.unwrap_or(Step { cell: Cell::default(), leaves: 0, goes: true })
    }

    /// Adds the partial sum of the packets at places `leaves`, if there are any, to the
    /// superpacket. False if they belong to another call than this header: their ranks send again,
    /// and the aggregator tells which rank called what.
    fn send_held<W: Wire>(
        &self,
        wire: &mut W,
        header: &Header,
        leaves: u32,
    ) -> Result<bool, W::Error> {
        if leaves == 0 {
            return Ok(true);
        }
        let places = (0..u32::BITS).filter(|place| leaves >> place & 1 == 1);
        let mut packets = places.map(|place| self.memory.read(&readable(place as usize, header)));
        let is_right = |packet: Cow<'_, [u8]>| {
            let head = packet.get(..HEADER_LEN).and_then(|head| Header::read_from_bytes(head).ok());
            head.is_some_and(|head| is_like(header, &head))
        };
        let are_right = packets.clone().all(is_right);
        if are_right && let Some(first) = packets.next() {
            // As long as one contribution that has lanes.
            let form = Header { flags: flags::CHECKED, ..*header };
            wire.put(&form, |sum| {
                sum.copy_from_slice(&first);
                add_up(sum, packets);
            })?;
        }
        self.memory.change(header.slot.get(), |cell| Some((cell.left(leaves), ())));
        Ok(are_right)
    }
}

/// The packet of the rank at `place` for the slot of this header.
fn readable(place: usize, header: &Header) -> Readable {
    Readable { place, slot: header.slot.get(), lanes: header.lanes.get() }
}

/// A wire, behind the shared memory for local sums, if there is any.
pub struct Outlet<'a, W, M> {
    /// The wire.
    pub wire: W,
    /// The local sums.
    pub local_sums: Option<&'a mut LocalSums<M>>,
}

impl<W: Wire, M: Memory> Wire for Outlet<'_, W, M> {
    type Error = W::Error;

    fn put(&mut self, header: &Header, fill: impl FnOnce(&mut [u8])) -> Result<(), W::Error> {
        match &mut self.local_sums {
            // HELLOs are sent by each rank itself.
            Some(local_sums) if header.kind == Kind::Contribution as u8 => {
                local_sums.put(&mut self.wire, header, fill)
            }
            _ => self.wire.put(header, fill),
        }
    }

    fn flush(&mut self) -> Result<(), W::Error> {
        if let Some(local_sums) = &mut self.local_sums {
            local_sums.arrive(&mut self.wire)?;
        }
        self.wire.flush()
    }
}

#[cfg(test)]
mod tests;
