//! Ranks of one host that take turns.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use switchml_protocol::wire::share::Share;
use switchml_protocol::{U16, U32, VERSION};
use zerocopy::IntoBytes;

use super::*;
use crate::numerics::lane_sum;
use crate::packet::packet_len;

const LANES: usize = 32;

#[derive(Clone, Default)]
struct Shared {
    /// By slot.
    cells: Rc<RefCell<HashMap<u16, Cell>>>,
    packets: Packets,
}

/// Packets by place and slot.
type Packets = Rc<RefCell<HashMap<(usize, u16), Vec<u8>>>>;

struct Mine {
    shared: Shared,
    place: usize,
}

impl Memory for Mine {
    fn change<T>(&self, slot: u16, change: impl Fn(Cell) -> Option<(Cell, T)>) -> Option<T> {
        let mut cells = self.shared.cells.borrow_mut();
        let cell = cells.entry(slot).or_default();
        let (next, besides) = change(*cell)?;
        *cell = next;
        Some(besides)
    }

    fn write(&mut self, place: &Claimed, fill: impl FnOnce(&mut [u8])) {
        let mut packet = vec![0; packet_len(place.lanes().into())];
        fill(&mut packet);
        self.shared.packets.borrow_mut().insert((self.place, place.slot()), packet);
    }

    fn read(&self, place: &Readable) -> Cow<'_, [u8]> {
        Cow::Owned(self.shared.packets.borrow()[&(place.place(), place.slot())].clone())
    }
}

fn host(ranks: usize) -> Vec<LocalSums<Mine>> {
    let shared = Shared::default();
    let sums = |place| {
        let memory = Mine { shared: shared.clone(), place };
        LocalSums::new(memory, place, ranks, 4)
    };
    (0..ranks).map(sums).collect()
}

/// Sends the contribution of the rank at a place to slot 5, in which each lane is 1 + place.
/// Returns what leaves the host: kind, ranks as a bitmap, and the first lane.
fn send(host: &mut [LocalSums<Mine>], place: usize, flags: u8, call: u32) -> Vec<(u8, u32, u32)> {
    let mut header = Header {
        version: VERSION,
        kind: Kind::Contribution as u8,
        job: U16::new(1),
        epoch: U32::new(7),
        rank: U16::new(place as u16),
        slot: U16::new(5),
        round: U32::new(1),
        op: 0,
        flags: flags::CHECKED | flags,
        lanes: U16::new(LANES as u16),
        fingerprint: U32::new(call),
        check: U32::ZERO,
        aux: U32::ZERO,
    };
    let lanes: Vec<u8> = (0..LANES).flat_map(|_| (1 + place as u32).to_be_bytes()).collect();
    header.check.set(header.check_of(lane_sum(&lanes), 1));
    let mut outlet = Outlet { wire: Vec::<Vec<u8>>::new(), local_sums: Some(&mut host[place]) };
    let Ok(()) = outlet.put(&header, |packet| {
        packet.copy_from_slice(&[header.as_bytes(), &lanes].concat());
    });
    let Ok(()) = outlet.flush();
    let look = |packet: Vec<u8>| {
        let (header, payload) = Header::read_from_prefix(&packet).unwrap();
        let share = Share::of(&header);
        assert!(share.agrees(&header, lane_sum(payload)), "{header:?}");
        let lane = u32::from_be_bytes(*payload.first_chunk().unwrap());
        (header.kind, share.in_group().1, lane)
    };
    outlet.wire.into_iter().map(look).collect()
}

const ALONE: u8 = Kind::Contribution as u8;
const TOGETHER: u8 = Kind::Partial as u8;

#[test]
fn the_last_rank_sends_the_sum_of_all() {
    let mut host = host(3);
    assert_eq!(send(&mut host, 2, 0, 9), []);
    assert_eq!(send(&mut host, 0, 0, 9), []);
    assert_eq!(send(&mut host, 1, 0, 9), [(TOGETHER, 0b111, 1 + 2 + 3)]);
    // It was lost.
    assert_eq!(send(&mut host, 1, flags::RETRANSMIT, 9), [(ALONE, 0b010, 2)]);
}

/// What waits for a late rank goes with a resend, without the packet that is sent again.
#[test]
fn a_resend_takes_along_what_others_have_there() {
    let mut host = host(3);
    assert_eq!(send(&mut host, 0, 0, 9), []);
    assert_eq!(send(&mut host, 1, 0, 9), []);
    let again = send(&mut host, 0, flags::RETRANSMIT, 9);
    assert_eq!(again, [(TOGETHER, 0b010, 2), (ALONE, 0b001, 1)]);
    assert_eq!(send(&mut host, 2, 0, 9), [(ALONE, 0b100, 3)]);
}

/// The rank that finds this sends its own packet, the others send again.
#[test]
fn packets_of_different_calls_do_not_add_up() {
    let mut host = host(2);
    assert_eq!(send(&mut host, 0, 0, 9), []);
    assert_eq!(send(&mut host, 1, 0, 10), [(ALONE, 0b10, 2)]);
    assert_eq!(send(&mut host, 0, flags::RETRANSMIT, 9), [(ALONE, 0b01, 1)]);
}
