//! Ranks that leave, fail or are lost.

use switchml_control::moved_name;

use super::*;

#[test]
fn a_shard_that_fails_takes_its_job_along() {
    let mut table = table();
    let (stream, effects) = table.join(&threaded("train", 0, 1, 2)).unwrap();
    assert!(
        matches!(&effects[..], [Effect::Open(_), Effect::Open(_), Effect::Tell(..)]),
        "{effects:?}"
    );
    assert_eq!(
        table.fail(1023, "broken"),
        [Effect::Abort(0), Effect::Abort(1023), Effect::Tell(stream, aborted("broken", &[]))]
    );
}

#[test]
fn a_lost_rank_aborts_its_job_and_no_other() {
    let mut table = table();
    let (streams, spec) = started(&mut table, "train", 3);
    let (_, other) = started(&mut table, "other", 2);
    let news =
        aborted("rank 1 (10.0.0.2) is gone: its process ended, or its connection broke", &[1]);
    let expected = [
        Effect::Abort(spec.number),
        Effect::Tell(streams[0], news.clone()),
        Effect::Tell(streams[2], news),
    ];
    assert_eq!(table.disconnect(streams[1]), expected);
    assert_eq!(table.disconnect(streams[0]), []);
    assert_eq!(table.disconnect(streams[2]), [Effect::Close(spec.number)]);
    let left: Vec<_> = table.list().into_iter().map(|job| job.job).collect();
    assert_eq!(left, [u32::from(other.number)]);
}

/// The Aborted of rule 36.8.
fn stops(reason: &str, ranks: &[u32]) -> Event {
    let Event::Aborted(aborted) = aborted(reason, ranks) else { unreachable!("it is one") };
    Event::Aborted(control::Aborted { stops: true, ..aborted })
}

/// Rule 36.16. A rank that was frozen meanwhile hears the same when it comes back.
#[test]
fn a_rank_that_has_lost_the_aggregator_has_the_others_move() {
    let mut table = durable_table(1);
    let (streams, spec) = started(&mut table, "train", 3);
    let effects = table.be_lost(member(&spec, 1), "no answer\nfor 5 s").unwrap();
    let news = stops("rank 1 (10.0.0.2) takes this aggregator for lost: no answer for 5 s", &[]);
    let told: Vec<_> = effects.iter().filter(|it| !matches!(it, Effect::Save(_))).collect();
    let expected = [
        Effect::Abort(spec.number),
        Effect::Tell(streams[0], news.clone()),
        Effect::Tell(streams[2], news.clone()),
        Effect::End(streams[1]),
    ];
    assert_eq!(told, expected.iter().collect::<Vec<_>>());
    let (stream, effects) = table.resume(member(&spec, 2), peer(2)).unwrap();
    assert!(effects.contains(&Effect::Tell(stream, news.clone())), "{effects:?}");
    table.disconnect(streams[0]);
    table.disconnect(stream);
    let (stream, effects) = table.resume(member(&spec, 0), peer(0)).unwrap();
    assert!(effects.contains(&Effect::Tell(stream, news)), "{effects:?}");
}

/// Rule 36.17: with several aggregators, and where a job has moved, unlike with one.
#[test]
fn a_rank_whose_connection_broke_may_have_lost_the_aggregator() {
    let moved = moved_name("train", 7);
    for (name, aggregators, may_move) in
        [("train", 1, false), ("train", 2, true), (&moved, 1, true)]
    {
        let mut table = table();
        let mut streams = Vec::new();
        let mut effects = Vec::new();
        for rank in 0..2 {
            let stripe = Stripe { aggregators, weight: 0 };
            let joined = table.join(&Joiner { stripe, ..joiner(name, rank, 2) }).unwrap();
            streams.push(joined.0);
            effects = joined.1;
        }
        let spec = opened(&effects);
        (0..2).for_each(|rank| drop(table.ready(member(&spec, rank), 352, HEARD).unwrap()));
        let reason = "rank 1 (10.0.0.2) is gone: its process ended, or its connection broke";
        let news = if may_move { stops(reason, &[1]) } else { aborted(reason, &[1]) };
        let expected = [Effect::Abort(spec.number), Effect::Tell(streams[0], news)];
        assert_eq!(table.disconnect(streams[1]), expected, "{name} at {aggregators}");
    }
}

#[test]
fn a_rank_that_fails_says_why_in_one_line() {
    let mut table = table();
    let (streams, spec) = started(&mut table, "train", 2);
    let news = aborted("rank 1 (10.0.0.2) failed: out of memory", &[1]);
    let expected = vec![Effect::Abort(0), Effect::Tell(streams[0], news), Effect::End(streams[1])];
    assert_eq!(table.leave(member(&spec, 1), "out\n  of\x1b\tmemory\n", &[]), Ok(expected));
    let other = aborted(&format!("rank 0 (10.0.0.1) failed: {}", "x".repeat(500)), &[0]);
    let (streams, spec) = started(&mut table, "long", 2);
    let effects = table.leave(member(&spec, 0), &"x".repeat(10_000), &[]).unwrap();
    assert_eq!(effects[1], Effect::Tell(streams[1], other));
}

