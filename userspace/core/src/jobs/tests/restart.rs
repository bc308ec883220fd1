//! One daemon after another.

use super::*;

/// The epochs that the effects have kept, and the epoch with which they open a job.
fn kept(effects: &[Effect]) -> (Epochs, u32) {
    let [Effect::KeepEpochs(kept_for, epochs), Effect::Open(spec), ..] = effects else {
        panic!("{effects:?}: epochs are kept before the first is used")
    };
    assert_eq!(*kept_for, spec.number);
    (epochs.clone(), spec.epoch)
}

#[test]
fn the_next_daemon_goes_on_with_the_epochs_of_the_last() {
    let (mut first, mut undisturbed) = (durable_table(1), durable_table(1));
    let names = ["a", "b", "c", "d"];
    let expected = names.map(|name| kept(&join_all(&mut undisturbed, name, 1).1).1);
    kept(&join_all(&mut first, "a", 1).1);
    let (epochs, second_epoch) = kept(&join_all(&mut first, "b", 1).1);
    let mut second = durable_table(2);
    second.restore(vec![], epochs);
    let further = ["c", "d"].map(|name| kept(&join_all(&mut second, name, 1).1).1);
    assert_eq!([second_epoch, further[0], further[1]], expected[1..]);
    // Another key gives other epochs.
    assert_ne!(kept(&join_all(&mut durable_table(2), "a", 1).1).1, expected[0]);
}

/// The epochs of an earlier daemon; any will do.
pub fn used_epochs() -> Epochs {
    Epochs::new(&mut StdRng::seed_from_u64(3))
}

/// The job that these effects save, which begin with Save.
fn saved(effects: &[Effect]) -> Job {
    let Some(Effect::Save(job)) = effects.first() else {
        panic!("{effects:?} do not begin with Save")
    };
    (**job).clone()
}

/// A job of 3 that has started, its last saved state, and each rank's secret.
fn durable_job(table: &mut Table) -> (Vec<StreamId>, Opened, Job) {
    let (streams, effects) = join_all(table, "train", 3);
    let spec = opened(&effects);
    table.ready(member(&spec, 0), 352, HEARD).unwrap();
    table.ready(member(&spec, 1), 352, HEARD).unwrap();
    let effects = table.ready(member(&spec, 2), 352, HEARD).unwrap();
    assert_eq!(effects[1], Effect::Start(spec.number, ways(3, 7)));
    (streams, spec, saved(&effects))
}

#[test]
fn ranks_of_a_restored_job_come_back_and_those_that_do_not_are_named() {
    let (_, spec, job) = durable_job(&mut durable_table(1));
    let mut table = durable_table(2);
    assert_eq!(table.restore(vec![job], used_epochs()), [Effect::Start(0, ways(3, 7))]);
    assert_eq!((table.jobs[&0].epoch, table.free_slots()), (spec.epoch, POOL - 512));

    let (zero, effects) = table.resume(member(&spec, 0), peer(0)).unwrap();
    assert_eq!(effects, [Effect::Tell(zero, Event::Started(control::Started { lanes: 352 }))]);
    for stranger in strangers(&spec, 1) {
        assert_eq!(table.resume(stranger, peer(1)), Err(refused(stranger)));
    }

    let news = aborted(
        "rank 1 (10.0.0.2), rank 2 (10.0.0.3) did not come back after the aggregator was restarted",
        &[1, 2],
    );
    let effects = table.expire();
    assert_eq!(effects[1..], [Effect::Abort(0), Effect::Tell(zero, news.clone())]);
    // A rank that comes too late is told why.
    let (late, effects) = table.resume(member(&spec, 1), peer(1)).unwrap();
    assert_eq!(effects, [Effect::Tell(late, news), Effect::End(late)]);
    assert_eq!(table.expire(), []);
    assert_eq!(table.disconnect(zero).last(), Some(&Effect::Close(0)));
    assert_eq!(table.free_slots(), POOL);
}

