//! Chunks whose lanes are left out at first: EMPTY, and ROOM.

use switchml_protocol::wire::header::{Kind, flags};

use super::network::{HOP, Switch, chunk, config};
use super::*;
use crate::packet::len_of;

const ZEROS: u8 = flags::CHECKED | flags::EMPTY;
const AGAIN: u8 = flags::CHECKED | flags::RETRANSMIT;

/// Two ranks, and the aggregator between them.
struct Pair {
    engines: [Engine; 2],
    switch: Switch,
}

impl Pair {
    fn new() -> Self {
        Self {
            engines: [0, 1].map(|rank| Engine::new(config(2, rank, 8))),
            switch: Switch::new(2, 8),
        }
    }

    /// Sends a new chunk of zeros.
    fn send(&mut self, rank: usize, now: u64, empty: bool) -> Transmission {
        self.engines[rank].send(now, Chunk { empty, ..chunk(0) })
    }

    /// The aggregator's answer to a transmission.
    fn serve(&self, rank: u16, transmission: &Transmission) -> Option<Vec<u8>> {
        let packet = zeros(transmission);
        assert_eq!(packet.len(), len_of(&transmission.header));
        self.switch.serve(rank, &packet).map(|(_, answer)| answer)
    }

    fn hear(&mut self, rank: usize, now: u64, answer: &[u8]) -> Option<Completed> {
        let completed = self.engines[rank].receive(now, answer, false).unwrap();
        completed.map(|(completed, payload)| {
            assert_eq!(payload, [0; 128]);
            completed
        })
    }
}

/// The packet of a transmission whose lanes are zeros.
fn zeros(transmission: &Transmission) -> Vec<u8> {
    let mut header = transmission.header;
    header.check.set(header.check_of(0, 1));
    let mut packet = header.as_bytes().to_vec();
    packet.resize(packet.len() + 4 * usize::from(header.payload_lanes()), 0);
    packet
}

#[test]
fn what_is_asked_for_is_sent_in_full_and_was_not_lost() {
    let mut pair = Pair::new();
    let first = pair.send(0, 0, true);
    assert_eq!((first.header.flags, len_of(&first.header)), (ZEROS, 32));
    assert_eq!(pair.serve(0, &first), None);

    let last = pair.send(1, 0, true);
    let room = pair.serve(1, &last).unwrap();
    assert_eq!((room.len(), room[1]), (32, Kind::Room as u8));
    assert_eq!(pair.engines[1].next_resend(HOP), None);
    assert_eq!(pair.hear(1, HOP, &room), None);
    let in_full = pair.engines[1].next_resend(HOP).unwrap();
    assert_eq!((in_full.header.flags, len_of(&in_full.header)), (AGAIN, 32 + 128));
    assert_eq!(pair.engines[1].next_resend(HOP), None);

    let result = pair.serve(1, &in_full).unwrap();
    let window = pair.engines[1].window();
    for rank in [0, 1] {
        let completed = pair.hear(rank, 3 * HOP, &result).unwrap();
        assert_eq!((completed.history.empty, completed.history.room), (true, rank == 1));
    }
    let [first, last] = pair.engines.each_ref().map(Engine::stats);
    assert_eq!((first.empty, first.rooms, last.empty, last.rooms), (1, 0, 1, 1));
    assert_eq!((last.resent(), last.window_cuts), (0, 0), "nothing was lost");
    assert!(pair.engines[1].window() >= window);
    // One result may be the answer to the chunk without lanes; the other waited for another rank.
    assert_eq!(pair.engines.each_ref().map(Engine::rtt), [None, None]);
}

/// The aggregator lives: it asks for the lanes.
#[test]
fn a_deadline_counts_from_what_is_asked_for() {
    let mut pair = Pair::new();
    pair.serve(0, &pair.engines[0].clone().send(0, Chunk { empty: true, ..chunk(0) }));
    let last = pair.send(1, 0, true);
    let room = pair.serve(1, &last).unwrap();
    pair.hear(1, 700 * MS, &room);
    assert_eq!(run_until(&mut pair.engines[1], 1700 * MS - 1), Ok(()));
    assert_eq!(pair.engines[1].on_timer(1700 * MS), Err(Failure::Silent));
}