/// The ranks that the error blames are at fault, not the rank that reports it; numbers that are no
/// ranks of the job are ignored.
#[test]
fn whom_an_error_blames_is_at_fault() {
    let mut table = table();
    let (streams, spec) = started(&mut table, "train", 4);
    let effects = table.leave(
        member(&spec, 3),
        "no progress for 5 s: waiting for ranks 1 and 2",
        &[2, 1, 2, 4, u32::MAX],
    );
    let news = aborted(
        "rank 3 (10.0.0.4) failed: no progress for 5 s: waiting for ranks 1 and 2; rank 1 \
         (10.0.0.2), rank 2 (10.0.0.3)",
        &[1, 2],
    );
    let told = streams[..3].iter().map(|stream| Effect::Tell(*stream, news.clone()));
    let expected: Vec<_> =
        [Effect::Abort(0)].into_iter().chain(told).chain([Effect::End(streams[3])]).collect();
    assert_eq!(effects, Ok(expected));
}

/// The ranks that hear of it elsewhere, and pass it on, are in nobody's way to the cause.
#[test]
fn a_reason_that_names_a_rank_is_told_as_it_is() {
    let mut table = table();
    let (streams, spec) = started(&mut table, "train", 4);
    let reason = "rank 2 (10.0.0.3) is gone: its process ended, or its connection broke";
    let effects = table.leave(member(&spec, 3), reason, &[2]);
    let told = streams[..3].iter().map(|stream| Effect::Tell(*stream, aborted(reason, &[2])));
    let expected: Vec<_> =
        [Effect::Abort(0)].into_iter().chain(told).chain([Effect::End(streams[3])]).collect();
    assert_eq!(effects, Ok(expected));
    // Whom the error does not blame, it only mentions.
    let (streams, spec) = started(&mut table, "other", 2);
    let effects = table.leave(member(&spec, 1), "rank 0 is no friend", &[]).unwrap();
    let news = aborted("rank 1 (10.0.0.2) failed: rank 0 is no friend", &[1]);
    assert_eq!(effects[1], Effect::Tell(streams[0], news));
}

