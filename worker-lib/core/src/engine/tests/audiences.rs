//! Results whose lanes are for other ranks: a DONE tells of them.

use switchml_protocol::root::done::Done;
use switchml_protocol::wire::audience::Audience;

use super::*;

/// The op of a sum whose lanes are for rank 0 alone, by rule 2.10.
const FOR_RANK_0: u8 = 64;

fn sum_for_rank_0(index: usize) -> Chunk {
    Chunk { op: Op::Sum, audience: Audience::One(0), ..chunk(index) }
}

/// Rank 1 of 2 with three such sums in flight, and their headers.
fn outstanding() -> (Engine, Vec<Header>) {
    let mut engine = Engine::new(config(2, 1, 8));
    let send = |index| engine.send(0, sum_for_rank_0(index)).header;
    let headers = [0, 1, 2].map(send).to_vec();
    assert!(headers.iter().all(|header| header.op == FOR_RANK_0));
    (engine, headers)
}

/// A DONE that names the rounds of these contributions (rule 9.4).
fn done<'a>(headers: impl IntoIterator<Item = &'a Header> + Clone) -> Vec<u8> {
    let mut done = Done::of(headers.clone().into_iter().next().unwrap()).unwrap();
    let lanes = headers.into_iter().map(|header| U32::new(done.add(header).unwrap()));
    let lanes: Vec<U32> = lanes.collect();
    let mut header = done.header();
    header.rank.set(EVERYONE);
    header.aux.set(0);
    [header.as_bytes(), lanes.as_bytes()].concat()
}

/// The chunks that a datagram completes, by their place; `None` if it is no DONE.
fn passed(engine: &mut Engine, datagram: &[u8]) -> Option<Vec<Part>> {
    let mut parts = Vec::new();
    engine
        .receive_done(0, datagram, false, |completed, _| parts.push(completed.chunk.part))
        .then_some(parts)
}

#[test]
fn a_done_completes_the_chunks_that_it_names() {
    let (mut engine, headers) = outstanding();
    let found = passed(&mut engine, &done([&headers[2], &headers[0]]));
    assert_eq!(found, Some(vec![Part::Data(2), Part::Data(0)]));
    assert_eq!((engine.outstanding(), engine.stats().told, engine.stats().results), (1, 2, 2));
    // The DONE counts once: it is one datagram, even if it names several chunks.
    assert_eq!(passed(&mut engine, &done([&headers[0], &headers[2]])), Some(vec![]));
    assert_eq!(engine.stats().ignored(Ignored::NotOutstanding), 1);
    assert_eq!(passed(&mut engine, &done(&headers)), Some(vec![Part::Data(1)]));
    assert_eq!(engine.stats().ignored(Ignored::NotOutstanding), 1);
}