#[test]
fn what_has_been_sent_in_full_is_not_asked_for_again() {
    let mut pair = Pair::new();
    let first = pair.send(0, 0, true);
    pair.serve(0, &first);
    // Sent twice on the way: a ROOM for each.
    let room = pair.serve(0, &first).unwrap();
    pair.hear(0, HOP, &room);
    pair.hear(0, HOP, &room);
    assert!(pair.engines[0].next_resend(HOP).is_some());
    pair.hear(0, HOP, &room);
    assert_eq!(pair.engines[0].next_resend(HOP), None);
    assert_eq!(
        (pair.engines[0].stats().rooms, pair.engines[0].stats().ignored(Ignored::Room)),
        (1, 1)
    );

    // The aggregator does not ask for lanes that were never left out.
    pair.send(1, 0, false);
    let mut forged = room.clone();
    forged[9] = 1;
    pair.hear(1, HOP, &forged);
    assert_eq!(pair.engines[1].next_resend(HOP), None);
    assert_eq!(pair.engines[1].stats().ignored(Ignored::Room), 1);
}

#[test]
fn a_room_must_fit_its_chunk() {
    type Change = fn(&mut Header);
    let cases: &[(Ignored, Change)] = &[
        (Ignored::Rank, |header| header.rank.set(1)),
        (Ignored::Rank, |header| header.rank.set(EVERYONE)),
        (Ignored::NotOutstanding, |header| header.round.set(1)),
        (Ignored::Call, |header| header.fingerprint.set(1)),
        (Ignored::Call, |header| header.lanes.set(64)),
        (Ignored::Check, |header| header.flags &= !flags::CHECKED),
        (Ignored::Check, |header| header.check.set(0)),
    ];
    for (number, (reason, change)) in cases.iter().enumerate() {
        let mut pair = Pair::new();
        let first = pair.send(0, 0, true);
        pair.serve(0, &first);
        let mut room = pair.serve(0, &first).unwrap();
        change(Header::mut_from_prefix(&mut room).unwrap().0);
        if *reason != Ignored::Check {
            let (header, _) = Header::mut_from_prefix(&mut room).unwrap();
            header.check.set(header.check_of(0, 1));
        }
        pair.hear(0, HOP, &room);
        assert_eq!(pair.engines[0].stats().ignored(*reason), 1, "case {number}");
        assert_eq!(pair.engines[0].next_resend(HOP), None, "case {number}");
    }
}

/// Chunks of zeros should arrive before other ranks' lanes, and use almost nothing of the path.
#[test]
fn zeros_wait_for_slots_alone() {
    let mut pair = Pair::new();
    let window = pair.engines[0].window();
    assert!(window < 8, "there are more slots");
    for _ in 0..8 {
        assert!(pair.engines[0].room_for_empty() > 0);
        pair.send(0, 0, true);
    }
    assert_eq!(pair.engines[0].room_for_empty(), 0, "the result of chunk 0 is not here");

    // Lanes that were asked for wait for the window, except the oldest chunk's.
    let mut pair = Pair::new();
    let sent: Vec<_> = (0..8).map(|_| pair.send(0, 0, true)).collect();
    for transmission in &sent {
        pair.serve(0, transmission);
        let room = pair.serve(0, transmission).unwrap();
        pair.hear(0, HOP, &room);
    }
    let asked: Vec<_> = std::iter::from_fn(|| pair.engines[0].next_resend(HOP))
        .map(|it| it.header.slot.get())
        .collect();
    assert_eq!(asked, (0..window as u16).collect::<Vec<_>>());
    assert!(!pair.engines[0].may_send());
}

/// Other ranks may wait for the oldest chunk before they send the chunks that fill this rank's
/// window.
#[test]
fn the_oldest_chunk_that_is_asked_for_waits_for_nothing() {
    let mut pair = Pair::new();
    let first = pair.send(0, 0, true);
    while pair.engines[0].may_send() {
        pair.send(0, 0, false);
    }
    pair.serve(0, &first);
    let room = pair.serve(0, &first).unwrap();
    pair.hear(0, HOP, &room);
    assert_eq!(pair.engines[0].next_resend(HOP).map(|it| it.header.slot.get()), Some(0));
}

