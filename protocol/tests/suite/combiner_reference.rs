//! What a combiner must do: rules 27.6 to 27.14 with the packets themselves in place of sums.

use std::collections::BTreeSet;

use switchml_test_support::packet::{
    CE, CHECKED, CONTRIBUTION, EMPTY, Packet, RETRANSMIT, combine,
};

#[derive(Clone, Default)]
pub struct Reference {
    cells: Vec<Option<Cell>>,
}

#[derive(Clone)]
struct Cell {
    /// The packet that claimed it.
    first: Packet,
    /// The packets whose values it has.
    held: Vec<Packet>,
    passed: BTreeSet<u16>,
    since: u32,
}

/// Job, epoch, slot and group.
fn key(packet: &Packet) -> (u16, u32, u16, u16) {
    (packet.job, packet.epoch, packet.slot, packet.rank / 32)
}

fn call(packet: &Packet) -> (u8, u16, u32) {
    (packet.op, packet.lanes, packet.fingerprint)
}

impl Cell {
    fn held(&self) -> BTreeSet<u16> {
        self.held.iter().flat_map(Packet::ranks).collect()
    }

    fn all(&self) -> BTreeSet<u16> {
        &self.held() | &self.passed
    }

    /// Rule 27.14.
    fn leave(&mut self) -> Option<Packet> {
        let ranks: Vec<u16> = self.held().into_iter().collect();
        self.passed.extend(&ranks);
        let held = std::mem::take(&mut self.held);
        if held.is_empty() {
            return None;
        }
        let payloads: Vec<&[u32]> = held.iter().map(|packet| &packet.payload[..]).collect();
        let congested = held.iter().any(|packet| packet.flags & CE != 0);
        let flags = CHECKED | if congested { CE } else { 0 };
        let payload = combine(self.first.op, &payloads);
        Some(Packet { flags, payload, ..self.first.clone() }.partial(&ranks))
    }
}

impl Reference {
    pub fn new(cells: usize) -> Self {
        Self { cells: vec![None; cells] }
    }

    /// Rule 27.6.
    fn index(&self, packet: &Packet) -> usize {
        let (job, epoch, slot, group) = key(packet);
        let words = [u64::from(job) << 16 | u64::from(slot), epoch.into(), group.into()];
        let step = |hash: u64, word| (hash + word) * 0x9E37_79B1 % (1 << 32);
        ((words.into_iter().fold(0, step) * self.cells.len() as u64) >> 32) as usize
    }

    /// What goes on, of a packet that was admitted and is not damaged.
    pub fn receive(
        &mut self,
        packet: &Packet,
        below: &BTreeSet<u16>,
        now: u32,
        patience: u32,
    ) -> Vec<Packet> {
        let ranks: BTreeSet<u16> = packet.ranks().into_iter().collect();
        let index = self.index(packet);
        let matching = self.cells[index].as_mut().filter(|cell| {
            key(&cell.first) == key(packet)
                && cell.first.round == packet.round
                && call(&cell.first) == call(packet)
        });
        let is_empty = packet.kind == CONTRIBUTION && packet.flags & EMPTY != 0;
        let is_marked = packet.flags & RETRANSMIT != 0 || is_empty;
        let Some(cell) = matching else {
            if is_marked || ranks == *below {
                return vec![packet.clone()];
            }
            return self.claim(packet, index, now, patience);
        };
        let is_last_alone = cell.held.is_empty() && &ranks | &cell.passed == *below;
        let is_new = ranks.is_disjoint(&cell.all());
        if !is_marked && ranks.is_subset(&cell.held()) {
            return vec![];
        }
        if is_marked || is_last_alone || !is_new {
            cell.passed.extend(&ranks);
            let leaves = !ranks.is_disjoint(&cell.held()) || cell.all() == *below;
            let ahead = if leaves { cell.leave() } else { None };
            return ahead.into_iter().chain([packet.clone()]).collect();
        }
        if cell.held.is_empty() {
            cell.since = now;
        }
        cell.held.push(packet.clone());
        if cell.all() == *below { cell.leave().into_iter().collect() } else { vec![] }
    }

    /// Rule 27.10.
    fn claim(&mut self, packet: &Packet, index: usize, now: u32, patience: u32) -> Vec<Packet> {
        let old = &mut self.cells[index];
        let mut leaves = None;
        if let Some(old) = old {
            let ahead = packet.round.wrapping_sub(old.first.round) as i32;
            let is_own = key(&old.first) == key(packet);
            let is_young = now.wrapping_sub(old.since) < patience;
            if if is_own { ahead <= 0 } else { !old.held.is_empty() && is_young } {
                return vec![packet.clone()];
            }
            let fits = !is_own && old.first.lanes == packet.lanes;
            leaves = if fits { old.leave() } else { None };
        }
        *old = Some(Cell {
            first: packet.clone(),
            held: vec![packet.clone()],
            passed: BTreeSet::new(),
            since: now,
        });
        leaves.into_iter().collect()
    }

    /// What a cell holds, which it then lets go.
    pub fn flush(&mut self, index: usize) -> Option<Packet> {
        self.cells[index].as_mut().and_then(Cell::leave)
    }
}