/// The bytes follow rules 2.2, 3.1 and 9.4, made by hand.
#[test]
fn a_done_is_that_of_the_specification() {
    let (mut engine, headers) = outstanding();
    let mut bytes = vec![1, 9];
    bytes.extend(JOB.to_be_bytes());
    bytes.extend(EPOCH.to_be_bytes());
    bytes.extend([0xFF, 0xFF, 0, 1, 0, 0, 0, 0, FOR_RANK_0, 4, 0, 2]);
    bytes.extend(headers[1].fingerprint.get().to_be_bytes());
    let lanes = [0x0001_0000u32, 0x0002_0000];
    let words = [u32::from(JOB) << 16 | 2, EPOCH, 1 << 8 | 64, 0, headers[1].fingerprint.get()];
    let salt = words.iter().fold(0u32, |h, word| h.wrapping_add(*word).wrapping_mul(0x9E37_79B1));
    bytes.extend(lanes.iter().fold(salt, |sum, lane| sum.wrapping_add(*lane)).to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(lanes.iter().flat_map(|lane| lane.to_be_bytes()));
    assert_eq!(bytes, done([&headers[1], &headers[2]]));
    assert_eq!(passed(&mut engine, &bytes), Some(vec![Part::Data(1), Part::Data(2)]));
}

#[test]
fn each_reason_to_ignore_a_done() {
    type Change = fn(&mut Header);
    let cases: &[(Ignored, Change)] = &[
        (Ignored::Job, |header| header.job.set(JOB + 1)),
        (Ignored::Epoch, |header| header.epoch.set(EPOCH + 1)),
        (Ignored::Rank, |header| header.rank.set(0)),
        (Ignored::Rank, |header| header.rank.set(1)),
        (Ignored::Call, |header| header.fingerprint.set(1)),
        // DONEs with wrong audiences: all ranks, rank 1 itself, all but rank 0.
        (Ignored::Call, |header| header.op = 0),
        (Ignored::Call, |header| header.op = 65),
        (Ignored::Call, |header| header.op = 128),
        (Ignored::Check, |header| header.flags = 0),
    ];
    for (number, (reason, change)) in cases.iter().enumerate() {
        let (mut engine, headers) = outstanding();
        let mut datagram = done([&headers[0]]);
        rewrite(&mut datagram, 1, change);
        assert_eq!(passed(&mut engine, &datagram), Some(vec![]), "case {number}");
        assert_eq!(engine.stats().ignored(*reason), 1, "case {number}: {:?}", engine.stats());
        assert_eq!(engine.outstanding(), 3);
    }
    let (mut engine, headers) = outstanding();
    let mut damaged = done([&headers[0]]);
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(passed(&mut engine, &damaged), Some(vec![]));
    assert_eq!(engine.stats().ignored(Ignored::Check), 1);
    // [`Engine::receive`] does not take a DONE.
    assert_eq!(engine.receive(0, &done([&headers[0]]), false), Ok(None));
    assert_eq!((engine.stats().ignored(Ignored::Kind), engine.outstanding()), (1, 3));
}

/// A rank that needs the lanes is not satisfied by a DONE.
#[test]
fn the_rank_that_the_lanes_are_for_waits_for_them() {
    let mut engine = Engine::new(config(2, 0, 8));
    let header = engine.send(0, sum_for_rank_0(0)).header;
    assert_eq!(passed(&mut engine, &done([&header])), Some(vec![]));
    assert_eq!((engine.stats().ignored(Ignored::Call), engine.outstanding()), (1, 1));
}

/// Slots of the chunks of rank 0's own part of an all-gather that may go now.
fn slots_of_own(engine: &mut Engine) -> Vec<u16> {
    let next = || engine.next_resend(0);
    let slot = |transmission: Transmission| {
        assert_eq!(transmission.header.flags & (flags::RETRANSMIT | flags::EMPTY), 0);
        transmission.header.slot.get()
    };
    std::iter::from_fn(next).map(slot).collect()
}

/// A chunk of rank 0's own part of an all-gather.
fn own(index: usize) -> Chunk {
    Chunk { audience: Audience::AllBut(0), may_wait: true, ..sum_for_rank_0(index) }
}

/// A rank's own part of an all-gather stays behind chunks that other ranks have lanes of.
#[test]
fn what_may_wait_is_sent_in_its_order_within_a_quarter_of_the_slots() {
    let mut engine = Engine::new(config(2, 0, 40));
    let of_1 = Chunk { audience: Audience::AllBut(1), empty: true, ..sum_for_rank_0(20) };
    (0..20).for_each(|index| engine.defer(0, own(index)));
    assert_eq!(engine.send(0, of_1).header.slot.get(), 20);
    assert_eq!(slots_of_own(&mut engine), (0..10).collect::<Vec<_>>());
    let header = |slot: u16| Header { slot: U16::new(slot), op: 128, ..first_of(0) };
    // A chunk that was not sent has no result.
    assert_eq!(passed(&mut engine, &done([&header(10)])), Some(vec![]));
    assert_eq!(engine.stats().ignored(Ignored::NotOutstanding), 1);
    assert_eq!(passed(&mut engine, &done([&header(1), &header(2)])).unwrap().len(), 2);
    assert_eq!(slots_of_own(&mut engine), [], "the oldest is still chunk 0");
    assert_eq!(passed(&mut engine, &done([&header(0)])).unwrap().len(), 1);
    assert_eq!(slots_of_own(&mut engine), [10, 11, 12]);
    assert_eq!(engine.stats().resent_by_overtaking + engine.stats().resent_by_timer, 0);
}

#[test]
fn what_may_wait_is_sent_as_the_window_allows() {
    let mut engine = Engine::new(config(2, 0, 128));
    assert!(engine.window() < 128 / 4);
    (0..40).for_each(|index| engine.defer(0, own(index)));
    assert_eq!(slots_of_own(&mut engine).len(), engine.window() as usize);
}

/// The header of a rank's first chunk, a sum for rank 0.
fn first_of(rank: u16) -> Header {
    Engine::new(config(2, rank, 64)).send(0, sum_for_rank_0(0)).header
}