#[test]
fn resends_are_in_full() {
    let mut pair = Pair::new();
    pair.send(0, 0, true);
    let at = pair.engines[0].deadline().unwrap();
    pair.engines[0].on_timer(at).unwrap();
    let again = pair.engines[0].next_resend(at).unwrap();
    assert_eq!((again.header.flags, len_of(&again.header)), (AGAIN, 32 + 128));
    let stats = pair.engines[0].stats();
    assert_eq!((stats.resent_by_timer, stats.rooms), (1, 0));
}

/// Two ranks of zeros wait for a third one's lanes, which come in the order of their numbers. The
/// result of a chunk that was asked for says nothing of later ones, though it was sent after them.
#[test]
fn lanes_that_were_asked_for_overtake_no_zeros() {
    let mut pair = Pair::new();
    pair.engines[1].sample_rtt(0, 2 * HOP);
    let lanes = pair.send(0, 0, false);
    pair.serve(0, &lanes);
    let zeros: Vec<_> = (0..8).map(|_| pair.send(1, HOP, true)).collect();
    let room = pair.serve(1, &zeros[0]).unwrap();
    zeros[1..].iter().for_each(|later| assert_eq!(pair.serve(1, later), None));
    pair.hear(1, 3 * HOP, &room);
    let in_full = pair.engines[1].next_resend(3 * HOP).unwrap();
    let result = pair.serve(1, &in_full).unwrap();
    assert!(pair.hear(1, 5 * HOP, &result).is_some());
    // Just before the timer.
    let soon = pair.engines[1].deadline().unwrap() - 1;
    assert!(soon > 5 * HOP + pair.engines[1].config().reordering);
    pair.engines[1].on_timer(soon).unwrap();
    assert_eq!((pair.engines[1].next_resend(soon), pair.engines[1].stats().resent()), (None, 0));
}

/// A rank of zeros cannot tell whose contribution was lost. It asks when results have overtaken the
/// chunk by a quarter of the time that they took. Once told that it is in, it asks again only after
/// a later chunk has its result: until then, another rank that was asked for lanes may be late.
/// (Without this, it asked for 43 chunks every 0.3 ms, and filled its link.)
#[test]
fn zeros_that_later_results_overtake_are_sent_again() {
    const SENT: u64 = HOP;
    const TOOK: u64 = MS;
    let mut pair = Pair::new();
    let zeros: Vec<_> = (0..3).map(|_| pair.send(1, SENT, true)).collect();
    zeros.iter().for_each(|chunk| assert_eq!(pair.serve(1, chunk), None));
    let lanes: Vec<_> = (0..4).map(|_| pair.send(0, 0, false)).collect();
    // The first chunk is lost.
    for later in &lanes[1..3] {
        let result = pair.serve(0, later).unwrap();
        assert!(pair.hear(1, SENT + TOOK, &result).is_some());
    }
    let resend = |pair: &mut Pair, at: u64| {
        pair.engines[1].on_timer(at).unwrap();
        let again = pair.engines[1].next_resend(at)?;
        assert_eq!((again.header.slot.get(), len_of(&again.header)), (0, 32 + 128));
        assert_eq!(pair.engines[1].next_resend(at), None);
        pair.serve(1, &again)
    };
    let first = SENT + TOOK + TOOK / 4;
    assert_eq!(resend(&mut pair, first - 1), None);
    let pending = resend(&mut pair, first).unwrap();
    let told = first + HOP;
    assert_eq!(pair.hear(1, told, &pending), None);

    let fourth = pair.send(1, told, true);
    assert_eq!(pair.serve(1, &fourth), None);
    let before_the_timer = pair.engines[1].deadline().unwrap() - 1;
    assert_eq!(resend(&mut pair, before_the_timer), None, "nothing tells of a loss");
    let result = pair.serve(0, &lanes[3]).unwrap();
    assert!(pair.hear(1, before_the_timer, &result).is_some());
    assert!(resend(&mut pair, before_the_timer).is_some());
    assert_eq!(pair.engines[1].stats().resent_by_overtaking, 2);
    let result = pair.serve(0, &lanes[0]).unwrap();
    assert!(pair.hear(1, before_the_timer + 4 * HOP, &result).is_some());
}