/// A rank gives up a connection while the daemon starts. The daemon serves it all the same, before
/// it sees the end, and before or behind the rank's next one.
#[test]
fn a_connection_that_a_rank_gave_up_while_the_daemon_started_ends_no_job() {
    let (_, spec, job) = durable_job(&mut durable_table(1));
    let mut table = durable_table(2);
    table.restore(vec![job], used_epochs());
    let back = |table: &mut Table, rank| table.resume(member(&spec, rank), peer(rank)).unwrap().0;
    let [zero, stale, _two] = [0, 1, 2].map(|rank| back(&mut table, rank));
    assert_eq!(table.disconnect(stale), []);
    // The next one's end comes, too, before the time is over.
    let present = back(&mut table, 1);
    assert_eq!(table.disconnect(present), []);
    let news =
        aborted("rank 1 (10.0.0.2) did not come back after the aggregator was restarted", &[1]);
    let effects = table.expire();
    assert!(effects.contains(&Effect::Tell(zero, news)), "{effects:?}");
}

/// A frozen rank is taken for dead, and the job ends without it; when it goes on, it is told so.
#[test]
fn a_rank_that_was_taken_for_dead_hears_why_when_it_comes_back() {
    let mut table = table();
    let (streams, spec) = started(&mut table, "train", 2);
    let news = aborted("rank 1 (10.0.0.2) did not answer for 5 s, and is considered dead", &[1]);
    let expected = [Effect::Abort(0), Effect::Tell(streams[0], news.clone())];
    assert_eq!(table.fall_silent(streams[1], Duration::from_millis(5_100)), expected);
    let hears = |table: &mut Table, rank| {
        let (stream, effects) = table.resume(member(&spec, rank), peer(rank)).unwrap();
        assert_eq!(effects, [Effect::Tell(stream, news.clone()), Effect::End(stream)]);
        assert_eq!(table.disconnect(stream), []);
    };
    hears(&mut table, 1);
    // Now all ranks were frozen, and nothing is left of the job.
    assert_eq!(table.fall_silent(streams[0], Duration::from_secs(5)), [Effect::Close(0)]);
    assert_eq!((table.list(), table.free_slots()), (vec![], POOL));
    for rank in [0, 1, 1] {
        hears(&mut table, rank);
    }
    for stranger in strangers(&spec, 1) {
        assert_eq!(table.resume(stranger, peer(1)), Err(refused(stranger)));
    }
    // As many later aborts push it out of the list.
    for _ in 0..recent_aborts::MOST {
        hears(&mut table, 0);
        let (streams, _) = started(&mut table, "other", 1);
        table.disconnect(streams[0]);
    }
    assert_eq!(table.resume(member(&spec, 0), peer(0)), Err(no_member(0)));
}

#[test]
fn ranks_that_came_back_are_as_they_were() {
    let (_, spec, job) = durable_job(&mut durable_table(1));
    let mut table = durable_table(2);
    table.restore(vec![job], used_epochs());
    let back: Vec<_> =
        (0..3).map(|rank| table.resume(member(&spec, rank), peer(rank)).unwrap().0).collect();
    assert_eq!(table.expire(), []);
    // A second connection of the same rank takes the place of the first.
    let (again, effects) = table.resume(member(&spec, 2), peer(2)).unwrap();
    assert_eq!(effects[0], Effect::End(back[2]));
    assert_eq!(table.disconnect(back[2]), []);
    let news =
        aborted("rank 2 (10.0.0.3) is gone: its process ended, or its connection broke", &[2]);
    let effects = table.disconnect(again);
    assert_eq!(
        effects[1..],
        [Effect::Abort(0), Effect::Tell(back[0], news.clone()), Effect::Tell(back[1], news)]
    );
}