/// Errors name the hosts of those that are lost or blamed, in plain words, whatever a rank says.
#[test]
fn errors_name_the_hosts_of_ranks() {
    let mut table = table();
    let hosts = ["node7", "", "a\"b\u{1b}[31m), rank 3 (x y", &"h".repeat(100), "e", "f", "g"];
    let mut effects = Vec::new();
    for (rank, host_name) in (0..).zip(hosts) {
        let host_name = host_name.to_owned();
        effects = table.join(&Joiner { host_name, ..joiner("train", rank, 7) }).unwrap().1;
    }
    let last = (Level::Info, "job \"train\": rank 6 of 7 joined from 10.0.0.7, host g, 0 missing");
    assert!(table.log.contains(&(last.0, last.1.to_owned())), "{:?}", table.log);
    let refused = table.join(&joiner("train", 0, 7)).unwrap_err().to_string();
    assert!(refused.contains("already has rank 0, from 10.0.0.1, host node7; "), "{refused}");
    let names: Vec<_> = table.list()[0].members.iter().map(|m| m.host_name.clone()).collect();
    let long = "h".repeat(64);
    assert_eq!(names, ["node7", "", "ab31mrank3xy", &long, "e", "f", "g"]);
    let spec = opened(&effects);
    let effects = table.leave(member(&spec, 0), "no progress", &[1, 2, 3, 4, 5, 6]).unwrap();
    let reason = format!(
        "rank 0 (10.0.0.1, host node7) failed: no progress; rank 1 (10.0.0.2), rank 2 (10.0.0.3, \
         host ab31mrank3xy), rank 3 (10.0.0.4, host {long}), rank 4 (10.0.0.5, host e) and 2 more"
    );
    let told: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Tell(_, Event::Aborted(aborted)) => Some(aborted.reason.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(told, vec![reason; 6]);
}

#[test]
fn ranks_that_leave_in_good_order_end_the_job() {
    let mut table = table();
    let (streams, spec) = started(&mut table, "train", 2);
    let left = Effect::Tell(streams[1], Event::Left(control::Left { rank: 0 }));
    assert_eq!(table.leave(member(&spec, 0), "", &[]), Ok(vec![left, Effect::End(streams[0])]));
    assert_eq!(table.disconnect(streams[0]), []);
    assert_eq!(table.free_slots(), POOL - 512);
    assert_eq!(
        table.leave(member(&spec, 1), "", &[]),
        Ok(vec![Effect::Close(0), Effect::End(streams[1])])
    );
    assert_eq!(table.free_slots(), POOL);
    assert_eq!(table.list(), []);
    assert_eq!(table.leave(member(&spec, 1), "", &[]), Err(no_member(1)));
}

#[test]
fn a_rank_that_leaves_before_the_start_aborts_the_job() {
    let mut table = table();
    let (streams, effects) = join_all(&mut table, "train", 2);
    let spec = opened(&effects);
    let news = aborted("rank 0 (10.0.0.1) left before all ranks were ready", &[0]);
    let expected = vec![Effect::Abort(0), Effect::Tell(streams[1], news), Effect::End(streams[0])];
    assert_eq!(table.leave(member(&spec, 0), "", &[]), Ok(expected));
}

/// `doctor` does that, to see whether it would be let in.
#[test]
fn the_only_rank_of_a_job_may_leave_before_the_start() {
    let mut table = table();
    let (streams, effects) = join_all(&mut table, "train", 1);
    let spec = opened(&effects);
    assert_eq!(
        table.leave(member(&spec, 0), "", &[]),
        Ok(vec![Effect::Close(0), Effect::End(streams[0])])
    );
    assert_eq!((table.list(), table.free_slots()), (vec![], POOL));
}

#[test]
fn a_data_plane_that_fails_fails_the_job_for_all() {
    let mut table = table();
    let (streams, _) = join_all(&mut table, "train", 2);
    let news = aborted("the aggregator failed: no memory", &[]);
    let expected =
        [Effect::Abort(0), Effect::Tell(streams[0], news.clone()), Effect::Tell(streams[1], news)];
    assert_eq!(table.fail(0, "the aggregator failed: no memory"), expected);
}

#[test]
fn stopping_tells_everyone_and_ends_every_stream() {
    let mut table = table();
    let (streams, _) = started(&mut table, "train", 2);
    let (waiting, _) = table.join(&joiner("other", 0, 2)).unwrap();
    let effects = table.shut_down();
    let reason = "the aggregator stops".to_owned();
    let stops =
        Event::Aborted(control::Aborted { reason, stops: true, ..control::Aborted::default() });
    for stream in [streams[0], streams[1], waiting] {
        let told = effects.iter().position(|e| *e == Effect::Tell(stream, stops.clone()));
        let ended = effects.iter().position(|e| *e == Effect::End(stream));
        assert!(told.expect("told") < ended.expect("ended"));
    }
}

#[test]
fn a_lost_port_aborts_the_jobs_behind_it_and_no_others() {
    let mut table = durable_table(1);
    let at = |port| HEARD.map(|binding| Binding { ifindex: port, ..binding });
    let (streams, effects) = join_all(&mut table, "train", 3);
    let spec = opened(&effects);
    for (rank, port) in [(0, 4), (1, 5), (2, 5)] {
        table.ready(member(&spec, rank), 352, at(port)).unwrap();
    }
    let (_, effects) = join_all(&mut table, "other", 1);
    let other = opened(&effects);
    table.ready(member(&other, 0), 352, at(4)).unwrap();
    let news = aborted(
        "rank 1 (10.0.0.2), rank 2 (10.0.0.3) cannot reach the aggregator any more: p5 is gone; \
         join again",
        &[],
    );
    let effects = table.lose_port(5, "p5 is gone");
    assert_eq!(effects[1], Effect::Abort(spec.number));
    assert_eq!(effects[2..], [0, 1, 2].map(|rank| Effect::Tell(streams[rank], news.clone())));
    assert_eq!(table.lose_port(5, "p5 is gone"), []);
    assert_eq!(table.lose_port(6, "p6 is gone"), []);
}

#[test]
fn jobs_are_counted_by_how_they_ended() {
    let mut table = table();
    let (_, spec) = started(&mut table, "finishes", 2);
    for rank in 0..2 {
        table.leave(member(&spec, rank), "", &[]).unwrap();
    }
    let (streams, _) = started(&mut table, "loses both ranks", 2);
    for stream in streams {
        table.disconnect(stream);
    }
    let (_, spec) = started(&mut table, "fails", 2);
    table.leave(member(&spec, 1), "out of memory", &[]).unwrap();
    table.leave(member(&spec, 0), "", &[]).unwrap();
    let (_, effects) = join_all(&mut table, "does not start", 2);
    let number = opened(&effects).number;
    table.fail(number, "broken");
    let tally = table.tally();
    assert_eq!(tally.started, 3);
    let ended = tally.ended().filter(|(.., jobs)| *jobs > 0).map(|(name, _, jobs)| (name, jobs));
    let expected = [("finished", 1), ("rank_failed", 1), ("rank_lost", 1), ("data_plane", 1)];
    assert_eq!(ended.collect::<Vec<_>>(), expected);
}
