//! Engines against the real aggregator, over networks fair and foul.

mod audiences;
mod network;
mod zeros;

use proptest::prelude::*;
use switchml_protocol::EVERYONE;
use switchml_protocol::wire::header::{HEADER_LEN, Op};
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use network::{EPOCH, FAIR, HOP, JOB, Network, Switch, Weather, chunk, config, packet};

const MS: u64 = 1_000_000;

#[test]
fn a_fair_network_needs_no_resends() {
    let mut network = Network::new(4, 64, 1000, FAIR);
    network.run();
    network.assert_done();
    for worker in &network.workers {
        let stats = worker.engine.stats();
        assert_eq!(
            (stats.chunks, stats.results, stats.resent(), stats.pending),
            (1000, 1000, 0, 0)
        );
        assert_eq!(stats.ignored.iter().sum::<u64>(), 0);
        // The round trip is the way there and back.
        assert_eq!(worker.engine.rtt(), Some(2 * HOP));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_sum_is_right_in_any_weather(
        ranks in 1u16..6,
        slots in 1u16..40,
        chunks in 0usize..300,
        loss in 0u64..250,
        duplication in 0u64..250,
        jitter in 0u64..400_000,
        seed: u64,
    ) {
        let weather = Weather { loss, duplication, jitter, seed };
        let mut network = Network::new(ranks, slots, chunks, weather);
        network.run();
        network.assert_done();
    }
}

/// A rank that gets no RESULTs for all asks for each result. It can tell that from loss; other
/// ranks do not notice.
#[test]
fn a_rank_that_hears_no_group_knows() {
    let mut network = Network::new(3, 1, 2000, FAIR);
    network.without_group = Some(1);
    network.run();
    network.assert_done();
    let hear_no_group = [0, 1, 2].map(|rank: usize| network.workers[rank].engine.hears_no_group());
    assert_eq!(hear_no_group, [false, true, false]);
    let came = [0, 1].map(|rank: usize| {
        let stats = network.workers[rank].engine.stats();
        (stats.for_all, stats.copies)
    });
    assert_eq!(came, [(2000, 0), (0, 2000)]);
}

/// A group that stops being heard in the middle of a job, and one that is heard in between.
#[test]
fn copies_tell_of_a_group_that_is_lost_after_half_a_second() {
    let (mut engine, mut peer) = (Engine::new(config(2, 0, 8)), Engine::new(config(2, 1, 8)));
    let switch = Switch::new(2, 8);
    let mut number = 0;
    // The next result comes at time `at`, for all or as a copy.
    let mut hears_no_group_after = |at: u64, is_for_all: bool| {
        let own = packet(0, &engine.send(at, chunk(number)));
        switch.serve(0, &own);
        let (_, for_all) = switch.serve(1, &packet(1, &peer.send(at, chunk(number)))).unwrap();
        peer.receive(at, &for_all, false).unwrap();
        number += 1;
        let answer = if is_for_all { for_all } else { switch.serve(0, &own).unwrap().1 };
        assert!(engine.receive(at, &answer, false).unwrap().is_some());
        engine.hears_no_group()
    };
    assert!(!hears_no_group_after(0, true));
    let seven = (0..7).map(|i| hears_no_group_after(MS + i * 100 * MS, false));
    assert_eq!(seven.filter(|lost| *lost).count(), 0, "too few to tell");
    assert!(hears_no_group_after(701 * MS, false), "8 over 0.7 s");
    assert!(!hears_no_group_after(702 * MS, true), "it is heard again");
    let burst = (0..20).map(|_| hears_no_group_after(703 * MS, false));
    assert_eq!(burst.filter(|lost| *lost).count(), 0, "they came when the path did");
    assert!(!hears_no_group_after(1202 * MS, false));
    assert!(hears_no_group_after(1203 * MS, false));
}

/// A group that brings results after their copies is heard.
#[test]
fn a_result_for_all_that_comes_late_counts() {
    let (mut engine, mut peer) = (Engine::new(config(2, 0, 8)), Engine::new(config(2, 1, 8)));
    let switch = Switch::new(2, 8);
    let own = packet(0, &engine.send(0, chunk(0)));
    switch.serve(0, &own);
    let (to_all, for_all) = switch.serve(1, &packet(1, &peer.send(0, chunk(0)))).unwrap();
    let (copy_to_all, copy) = switch.serve(0, &own).unwrap();
    assert_eq!((to_all, copy_to_all), (true, false));
    assert!(engine.receive(1, &copy, false).unwrap().is_some());
    assert!(engine.receive(2, &for_all, false).unwrap().is_none());
    assert_eq!((engine.stats().for_all, engine.stats().copies), (1, 1));
}

#[test]
fn loss_is_not_taken_for_a_group_that_is_not_heard() {
    for seed in 1..=100 {
        let weather = Weather { loss: 400, duplication: 0, jitter: 200_000, seed };
        let mut network = Network::new(3, 64, 100, weather);
        network.run();
        for worker in &network.workers {
            assert!(!worker.engine.hears_no_group(), "{:?}", worker.engine.stats());
        }
    }
}

#[test]
fn one_slot_takes_one_chunk_at_a_time() {
    let mut engine = Engine::new(config(2, 0, 1));
    assert!(engine.may_send());
    engine.send(0, chunk(0));
    assert!(!engine.may_send(), "chunk 1 needs the result of chunk 0");
}

#[test]
fn a_chunk_waits_for_the_result_of_the_slots_last_use() {
    // A window that is larger than the slots left: chunk 0 is stuck, the other slots go on.
    let mut engine = Engine::new(config(1, 0, 8));
    let switch = Switch::new(1, 8);
    let mut sent = Vec::new();
    let mut results = 0;
    while engine.may_send() {
        let transmission = engine.send(0, chunk(sent.len()));
        sent.push(transmission.header);
        if sent.len() > 1 {
            let (_, answer) = switch.serve(0, &packet(0, &transmission)).unwrap();
            engine.receive(0, &answer, false).unwrap().unwrap();
            results += 1;
        }
    }
    assert_eq!((sent.len(), results), (8, 7), "chunk 8 must wait for chunk 0");
    let places: Vec<_> =
        sent.iter().map(|header| (header.slot.get(), header.round.get())).collect();
    assert_eq!(places, (0..8).map(|slot| (slot, 0)).collect::<Vec<_>>());
}

#[test]
fn a_late_peer_costs_next_to_nothing() {
    let mut network = Network::new(3, 64, 200, FAIR);
    network.start_at(2, 300 * MS);
    network.run();
    network.assert_done();
    for worker in &network.workers[..2] {
        let stats = worker.engine.stats();
        // Timeouts of 1, 2, 4, 8, 16, 20, 20, … ms, one packet each, for 300 ms: at most 4 + 300 /
        // 20, and the first before the rank knows that a peer is late.
        assert!((5..=20).contains(&stats.resent()), "{stats:?}");
        assert_eq!(
            (stats.resent_by_timer, stats.resent_by_overtaking, stats.window_cuts),
            (1, 0, 0),
            "{stats:?}"
        );
        assert_eq!(stats.pending, stats.resent());
        assert!(worker.engine.rtt() < Some(MS), "waiting for a peer is no round trip");
    }
    assert_eq!(network.workers[2].engine.stats().resent(), 0);
}

#[test]
fn a_lost_contribution_is_sent_again_before_the_timer() {
    let mut network = Network::new(2, 64, 400, FAIR);
    let mut lost_at = None;
    network.passes = Box::new(move |now, rank, header| {
        let lose =
            rank == 1 && header.slot.get() == 5 && header.round.get() == 3 && lost_at.is_none();
        if lose {
            lost_at = Some(now);
        }
        !lose
    });
    network.run();
    network.assert_done();
    let [first, second] = &network.workers[..] else { unreachable!() };
    assert_eq!(second.engine.stats().resent_by_timer, 0);
    assert_eq!(second.engine.stats().resent_by_overtaking, 1);
    assert_eq!(
        [first, second].map(|worker| worker.engine.stats().window_cuts),
        [0, 0],
        "one chunk is no congestion"
    );
}

#[test]
fn a_chunk_behind_one_that_was_sent_again_is_overtaken_all_the_same() {
    let switch = Switch::new(1, 8);
    let mut engine = Engine::new(config(1, 0, 8));
    let third = [0, 1, 2].map(|index| engine.send(0, chunk(index)))[2];
    // The first two chunks are lost. The timer sends the first again, after the third, whose result
    // comes now.
    engine.on_timer(MS).unwrap();
    assert_eq!(engine.next_resend(MS).map(|resent| resent.header.slot.get()), Some(0));
    let (_, answer) = switch.serve(0, &packet(0, &third)).unwrap();
    engine.receive(MS, &answer, false).unwrap().unwrap();
    engine.on_timer(MS + MS / 2).unwrap();
    let marked = (engine.stats().resent_by_timer, engine.stats().resent_by_overtaking);
    assert_eq!(
        (marked, engine.next_resend(2 * MS).map(|resent| resent.header.slot.get())),
        ((1, 1), Some(1))
    );
}

/// Two chunks go out at `now`, and the second's result comes after a round trip of 8 ms. When the
/// first counts as lost; if `is_late`, it is not, and has two results then.
fn overtaken_by(engine: &mut Engine, switch: &Switch, now: u64, is_late: bool) -> u64 {
    let [first, second] = [0, 1].map(|index| packet(0, &engine.send(now, chunk(index))));
    let answer = |packet: &[u8]| switch.serve(0, packet).unwrap().1;
    let at = now + 8 * MS;
    let late = is_late.then(|| answer(&first));
    engine.receive(at, &answer(&second), false).unwrap().unwrap();
    engine.on_timer(at).unwrap();
    let lost_at = engine.deadline().unwrap();
    engine.on_timer(lost_at).unwrap();
    let resent = packet(0, &engine.next_resend(lost_at).unwrap());
    let results = late.into_iter().chain([answer(&resent)]);
    let ends = results.map(|result| engine.receive(lost_at, &result, false).unwrap().is_some());
    assert_eq!(ends.collect::<Vec<_>>(), [&[true][..], &vec![false; is_late.into()]].concat());
    lost_at - at
}

#[test]
fn resends_for_nothing_make_it_wait_longer() {
    let switch = Switch::new(1, 64);
    let mut config = config(1, 0, 64);
    config.rtt.floor = 100 * MS;
    let mut engine = Engine::new(config);
    engine.sample_rtt(0, 8 * MS);
    let mut quarters = |begin: u64, is_late| {
        overtaken_by(&mut engine, &switch, begin * 1000 * MS, is_late).div_ceil(MS) / 2
    };
    assert_eq!([1, 2, 3].map(|time| quarters(time, false)), [1, 1, 1], "losses change nothing");
    assert_eq!([4, 5, 6, 7, 8].map(|time| quarters(time, true)), [1, 2, 3, 4, 4]);
}

/// All ranks send a chunk again whose result they miss, so the result may follow another rank's
/// resend, long before this rank's own arrives. Chunks in flight are then not lost, and their
/// results would be the next such proof.
#[test]
fn the_result_of_a_resend_is_no_proof_for_a_round_trip() {
    let mut config = config(1, 0, 64);
    config.rtt.floor = 100 * MS;
    let switch = Switch::new(1, 64);
    let mut engine = Engine::new(config);
    engine.sample_rtt(0, 2 * MS);
    // A HELLO on the idle link: by that, any result may be a resend's.
    engine.sample_rtt(0, 1);
    let hear = |engine: &mut Engine, at, packet: &[u8]| {
        let (_, answer) = switch.serve(0, packet).unwrap();
        assert!(engine.receive(at, &answer, false).unwrap().is_some());
    };
    let [first, second] = [0, 1].map(|index| packet(0, &engine.send(0, chunk(index))));
    hear(&mut engine, 2 * MS, &second);
    let others = [2, 3].map(|index| packet(0, &engine.send(2 * MS + MS / 4, chunk(index))));
    engine.on_timer(2 * MS + MS / 2).unwrap();
    assert_eq!(engine.next_resend(2 * MS + MS / 2).map(|it| it.header.slot.get()), Some(0));
    hear(&mut engine, 3 * MS, &first);

    let resent = |engine: &mut Engine, at| {
        engine.on_timer(at).unwrap();
        engine.stats().resent_by_overtaking
    };
    assert_eq!(resent(&mut engine, 5 * MS - 1), 1);
    // If no other result comes, it is the only proof.
    assert_eq!(resent(&mut engine.clone(), 5 * MS), 3);
    hear(&mut engine, 5 * MS - 1, &others[0]);
    assert_eq!(resent(&mut engine, 90 * MS), 1, "the other was sent no earlier");
}

#[test]
fn a_lost_tail_comes_back_in_few_timeouts() {
    let mut network = Network::new(2, 256, 32, FAIR);
    // Loses everything that rank 1 sends at first: 16 chunks at the same moment.
    network.passes = Box::new(|now, rank, _| !(rank == 1 && now == 0));
    network.run();
    network.assert_done();
    assert!(network.now < 5 * MS, "took {} ns", network.now);
}

/// The timer was too early, because a peer came late: results of earlier chunks keep coming, so
/// none of them is lost.
#[test]
fn a_late_peers_chunks_have_not_been_overtaken_by_the_timers() {
    let switch = Switch::new(2, 64);
    let mut engines = [0, 1].map(|rank| Engine::new(config(2, rank, 64)));
    engines[0].sample_rtt(0, 2 * HOP);
    for index in 0..16 {
        assert_eq!(switch.serve(0, &packet(0, &engines[0].send(0, chunk(index)))), None);
    }
    let timer = engines[0].deadline().unwrap();
    engines[0].on_timer(timer).unwrap();
    assert_eq!(engines[0].next_resend(timer).map(|resent| resent.header.slot.get()), Some(0));
    // Packets are as far apart as on a slow link, which is less than the reordering window.
    for index in 0..16 {
        let now = timer + 3 * HOP + index as u64 * 2 * HOP;
        engines[0].on_timer(now).unwrap();
        let (_, result) = switch.serve(1, &packet(1, &engines[1].send(now, chunk(index)))).unwrap();
        engines[0].receive(now, &result, false).unwrap().unwrap();
    }
    assert_eq!((engines[0].stats().resent(), engines[0].stats().resent_by_timer), (1, 1));
}

#[test]
fn a_missing_rank_is_named_at_the_timeout() {
    let mut network = Network::new(4, 64, 100, FAIR);
    network.passes = Box::new(|_, rank, header| {
        !(rank == 2 && header.round.get() == 0 && header.slot.get() >= 40)
    });
    network.run();
    for worker in network.workers.iter().filter(|worker| worker.engine.config.identity.rank != 2) {
        let (at, failure) = worker.failure.unwrap();
        assert_eq!(failure, Failure::Missing([2].into()));
        assert!(
            (3000 * MS..3010 * MS).contains(&at),
            "three seconds after the last progress, not at {at}"
        );
    }
    // The rank itself receives nothing at all for a second.
    let (at, failure) = network.workers[2].failure.unwrap();
    assert_eq!(failure, Failure::Silent);
    assert!((1000 * MS..1010 * MS).contains(&at), "{at}");
}

#[test]
fn ranks_that_are_there_are_waited_for_beyond_the_deadline() {
    let mut network = Network::new(3, 64, 100, FAIR);
    network.start_at(2, 2500 * MS);
    network.run();
    network.assert_done();
}

#[test]
fn a_rank_that_was_missing_long_ago_is_not_named() {
    let switch = Switch::new(2, 8);
    let mut engine = Engine::new(config(2, 0, 8));
    assert_eq!(switch.serve(0, &packet(0, &engine.send(0, chunk(0)))), None);
    let ask = |engine: &mut Engine, at| {
        engine.on_timer(at).unwrap();
        switch.serve(0, &packet(0, &engine.next_resend(at).unwrap())).unwrap().1
    };
    // Told that rank 1 is missing, and then nothing for the deadline of a second.
    let answer = ask(&mut engine, 400 * MS);
    engine.receive(499 * MS, &answer, false).unwrap();
    assert_eq!(
        engine.waiting(499 * MS),
        Some(Waiting { ranks: [1].into(), collective: 0, time: 499 * MS })
    );
    let mut silent = engine.clone();
    assert_eq!(run_until(&mut silent, 1499 * MS - 1), Ok(()));
    assert_eq!(silent.on_timer(1499 * MS), Err(Failure::Silent));
    // If nobody watches whether rank 1 lives, the wait for it also ends after the deadline. Rank 1
    // is named if the aggregator named it recently.
    engine.note_watched(0, false);
    let mut unwatched = engine.clone();
    assert_eq!(run_until(&mut unwatched, 1000 * MS - 1), Ok(()));
    assert_eq!(
        unwatched.on_timer(1000 * MS),
        Err(Failure::Silent),
        "in the second half of the deadline there was no answer"
    );
    let answer = ask(&mut engine, 480 * MS);
    engine.receive(501 * MS, &answer, false).unwrap();
    let mut unwatched = engine.clone();
    assert_eq!(run_until(&mut unwatched, 1000 * MS - 1), Ok(()));
    assert_eq!(unwatched.on_timer(1000 * MS), Err(Failure::Missing([1].into())));
    // The control plane is back in time.
    engine.note_watched(999 * MS, true);
    assert_eq!(run_until(&mut engine, 1501 * MS - 1), Ok(()));
    assert_eq!(engine.on_timer(1501 * MS), Err(Failure::Silent));
}

/// Calls the engine whenever it wants to be called, before time `end`.
fn run_until(engine: &mut Engine, end: u64) -> Result<(), Failure> {
    while let Some(at) = engine.deadline().filter(|at| *at <= end) {
        engine.on_timer(at)?;
        while engine.next_resend(at).is_some() {}
    }
    Ok(())
}

/// A process that was stopped, or a host that was suspended: the answers of that time wait in its
/// socket.
#[test]
fn a_rank_that_stood_still_itself_does_not_call_that_silence() {
    let mut engine = Engine::new(config(2, 0, 8));
    engine.send(0, chunk(0));
    assert_eq!(run_until(&mut engine, 300 * MS), Ok(()));
    // The timer was due within 20 ms, and is called after 8 s.
    assert_eq!(
        run_until(&mut engine.clone(), 8300 * MS),
        Err(Failure::Silent),
        "looking all the time"
    );
    assert_eq!(engine.on_timer(8300 * MS), Ok(()));
    assert!(engine.next_resend(8300 * MS).is_some(), "it asks at once");
    // From now on, the deadline is a second again.
    assert_eq!(run_until(&mut engine, 9300 * MS - 1), Ok(()));
    assert_eq!(engine.on_timer(9300 * MS), Err(Failure::Silent));
}

#[test]
fn a_silent_aggregator_is_called_that() {
    let mut network = Network::new(2, 8, 10, FAIR);
    network.passes = Box::new(|_, _, _| false);
    network.run();
    for worker in &network.workers {
        assert_eq!(worker.failure, Some((1000 * MS, Failure::Silent)));
        // Timeouts of 1, 2, 4, 8, 16, 20, 20, … ms: 5 + (1000 - 31) / 20 of up to 4 chunks, half of
        // 8 slots.
        assert!(worker.engine.stats().resent() < 4 * 54);
    }
}

/// If nothing is verified, a damaged maximum looks like another call, so no rank is blamed.
#[test]
fn without_checked_maxima_a_refusal_is_not_certain() {
    let switch = Switch::new(2, 8);
    let mut engines = [0, 1].map(|rank| {
        let mut config = config(2, rank, 8);
        config.capabilities.remove(Capabilities::CHECKED_MAXIMA);
        Engine::new(config)
    });
    let first = engines[0].send(0, chunk(0));
    let second = engines[1].send(0, Chunk { fingerprint: 0xBAD, ..chunk(0) });
    assert_eq!(switch.serve(0, &packet(0, &first)), None);
    let (_, answer) = switch.serve(1, &packet(1, &second)).unwrap();
    assert!(matches!(
        engines[1].receive(HOP, &answer, false),
        Err(Failure::Mismatch { first: 0, dissenter: 1, is_certain: false, .. })
    ));
}

#[test]
fn different_calls_fail_on_both_sides() {
    let switch = Switch::new(2, 8);
    let mut engines = [0, 1].map(|rank| Engine::new(config(2, rank, 8)));
    let first = engines[0].send(0, Chunk { collective: 41, ..chunk(0) });
    let second = engines[1].send(0, Chunk { fingerprint: 0xBAD, ..chunk(0) });
    assert_eq!(switch.serve(0, &packet(0, &first)), None);
    // Each rank reports which of its own calls it was.
    let expected = |collective| {
        Err(Failure::Mismatch { first: 0, dissenter: 1, collective, is_certain: true })
    };
    let (_, answer) = switch.serve(1, &packet(1, &second)).unwrap();
    assert_eq!(engines[1].receive(HOP, &answer, false), expected(0));
    // The other rank finds out when it asks.
    let at = engines[0].deadline().unwrap();
    engines[0].on_timer(at).unwrap();
    let again = engines[0].next_resend(at).unwrap();
    assert_eq!(again.header.flags & flags::RETRANSMIT, flags::RETRANSMIT);
    let (_, answer) = switch.serve(0, &packet(0, &again)).unwrap();
    assert_eq!(engines[0].receive(at, &answer, false), expected(41));
}

/// Rank 0's chunk is in, and it asks again. Returns the question's time and the answer, which names
/// the ranks that are in.
fn ask_again(engine: &mut Engine, switch: &Switch) -> (u64, Vec<u8>) {
    let at = engine.deadline().unwrap();
    engine.on_timer(at).unwrap();
    let question = engine.next_resend(at).unwrap();
    (at, switch.serve(0, &packet(0, &question)).unwrap().1)
}

#[test]
fn a_rank_that_left_is_not_waited_for() {
    let switch = Switch::new(3, 8);
    let mut engine = Engine::new(config(3, 0, 8));
    assert_eq!(switch.serve(0, &packet(0, &engine.send(0, chunk(0)))), None);
    // The answer to a packet sent before the news may be older than the last contribution of the
    // rank that left.
    let (at, before) = ask_again(&mut engine, &switch);
    engine.note_departed(&[2].into());
    assert_eq!(engine.receive(at, &before, false), Ok(None));
    assert_eq!(engine.receive(at, &before, false), Ok(None), "nor is its duplicate newer");
    let (at, after) = ask_again(&mut engine, &switch);
    // The repeated news changes nothing.
    engine.note_departed(&[2].into());
    assert_eq!(engine.receive(at, &after, false), Err(Failure::Departed([2].into())));
}

#[test]
fn a_rank_that_left_after_its_contribution_is_not_missed() {
    let switch = Switch::new(3, 8);
    let mut engine = Engine::new(config(3, 0, 8));
    let mine = engine.send(0, chunk(0));
    assert_eq!(switch.serve(0, &packet(0, &mine)), None);
    let other = Engine::new(config(3, 2, 8)).send(0, chunk(0));
    assert_eq!(switch.serve(2, &packet(2, &other)), None);
    engine.note_departed(&[2].into());
    for _ in 0..3 {
        let (at, answer) = ask_again(&mut engine, &switch);
        assert_eq!(
            engine.receive(at, &answer, false),
            Ok(None),
            "rank 1 is missing, and has not left"
        );
    }
    let last = Engine::new(config(3, 1, 8)).send(0, chunk(0));
    let (to_all, answer) = switch.serve(1, &packet(1, &last)).unwrap();
    assert!(to_all && engine.receive(HOP, &answer, false).unwrap().is_some());
}

/// Answers that name ranks which do not exist as missing or disagreeing, or that name none as
/// missing, are ignored.
#[test]
fn answers_about_ranks_that_cannot_be_meant_are_ignored() {
    let switch = Switch::new(3, 8);
    let mut engine = Engine::new(config(3, 0, 8));
    assert_eq!(switch.serve(0, &packet(0, &engine.send(0, chunk(0)))), None);
    let (_, pending) = ask_again(&mut engine, &switch);
    let with_words = |kind: Kind, words: [u32; 2]| {
        let mut answer = pending.clone();
        answer[HEADER_LEN..].copy_from_slice(words.map(U32::new).as_bytes());
        rewrite(&mut answer, 1, |header| header.kind = kind as u8);
        answer
    };
    let mismatch =
        |first: u32, dissenter: u32| with_words(Kind::Reject, [1, first << 16 | dissenter]);
    let pending = |seen: u64| with_words(Kind::Pending, [(seen >> 32) as u32, seen as u32]);
    let refused = [
        pending(0),
        pending(0b110),
        pending(0b111),
        pending(0b1001),
        pending(1 << 63 | 1),
        mismatch(3, 0),
        mismatch(0, 3),
    ];
    for (number, answer) in (1..).zip(&refused) {
        assert_eq!(engine.receive(0, answer, false), Ok(None));
        assert_eq!(engine.stats().ignored(Ignored::Ranks), number);
    }
    for seen in [0b001, 0b011, 0b101] {
        assert_eq!(engine.receive(0, &pending(seen), false), Ok(None));
    }
    assert_eq!((engine.stats().pending, engine.stats().ignored(Ignored::Ranks)), (3, 7));
    assert!(matches!(
        engine.receive(0, &mismatch(2, 1), false),
        Err(Failure::Mismatch { first: 2, dissenter: 1, .. })
    ));
}

#[test]
fn aborted_and_out_of_step() {
    let switch = Switch::new(2, 8);
    let mut engine = Engine::new(config(2, 0, 8));
    let mut transmission = engine.send(0, chunk(0));
    switch.abort();
    let (_, answer) = switch.serve(0, &packet(0, &transmission)).unwrap();
    assert_eq!(engine.clone().receive(0, &answer, false), Err(Failure::Aborted));

    let switch = Switch::new(2, 8);
    transmission.header.round.set(1);
    let (_, mut answer) = switch.serve(0, &packet(0, &transmission)).unwrap();
    // The aggregator has lost all; this rank would be in round 1. Its answer, as if to round 0:
    rewrite(&mut answer, 1, |header| header.round.set(0));
    assert_eq!(engine.receive(0, &answer, false), Err(Failure::Round { ours: 0, newest: 0 }));
}

/// The result of a lone rank's first chunk, and the engine that waits for it.
fn lone() -> (Engine, Vec<u8>) {
    let mut engine = Engine::new(config(1, 0, 8));
    let transmission = engine.send(0, chunk(0));
    let (to_all, answer) = Switch::new(1, 8).serve(0, &packet(0, &transmission)).unwrap();
    assert!(to_all);
    (engine, answer)
}

/// Changes the header of an answer to `contributions` contributions, and makes its check word fit
/// again.
fn rewrite(answer: &mut [u8], contributions: u32, change: impl FnOnce(&mut Header)) {
    let (header, payload) = Header::mut_from_prefix(answer).unwrap();
    let lanes = <[U32]>::ref_from_bytes(payload).unwrap();
    let sum = lanes.iter().fold(0u32, |sum, lane| sum.wrapping_add(lane.get()));
    change(header);
    header.check.set(header.check_of(sum, contributions));
}

#[test]
fn each_reason_to_ignore_an_answer() {
    type Change = fn(&mut Header);
    let cases: &[(Ignored, Change)] = &[
        (Ignored::Malformed, |header| header.version = 2),
        (Ignored::Malformed, |header| header.lanes.set(64)),
        (Ignored::Kind, |header| header.kind = Kind::Contribution as u8),
        (Ignored::Kind, |header| header.kind = Kind::Hello as u8),
        (Ignored::Job, |header| header.job.set(JOB + 1)),
        (Ignored::Epoch, |header| header.epoch.set(EPOCH + 1)),
        (Ignored::Rank, |header| header.rank.set(1)),
        (Ignored::NotOutstanding, |header| header.slot.set(1)),
        (Ignored::NotOutstanding, |header| header.slot.set(8)),
        (Ignored::NotOutstanding, |header| header.round.set(1)),
        (Ignored::Call, |header| header.fingerprint.set(1)),
        (Ignored::Call, |header| header.op = Op::Max as u8),
        (Ignored::Check, |header| header.flags &= !flags::CHECKED),
    ];
    for (number, (reason, change)) in cases.iter().enumerate() {
        let (mut engine, mut answer) = lone();
        rewrite(&mut answer, 1, change);
        assert_eq!(engine.receive(0, &answer, false), Ok(None), "case {number}");
        let mut counters = [0; Ignored::ALL.len()];
        counters[*reason as usize] = 1;
        assert_eq!(engine.stats().ignored, counters, "case {number}: {reason:?}");
        assert_eq!(engine.outstanding(), 1);
    }
}

#[test]
fn a_result_counts_once_whoever_it_is_addressed_to() {
    for rank in [0, EVERYONE] {
        let (mut engine, mut answer) = lone();
        rewrite(&mut answer, 1, |header| header.rank.set(rank));
        assert!(engine.receive(0, &answer, false).unwrap().is_some());
        assert_eq!(engine.receive(0, &answer, false), Ok(None));
        assert_eq!(engine.stats().ignored(Ignored::NotOutstanding), 1);
    }
}

#[test]
fn any_changed_bit_is_noticed() {
    let (engine, answer) = lone();
    for bit in 0..answer.len() * 8 {
        let mut changed = answer.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let outcome = engine.clone().receive(0, &changed, false);
        // Bits that the check word does not cover: RETRANSMIT and CE, unused flags, and the
        // sender's own word.
        let is_judged = [flags::CHECKED, flags::TAGGED].contains(&(1 << (bit % 8)));
        let unchecked =
            (17 * 8..18 * 8).contains(&bit) && !is_judged || (28 * 8..32 * 8).contains(&bit);
        assert_eq!(matches!(outcome, Ok(Some(_))), unchecked, "bit {bit}: {outcome:?}");
    }
}

#[test]
fn pending_is_for_its_addressee_alone() {
    let switch = Switch::new(2, 8);
    let mut engine = Engine::new(config(2, 0, 8));
    let transmission = engine.send(0, chunk(0));
    assert_eq!(switch.serve(0, &packet(0, &transmission)), None);
    let (_, mut answer) = switch.serve(0, &packet(0, &transmission)).unwrap();
    rewrite(&mut answer, 1, |header| header.rank.set(EVERYONE));
    engine.receive(0, &answer, false).unwrap();
    assert_eq!((engine.stats().pending, engine.stats().ignored(Ignored::Rank)), (0, 1));
    rewrite(&mut answer, 1, |header| header.rank.set(0));
    engine.receive(0, &answer, false).unwrap();
    assert_eq!(engine.stats().pending, 1);
}

#[test]
fn congestion_marks_halve_the_window_once_a_round_trip() {
    let mut engine = Engine::new(Config {
        window: WindowLimits { initial: 64, ..config(1, 0, 128).window },
        ..config(1, 0, 128)
    });
    let switch = Switch::new(1, 128);
    let mut answers: Vec<_> = (0..64)
        .map(|index| switch.serve(0, &packet(0, &engine.send(0, chunk(index)))).unwrap().1)
        .collect();
    assert!(!engine.may_send(), "64 is the initial window");
    // One mark by the IP header, one by a rank's contribution.
    engine.receive(HOP, &answers[0], true).unwrap().unwrap();
    assert_eq!(engine.window(), 32);
    rewrite(&mut answers[1], 1, |header| header.flags |= flags::CE);
    engine.receive(HOP, &answers[1], false).unwrap().unwrap();
    assert_eq!((engine.window(), engine.stats().congested, engine.stats().window_cuts), (32, 2, 1));
}

#[test]
fn nothing_outstanding_needs_no_timer() {
    let mut engine = Engine::new(config(1, 0, 8));
    assert_eq!((engine.deadline(), engine.on_timer(u64::MAX)), (None, Ok(())));
    let (mut engine, answer) = lone();
    assert_eq!(engine.deadline(), Some(MS), "the initial timeout");
    engine.receive(HOP, &answer, false).unwrap().unwrap();
    assert_eq!(engine.deadline(), None);
    // After a long pause, the deadline counts from the next chunk.
    engine.send(5000 * MS, chunk(1));
    assert_eq!(engine.on_timer(5000 * MS), Ok(()));
}