#[test]
fn a_rank_that_left_before_the_restart_is_not_awaited() {
    let mut first = durable_table(1);
    let (_, spec, _) = durable_job(&mut first);
    let job = saved(&first.leave(member(&spec, 1), "", &[]).unwrap());
    let mut table = durable_table(2);
    table.restore(vec![job], used_epochs());
    assert_eq!(table.resume(member(&spec, 1), peer(1)), Err(no_member(1)));
    // A goodbye needs no stream.
    table.leave(member(&spec, 0), "", &[]).unwrap();
    assert_eq!(table.leave(member(&spec, 2), "", &[]).unwrap().last(), Some(&Effect::Close(0)));
    assert_eq!(table.expire(), []);
}

#[test]
fn an_abort_before_the_restart_is_told_after_it() {
    let mut first = durable_table(1);
    let (streams, spec, _) = durable_job(&mut first);
    let job = saved(&first.disconnect(streams[1]));
    let mut table = durable_table(2);
    assert_eq!(table.restore(vec![job], used_epochs()), [Effect::Abort(0)]);
    let (zero, effects) = table.resume(member(&spec, 0), peer(0)).unwrap();
    let news =
        aborted("rank 1 (10.0.0.2) is gone: its process ended, or its connection broke", &[1]);
    assert_eq!(effects, [Effect::Tell(zero, news)]);
}

/// The job has the longest texts and numbers; every character is the one that is longest in JSON.
#[test]
fn the_largest_job_fits_an_entry_of_the_journal() {
    let limits = Limits { durable: true, ..LIMITS };
    let mut table = Table::new(limits, None, 1);
    let local = Ipv6Addr::from([0xFF; 16]).into();
    let peer: IpAddr = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap();
    let mut effects = Vec::new();
    for rank in 0..64 {
        let threads = Threads { most: u32::MAX, host: "\u{1}".repeat(MAX_HOST_LEN) };
        let name = "\u{1}".repeat(MAX_NAME_LEN);
        let via = Vec::new();
        let tenant = "\u{1}".repeat(MAX_TENANT_LEN);
        let at = Instant::now();
        // They are not saved.
        let (stripe, link) = (Stripe::default(), Link::default());
        let joiner = Joiner {
            stripe,
            link,
            name,
            tenant,
            rank,
            world_size: 64,
            peer,
            host_name: "h".repeat(1000),
            local,
            threads,
            via,
            others: Vec::new(),
            in_place_of: String::new(),
            at,
        };
        effects = table.join(&joiner).unwrap().1;
    }
    let spec = opened(&effects);
    for rank in 0..64 {
        let bindings = (0..8).map(|shard| Binding { ifindex: u32::MAX - shard, ..BINDING });
        table.ready_to_read(member(&spec, rank), true, Some(63), bindings).unwrap();
    }
    let job = saved(&table.fail(spec.number, &"\u{1}".repeat(100_000)));
    let text = serde_json::to_string(&job).unwrap();
    assert!((20 << 10..MAX_SAVED_LEN).contains(&text.len()), "{}", text.len());
    assert_eq!(serde_json::from_str::<Job>(&text).unwrap(), job);
}

#[test]
fn jobs_that_cannot_be_restored_are_closed() {
    let (_, _, job) = durable_job(&mut durable_table(1));
    let twin = Job { number: 7, shards: vec![7, MAX_SHARDS as u16], ..job.clone() };
    let mut table = durable_table(2);
    assert_eq!(
        table.restore(vec![job, twin], used_epochs()),
        [Effect::Start(0, ways(3, 7)), Effect::Close(7), Effect::Close(MAX_SHARDS as u16)]
    );
    let line = "job 7 \"train\": not restored, its numbers [7, 1024] are not free";
    assert_eq!(table.log.last(), Some(&(Level::Warn, line.to_owned())));
    assert_eq!(table.list().len(), 1);
}

#[test]
fn a_job_that_has_not_started_has_nobody_to_come_back() {
    let mut table = durable_table(1);
    let (_, effects) = join_all(&mut table, "train", 2);
    let spec = opened(&effects);
    let refused = MemberError::NotStarted { rank: 0, state: "waiting for ranks to be ready" };
    assert_eq!(table.resume(member(&spec, 0), peer(0)), Err(refused));
}
