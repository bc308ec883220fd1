//! The job table on its own: each rule by example; invariants under random histories are in
//! [`history`].

mod history;
mod table;

use std::collections::HashSet;
use std::iter;

use rand::SeedableRng;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::maps::{MAX_JOBS, MAX_SHARDS, SLOTS_PER_SHARD};
use switchml_protocol::{MAX_LANES, MAX_RANKS, U16};

use super::*;
use table::Table;

/// Slots of all jobs together.
const POOL: u32 = (MAX_SHARDS * SLOTS_PER_SHARD) as u32;
const LIMITS: Limits = Limits {
    shards: MAX_SHARDS as u16,
    slots_per_shard: SLOTS_PER_SHARD as u32,
    max_lanes: MAX_LANES as u16,
    max_ranks: MAX_RANKS as u16,
    max_jobs: MAX_JOBS as u16,
    capabilities: Capabilities::CHECKED_MAXIMA,
    port: 48864,
    fanout: Fanout::Multicast,
    durable: false,
};
/// Where the data plane has heard a rank; which place does not matter here.
const BINDING: Binding =
    Binding { ifindex: 1, ip: [10, 0, 0, 1], mac: [2; 6], port: U16::new(40_000) };
const HEARD: Option<Binding> = Some(BINDING);
const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);

fn table() -> Table {
    Table::new(LIMITS, None, 1)
}

fn peer(rank: u32) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, rank as u8 + 1).into()
}

fn joiner(name: &str, rank: u32, world_size: u32) -> Joiner {
    let threads = Threads::default();
    Joiner {
        name: name.to_owned(),
        rank,
        world_size,
        peer: peer(rank),
        local: Some(LOCAL),
        threads,
    }
}

/// Joins all ranks of a job; the effects of the last one, and everyone's stream.
fn join_all(table: &mut Table, name: &str, world_size: u32) -> (Vec<StreamId>, Vec<Effect>) {
    let mut streams = Vec::new();
    let mut effects = Vec::new();
    for rank in 0..world_size {
        let (stream, new_effects) =
            table.join(&joiner(name, rank, world_size)).expect("a free place");
        streams.push(stream);
        effects = new_effects;
    }
    (streams, effects)
}

/// A job as the data plane opens it, and what its ranks were told beside.
#[derive(Clone, Debug)]
struct Opened {
    spec: JobSpec,
    /// By rank: what its requests carry.
    control_secrets: Vec<u64>,
}

impl std::ops::Deref for Opened {
    type Target = JobSpec;

    fn deref(&self) -> &JobSpec {
        &self.spec
    }
}

/// The first shard of the job that these effects open.
fn opened(effects: &[Effect]) -> Opened {
    let spec = effects
        .iter()
        .find_map(|effect| if let Effect::Open(spec) = effect { Some(spec) } else { None });
    // Ranks are told in their order.
    let told = effects.iter().filter_map(|effect| match effect {
        Effect::Tell(_, Event::Assigned(assigned)) => Some(assigned.control_secret),
        _ => None,
    });
    Opened { spec: spec.expect("an Open").clone(), control_secrets: told.collect() }
}

/// Rank `rank` with its own secret; of a rank that does not exist, with that of none.
fn member(job: &Opened, rank: u32) -> MemberId {
    let secret = job.control_secrets.get(rank as usize).copied().unwrap_or_default();
    MemberId { job: job.number.into(), epoch: job.epoch, rank, secret }
}

/// A job of which all ranks have started.
fn started(table: &mut Table, name: &str, world_size: u32) -> (Vec<StreamId>, Opened) {
    let (streams, effects) = join_all(table, name, world_size);
    let spec = opened(&effects);
    for rank in 0..world_size {
        table.ready(member(&spec, rank), 352, HEARD).expect("ready");
    }
    (streams, spec)
}

fn aborted(reason: &str, ranks: &[u32]) -> Event {
    Event::Aborted(control::Aborted {
        reason: reason.to_owned(),
        ranks: ranks.to_vec(),
        calls: Vec::new(),
    })
}

#[test]
fn the_log_tells_a_job_from_its_first_rank_to_its_end() {
    let mut table = table();
    let (gives_up, _) = table.join(&joiner("train", 0, 2)).unwrap();
    table.disconnect(gives_up);
    let (streams, spec) = started(&mut table, "train", 2);
    table.leave(member(&spec, 0), "", &[]).unwrap();
    table.fail(spec.number, "no memory");
    table.disconnect(streams[1]);
    let expected = [
        (Level::Info, "job \"train\": rank 0 of 2 joined from 10.0.0.1, 1 missing"),
        (Level::Info, "job \"train\": rank 0 (10.0.0.1) gave up"),
        (Level::Info, "job \"train\": rank 0 of 2 joined from 10.0.0.1, 1 missing"),
        (Level::Info, "job \"train\": rank 1 of 2 joined from 10.0.0.2, 0 missing"),
        (Level::Info, "job 0 \"train\": assigned, data threads: 1, slots of each: 512"),
        (Level::Info, "job 0 \"train\": rank 0 ready at 10.0.0.1:40000, 352 lanes"),
        (Level::Info, "job 0 \"train\": rank 1 ready at 10.0.0.1:40000, 352 lanes"),
        (Level::Info, "job 0 \"train\": started, 352 lanes"),
        (Level::Info, "job 0 \"train\": rank 0 (10.0.0.1) left"),
        (Level::Warn, "job 0 \"train\": aborted, no memory"),
        (Level::Info, "job 0 \"train\": ended"),
    ];
    assert_eq!(table.log, expected.map(|(level, line)| (level, line.to_owned())));
}

#[test]
fn ranks_wait_for_each_other_and_are_assigned_together() {
    let mut table = table();
    let waiting =
        |missing: &[u32]| Event::Waiting(control::Waiting { missing_ranks: missing.to_vec() });
    let (a, effects) = table.join(&joiner("train", 2, 3)).unwrap();
    assert_eq!(effects, [Effect::Tell(a, waiting(&[0, 1]))]);
    let (b, effects) = table.join(&joiner("train", 0, 3)).unwrap();
    assert_eq!(effects, [Effect::Tell(b, waiting(&[1])), Effect::Tell(a, waiting(&[1]))]);
    let (c, effects) = table.join(&joiner("train", 1, 3)).unwrap();

    let spec = opened(&effects);
    assert_eq!((spec.number, spec.slots.clone(), spec.address), (0, 0..512, LOCAL));
    assert_eq!(spec.group, (Ipv4Addr::new(239, 255, 0, 0), 48866));
    assert_ne!(spec.epoch, 0);
    let assigned = |rank: usize, hello_secret| {
        Event::Assigned(control::Assigned {
            job: 0,
            epoch: spec.epoch,
            slots: 512,
            data_address: "10.0.0.254".to_owned(),
            data_port: 48864,
            group_address: "239.255.0.0".to_owned(),
            group_port: 48866,
            hello_secret,
            control_secret: spec.control_secrets[rank],
            max_lanes: 768,
            durable: false,
            capabilities: 0b1,
            further_shards: Vec::new(),
        })
    };
    let [zero, one, two] = spec.secrets[..] else { panic!("{} secrets", spec.secrets.len()) };
    assert!(zero != one && one != two && zero != two);
    assert_eq!(spec.control_secrets.iter().collect::<HashSet<_>>().len(), 3);
    let expected = [
        Effect::Open(spec.spec.clone()),
        Effect::Tell(b, assigned(0, zero)),
        Effect::Tell(c, assigned(1, one)),
        Effect::Tell(a, assigned(2, two)),
    ];
    assert_eq!(effects, expected);
}

/// A joiner with use for so many data threads.
fn threaded(name: &str, rank: u32, world_size: u32, most: u32) -> Joiner {
    Joiner { threads: Threads { most, host: String::new() }, ..joiner(name, rank, world_size) }
}

#[test]
fn a_job_has_a_shard_for_each_data_thread() {
    let mut table = table();
    let (one, effects) = join_all(&mut table, "other", 1);
    assert_eq!(opened(&effects).number, 0);
    table.join(&threaded("train", 0, 2, 4)).unwrap();
    let (last, effects) = table.join(&threaded("train", 1, 2, 2)).unwrap();
    let specs: Vec<_> = effects
        .iter()
        .filter_map(|effect| if let Effect::Open(spec) = effect { Some(spec) } else { None })
        .collect();
    let [first, second] = specs[..] else { panic!("{effects:?}") };
    let train = opened(&effects);
    assert_eq!(
        (first.number, first.slots.clone(), second.number, second.slots.clone()),
        (1, 512..1024, 511, 511 * 512..512 * 512)
    );
    assert_eq!((first.epoch, &first.secrets), (second.epoch, &second.secrets));
    assert_ne!(first.group, second.group);
    let told = effects.iter().find_map(|effect| match effect {
        Effect::Tell(stream, Event::Assigned(assigned)) if *stream == last => Some(assigned),
        _ => None,
    });
    let told = told.expect("Assigned");
    let further =
        control::Shard { job: 511, group_address: "239.255.1.255".to_owned(), group_port: 48866 };
    assert_eq!((told.job, told.slots, told.group_address.as_str()), (1, 512, "239.255.0.1"));
    assert_eq!(told.further_shards, [further]);

    let (id, other_id) = (member(&train, 0), member(&train, 1));
    let second_binding = Binding { ifindex: 7, ..BINDING };
    assert_eq!(table.shards(id), Ok(&[1, 511][..]));
    assert_eq!(table.ready(id, 352, [BINDING]), Err(MemberError::NoHello(0)), "in one shard only");
    assert_eq!(table.ready(id, 352, [BINDING, second_binding]), Ok(vec![]));
    let effects = table.ready(other_id, 352, [BINDING; 2]).unwrap();
    assert!(
        matches!(
            &effects[..],
            [Effect::Start(1), Effect::Start(511), Effect::Tell(..), Effect::Tell(..)]
        ),
        "{effects:?}"
    );
    // Either port carries a part of every sum.
    let effects = table.lose_port(7, "it is gone");
    assert!(
        matches!(
            &effects[..],
            [Effect::Abort(1), Effect::Abort(511), Effect::Tell(..), Effect::Tell(..)]
        ),
        "{effects:?}"
    );
    table.leave(id, "", &[]).unwrap();
    let effects = table.leave(other_id, "", &[]).unwrap();
    assert_eq!(effects, [Effect::Close(1), Effect::Close(511), Effect::End(last)]);
    table.disconnect(one[0]);
    assert_eq!((table.free_slots(), table.free_numbers().count()), (POOL, MAX_SHARDS));
}

/// The numbers that the effects open.
fn numbers(effects: &[Effect]) -> Vec<u16> {
    let open =
        |effect: &Effect| if let Effect::Open(spec) = effect { Some(spec.number) } else { None };
    effects.iter().filter_map(open).collect()
}

#[test]
fn further_data_threads_leave_a_number_for_every_job() {
    let mut table = table();
    // 8 threads each: 7 further numbers, of which there are 256. The 37th job finds 4, and makes 4
    // threads of them.
    let counts: Vec<_> = (0..256)
        .map(|job| numbers(&table.join(&threaded(&job.to_string(), 0, 1, 8)).unwrap().1))
        .inspect(|numbers| {
            assert!(numbers[0] < 256 && numbers[1..].iter().all(|number| *number >= 256))
        })
        .map(|numbers| numbers.len())
        .collect();
    assert_eq!(counts[..36], [8; 36]);
    // 256 - 36 * 7 = 4 are left: 3 of them make 4 threads, and the last 2.
    assert_eq!(counts[36..39], [4, 2, 1]);
    assert_eq!(counts[38..], [1; 218]);
}

#[test]
fn too_few_numbers_make_fewer_shards() {
    let shards = |shards| {
        let limits = Limits { shards, max_jobs: shards, ..LIMITS };
        let mut table = Table::new(limits, None, 1);
        let (_, effects) = table.join(&threaded("train", 0, 1, 4)).unwrap();
        numbers(&effects)
    };
    let shards: fn(u16) -> Vec<u16> = shards;
    assert_eq!(shards(16), [0, 15, 14, 13]);
    assert_eq!(shards(6), [0, 5, 4, 3]);
    assert_eq!(shards(5), [0, 4]);
    assert_eq!(shards(2), [0, 1]);
    assert_eq!(shards(1), [0]);
}

#[test]
fn a_shard_that_fails_takes_its_job_along() {
    let mut table = table();
    let (stream, effects) = table.join(&threaded("train", 0, 1, 2)).unwrap();
    assert!(
        matches!(&effects[..], [Effect::Open(_), Effect::Open(_), Effect::Tell(..)]),
        "{effects:?}"
    );
    assert_eq!(
        table.fail(511, "broken"),
        [Effect::Abort(0), Effect::Abort(511), Effect::Tell(stream, aborted("broken", &[]))]
    );
}

#[test]
fn unicast_fan_out_assigns_no_group() {
    let limits = Limits { fanout: Fanout::Unicast, ..LIMITS };
    let mut table = Table::new(limits, None, 1);
    let (_, effects) = join_all(&mut table, "train", 1);
    let Effect::Tell(_, Event::Assigned(assigned)) = &effects[1] else { panic!("{effects:?}") };
    assert_eq!((assigned.group_address.as_str(), assigned.group_port), ("", 0));
}

#[test]
fn a_configured_data_address_comes_before_that_of_the_connection() {
    let configured = Ipv4Addr::new(192, 0, 2, 7);
    let mut table = Table::new(LIMITS, Some(configured), 1);
    let over_ipv6 = Joiner { local: None, ..joiner("train", 0, 1) };
    let (_, effects) = table.join(&over_ipv6).unwrap();
    assert_eq!(opened(&effects).address, configured);
}

#[test]
fn the_smallest_path_gives_the_lanes() {
    let mut table = table();
    let (streams, effects) = join_all(&mut table, "train", 3);
    let spec = opened(&effects);
    assert_eq!(table.ready(member(&spec, 0), 768, HEARD), Ok(vec![]));
    assert_eq!(table.ready(member(&spec, 2), 352, HEARD), Ok(vec![]));
    let started = |stream| Effect::Tell(stream, Event::Started(control::Started { lanes: 352 }));
    let expected =
        vec![Effect::Start(0), started(streams[0]), started(streams[1]), started(streams[2])];
    assert_eq!(table.ready(member(&spec, 1), 736, HEARD), Ok(expected));
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

/// It is those whom the error blames that are at fault, not who says so; what is no rank of the job
/// is nobody.
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
        "rank 3 (10.0.0.4) failed: no progress for 5 s: waiting for ranks 1 and 2",
        &[1, 2],
    );
    let told = streams[..3].iter().map(|stream| Effect::Tell(*stream, news.clone()));
    let expected: Vec<_> =
        [Effect::Abort(0)].into_iter().chain(told).chain([Effect::End(streams[3])]).collect();
    assert_eq!(effects, Ok(expected));
}

/// A rank's calls in flight.
fn calls(calls: &[(u64, &str)]) -> Vec<control::Call> {
    calls
        .iter()
        .map(|(number, call)| control::Call { number: *number, call: (*call).to_owned() })
        .collect()
}

#[test]
fn a_rank_without_multicast_is_listed_and_its_job_goes_on() {
    let mut table = durable_table(1);
    let (_, spec) = started(&mut table, "train", 3);
    table.log.clear();
    assert_eq!(table.report_no_multicast(member(&spec, 1)), Ok(vec![]));
    let line = "job 0 \"train\": rank 1 (10.0.0.2) gets no results by multicast, and so makes all \
                ranks slow";
    assert_eq!(table.log, [(Level::Warn, line.to_owned())]);
    let jobs = table.list();
    let listed: Vec<_> = jobs[0].members.iter().map(|member| member.no_multicast).collect();
    assert_eq!(listed, [false, true, false]);
    assert_eq!(jobs[0].state(), control::JobState::Started);
    // It says so once on each connection.
    assert_eq!(table.report_no_multicast(member(&spec, 1)), Ok(vec![]));
    assert_eq!(table.log.len(), 1);
    assert_eq!(table.list(), jobs);
}

/// What a job's ranks hear at the end of these reports, `None` for a rank that makes none; who is
/// named is what the data plane said.
fn told(reports: &[Option<&[(u64, &str)]>], named: [u32; 2]) -> control::Aborted {
    let mut table = table();
    let (streams, spec) = started(&mut table, "train", reports.len() as u32);
    let mut effects = Vec::new();
    for (rank, report) in (0..).zip(reports) {
        if let Some(report) = report {
            effects.extend(table.report_calls(member(&spec, rank), calls(report), &named).unwrap());
        }
    }
    effects.extend(table.conclude(spec.number, spec.epoch));
    // The first report has all others asked.
    let first = reports.iter().position(Option::is_some).unwrap();
    let asked = streams.iter().enumerate().filter(|(rank, _)| *rank != first);
    let asked =
        asked.map(|(_, stream)| Effect::Tell(*stream, Event::CallsWanted(control::CallsWanted {})));
    let expected: Vec<_> =
        iter::once(Effect::Gather(0, spec.epoch)).chain(asked).chain([Effect::Abort(0)]).collect();
    let (before, news) = effects.split_at(expected.len());
    assert_eq!(before, expected);
    let Effect::Tell(_, Event::Aborted(aborted)) = &news[0] else { panic!("{news:?}") };
    // All hear the same, those too that were in no call.
    let all: Vec<_> = streams
        .iter()
        .map(|stream| Effect::Tell(*stream, Event::Aborted(aborted.clone())))
        .collect();
    assert_eq!(news, all);
    aborted.clone()
}

const SAME_CALLS: &str = "; every rank must make the same calls in the same order";

#[test]
fn ranks_that_made_different_calls_hear_which() {
    let long: &[_] = &[(12, "all_reduce(sum, f32, 1000)")];
    let short: &[_] = &[(12, "all_reduce(sum, f32, 999)")];
    let aborted = told(&[Some(long), Some(long), Some(short), Some(long)], [0, 2]);
    let expected = "ranks made different calls: call 12 of rank 2 is all_reduce(sum, f32, 999); \
                    call 12 of ranks 0, 1 and 3 is all_reduce(sum, f32, 1000)";
    assert_eq!(aborted.reason, expected.to_owned() + SAME_CALLS);
    assert_eq!(aborted.ranks, [2]);
    let made = |ranks: &[u32], number, call: &str| control::MadeCall {
        ranks: ranks.to_vec(),
        number,
        call: call.to_owned(),
    };
    let expected = [
        made(&[2], 12, "all_reduce(sum, f32, 999)"),
        made(&[0, 1, 3], 12, "all_reduce(sum, f32, 1000)"),
    ];
    assert_eq!(aborted.calls, expected);
}

#[test]
fn nobody_is_in_the_right_without_a_majority() {
    let aborted =
        told(&[Some(&[(1, "a")]), Some(&[(1, "b")]), Some(&[(1, "b")]), Some(&[(1, "a")])], [0, 1]);
    let expected =
        "ranks made different calls: call 1 of ranks 0 and 3 is a; call 1 of ranks 1 and 2 is b";
    assert_eq!(aborted.reason, expected.to_owned() + SAME_CALLS);
    assert_eq!(aborted.ranks, [0, 1, 2, 3]);
}

#[test]
fn the_first_call_that_differs_counts_whichever_was_refused() {
    // Rank 0's second call met the rest of rank 1's first, and rank 2 has a call before that in
    // flight.
    let aborted = told(
        &[
            Some(&[(7, "long"), (8, "next")]),
            Some(&[(7, "longer")]),
            Some(&[(6, "before"), (7, "longer")]),
        ],
        [0, 1],
    );
    let expected =
        "ranks made different calls: call 7 of rank 0 is long; call 7 of ranks 1 and 2 is longer";
    assert_eq!(aborted.reason, expected.to_owned() + SAME_CALLS);
}

#[test]
fn ranks_at_different_numbers_are_told_those() {
    let aborted = told(&[Some(&[(3, "barrier()")]), Some(&[(4, "barrier()")]), None], [0, 1]);
    let expected =
        "ranks made different calls: call 3 of rank 0 is barrier(); call 4 of rank 1 is barrier()";
    assert_eq!(aborted.reason, expected.to_owned() + SAME_CALLS);
    assert_eq!(aborted.ranks, [0, 1]);
}

#[test]
fn when_one_side_reports_the_data_plane_names_the_other() {
    // Rank 9 does not exist: whoever says so is not believed.
    let aborted = told(&[None, Some(&[(5, "a\nb")]), None], [2, 9]);
    assert_eq!(
        aborted.reason,
        format!("rank 2 made different calls: call 5 of rank 1 is a b{SAME_CALLS}")
    );
    assert_eq!(aborted.ranks, [2]);
    let aborted = told(&[None, Some(&[]), None], [1, 2]);
    assert_eq!(aborted.reason, format!("ranks 1 and 2 made different calls{SAME_CALLS}"));
}

/// A data plane that adds before it verifies refuses a packet whose fingerprint was damaged, or the
/// others' if it was the first: it is no call that differs.
#[test]
fn ranks_that_all_made_the_same_call_hear_of_a_damaged_packet() {
    let damaged = |reports: &[Option<&[(u64, &str)]>], call: &str| {
        let aborted = told(reports, [1, 1]);
        let expected = format!(
            "a packet was damaged on its way to the aggregator, or in it: it was refused as one \
             of another call, but all ranks made the same, call {call}; start the job anew"
        );
        assert_eq!(aborted, control::Aborted { reason: expected, ranks: vec![], calls: vec![] });
    };
    let call: &[_] = &[(5, "barrier()")];
    damaged(&[Some(call), Some(call), Some(call)], "5 is barrier()");
    // Rank 0 has made two more calls, rank 2 is a call behind, rank 3 in none.
    let ahead: &[_] = &[(5, "barrier()"), (6, "a"), (7, "b")];
    damaged(
        &[Some(ahead), Some(call), Some(&[(4, "c"), (5, "barrier()")]), Some(&[])],
        "5 is barrier()",
    );
    // Who was asked before it made the call is waited for.
    let mut asked = table();
    let (_, spec) = started(&mut asked, "train", 2);
    asked.report_calls(member(&spec, 1), calls(call), &[1, 1]).unwrap();
    assert_eq!(asked.report_calls(member(&spec, 0), calls(&[(4, "c")]), &[]), Ok(vec![]));
    let effects = asked.report_calls(member(&spec, 0), calls(call), &[0, 0]).unwrap();
    assert!(
        matches!(&effects[..], [Effect::Abort(0), Effect::Tell(..), Effect::Tell(..)]),
        "{effects:?}"
    );
    // Whoever is not heard may have called something else.
    let aborted = told(&[Some(call), Some(call), None], [1, 1]);
    assert_eq!(aborted.ranks, [1]);
    // So may who is gone before it has said what.
    let mut table = table();
    let (streams, spec) = started(&mut table, "train", 2);
    table.report_calls(member(&spec, 1), calls(call), &[1, 1]).unwrap();
    let effects = table.disconnect(streams[0]);
    let Effect::Tell(_, Event::Aborted(aborted)) = &effects[1] else { panic!("{effects:?}") };
    assert_eq!(aborted.ranks, [1]);
}

#[test]
fn one_side_alone_proves_nothing_where_packets_are_not_verified() {
    let refused = || {
        let limits = Limits { capabilities: Capabilities::empty(), ..LIMITS };
        let mut table = Table::new(limits, None, 1);
        let (_, spec) = started(&mut table, "train", 2);
        table.report_calls(member(&spec, 1), calls(&[(5, "barrier()")]), &[1, 1]).unwrap();
        (table, spec)
    };
    let heard = |effects: &[Effect]| {
        let told = effects.iter().find_map(|effect| match effect {
            Effect::Tell(_, Event::Aborted(aborted)) => Some(aborted.clone()),
            _ => None,
        });
        told.unwrap_or_else(|| panic!("{effects:?}"))
    };
    let (mut table, spec) = refused();
    let aborted = heard(&table.conclude(spec.number, spec.epoch));
    assert!(
        aborted.reason.starts_with("a packet was damaged on its way to the aggregator, or ranks"),
        "{aborted:?}"
    );
    assert_eq!((aborted.ranks, aborted.calls), (vec![], vec![]));
    // What else ends the job is told instead.
    let (mut table, spec) = refused();
    let aborted = heard(&table.leave(member(&spec, 0), "no memory", &[]).unwrap());
    assert_eq!(
        (aborted.reason.as_str(), aborted.ranks),
        ("rank 0 (10.0.0.1) failed: no memory", vec![0])
    );
}

#[test]
fn reports_end_the_job_once() {
    let mut table = table();
    let (streams, spec) = started(&mut table, "train", 3);
    let report = |table: &mut Table, rank, call| {
        table.report_calls(member(&spec, rank), calls(&[(1, call)]), &[0, 1])
    };
    assert_eq!(table.conclude(0, spec.epoch), [], "nothing was reported");
    let wanted = |stream| Effect::Tell(stream, Event::CallsWanted(control::CallsWanted {}));
    let expected = vec![Effect::Gather(0, spec.epoch), wanted(streams[1]), wanted(streams[2])];
    assert_eq!(report(&mut table, 0, "a"), Ok(expected));
    assert_eq!(table.conclude(0, spec.epoch ^ 1), [], "another job's time");
    assert_eq!(report(&mut table, 1, "b"), Ok(vec![]));
    assert_eq!(report(&mut table, 3, "b"), Err(no_member(3)));
    // All that are there: nobody waits for more.
    table.leave(member(&spec, 2), "", &[]).unwrap();
    let effects = report(&mut table, 0, "a").unwrap();
    assert!(
        matches!(&effects[..], [Effect::Abort(0), Effect::Tell(..), Effect::Tell(..)]),
        "{effects:?}"
    );
    assert_eq!(table.conclude(0, spec.epoch), []);
    assert_eq!(report(&mut table, 1, "b"), Ok(vec![]), "too late");
    // Whatever happens while reports come in, they tell the cause.
    let (_, spec) = started(&mut table, "other", 2);
    table.report_calls(member(&spec, 0), calls(&[(1, "a")]), &[0, 1]).unwrap();
    let effects = table.leave(member(&spec, 1), "no progress for 5 s", &[]).unwrap();
    let Effect::Tell(_, Event::Aborted(aborted)) = &effects[1] else { panic!("{effects:?}") };
    assert_eq!(
        aborted.reason,
        format!("ranks 0 and 1 made different calls: call 1 of rank 0 is a{SAME_CALLS}")
    );
    drop(streams);
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

/// As `doctor` does, to see whether it would be let in.
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
fn a_rank_that_gives_up_waiting_frees_its_place() {
    let mut table = table();
    let (first, _) = table.join(&joiner("train", 0, 2)).unwrap();
    assert_eq!(table.disconnect(first), []);
    assert_eq!((table.list(), table.free_slots()), (vec![], POOL));
    let (again, _) = table.join(&joiner("train", 0, 3)).unwrap();
    let (gives_up, _) = table.join(&joiner("train", 1, 3)).unwrap();
    let waiting = Event::Waiting(control::Waiting { missing_ranks: vec![1, 2] });
    assert_eq!(table.disconnect(gives_up), [Effect::Tell(again, waiting)]);
}

#[test]
fn after_an_abort_the_name_starts_a_new_job_at_once() {
    let mut table = table();
    let (streams, old) = started(&mut table, "train", 2);
    table.disconnect(streams[0]);
    let (_, new) = started(&mut table, "train", 3);
    assert_ne!(new.epoch, old.epoch);
    assert_ne!(new.number, old.number);
    assert!(new.slots.end <= old.slots.start || old.slots.end <= new.slots.start);
    assert_eq!(table.disconnect(streams[1]), [Effect::Close(old.number)]);
    assert_eq!(table.list().len(), 1);
}

/// What the effects have kept of epochs, and the epoch that they open a job with.
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
    // Which epochs they are, only the key tells.
    assert_ne!(kept(&join_all(&mut durable_table(2), "a", 1).1).1, expected[0]);
}

#[test]
fn while_ranks_of_a_finished_job_are_leaving_the_name_starts_a_new_one() {
    let mut table = table();
    let (_, old) = started(&mut table, "train", 2);
    table.leave(member(&old, 0), "", &[]).unwrap();
    let (_, new) = started(&mut table, "train", 2);
    assert_ne!(new.number, old.number);
}

#[test]
fn joins_that_are_refused_say_what_to_do() {
    let mut table = table();
    table.join(&joiner("train", 2, 4)).unwrap();
    let refused =
        |table: &mut Table, joiner: &Joiner| table.join(joiner).expect_err("refused").to_string();
    let cases = [
        (joiner("", 0, 1), "job name of 0 bytes; give all ranks the same name of 1 to 200 bytes"),
        (joiner("train", 0, 0), "world size 0; a job has 1 to 64 ranks"),
        (joiner("train", 0, 65), "world size 65; a job has 1 to 64 ranks"),
        (joiner("train", 4, 4), "rank 4 of world size 4; ranks are 0 to 3"),
        (
            joiner("train", 2, 4),
            "job \"train\" already has rank 2, from 10.0.0.3; give each process a rank of its \
             own, or each job a name",
        ),
        (
            joiner("train", 0, 3),
            "job \"train\" has world size 4, not 3; give all ranks the same world size, or each \
             job a name",
        ),
    ];
    for (joiner, expected) in cases {
        assert_eq!(refused(&mut table, &joiner), expected);
    }
    let over_ipv6 = Joiner { local: None, ..joiner("train", 0, 4) };
    assert_eq!(table.join(&over_ipv6).unwrap_err(), JoinError::NoIpv4);
    assert_eq!(table.join(&joiner(&"x".repeat(201), 0, 1)).unwrap_err(), JoinError::Name(201));
    let threads = Threads { most: 1, host: "h".repeat(65) };
    assert_eq!(
        table.join(&Joiner { threads, ..joiner("train", 0, 4) }).unwrap_err(),
        JoinError::Host(65)
    );
    assert_eq!(table.list().len(), 1, "a refused rank leaves nothing behind");
}

#[test]
fn jobs_that_wait_hold_nothing() {
    let mut table = table();
    for job in 0..200 {
        table.join(&joiner(&format!("idle {job}"), 0, 2)).unwrap();
    }
    assert_eq!(table.free_slots(), POOL);
    let (_, spec) = started(&mut table, "train", 2);
    assert_eq!((spec.number, spec.slots.clone()), (0, 0..512));
}

#[test]
fn a_job_without_a_number_is_refused_to_all_its_ranks_at_once() {
    let mut table = table();
    for job in 0..MAX_JOBS as u32 {
        let (_, effects) = join_all(&mut table, &job.to_string(), 1);
        assert_eq!((opened(&effects).number, opened(&effects).slots.len()), (job as u16, 512));
    }
    let (streams, effects) = join_all(&mut table, "one more", 3);
    let news = aborted("the aggregator has 256 jobs already; wait for one to end", &[]);
    let told = streams.iter().map(|stream| Effect::Tell(*stream, news.clone()));
    let ended = streams.iter().map(|stream| Effect::End(*stream));
    assert_eq!(effects, told.chain(ended).collect::<Vec<_>>());
    assert_eq!(table.list().len(), MAX_JOBS);
    assert_eq!(table.disconnect(streams[0]), []);
    // Where memory is what is short, more of it helps.
    let mut small = Table::new(Limits { shards: 1, ..LIMITS }, None, 1);
    join_all(&mut small, "first", 1);
    let (streams, effects) = join_all(&mut small, "second", 1);
    let news = aborted(
        "the aggregator has 1 job already; wait for it to end, or start it with more --slots",
        &[],
    );
    assert_eq!(effects, [Effect::Tell(streams[0], news), Effect::End(streams[0])]);
}

#[test]
fn jobs_that_wait_are_bounded_in_all_and_of_one_host() {
    let mut table = table();
    let from = |host: u32, job: u32| Joiner {
        peer: Ipv4Addr::from_bits(0x0A00_0000 + host).into(),
        ..joiner(&format!("{host} {job}"), 0, 2)
    };
    for (host, job) in (0..15).flat_map(|host| (0..256).map(move |job| (host, job))) {
        table.join(&from(host, job)).unwrap();
    }
    let refused = JoinError::TooManyWaiting { waiting: 3840, of_host: 256, peer: from(3, 0).peer };
    assert_eq!(table.join(&from(3, 256)).unwrap_err(), refused);
    assert_eq!(
        refused.to_string(),
        "3840 jobs wait for ranks, 256 of them begun from 10.0.0.3; at most 4096 may, and 256 of \
         one host: start all ranks of a job, or end those that wait"
    );
    // Whoever completes a job is let in.
    table.join(&Joiner { rank: 1, ..from(3, 7) }).unwrap();
    (0..256).for_each(|job| drop(table.join(&from(15, job)).unwrap()));
    table.join(&from(16, 0)).unwrap();
    assert!(matches!(
        table.join(&from(17, 0)),
        Err(JoinError::TooManyWaiting { waiting: 4096, of_host: 0, .. })
    ));
}

#[test]
fn ready_that_is_refused_says_why() {
    let mut table = table();
    let (_, effects) = join_all(&mut table, "train", 2);
    let spec = opened(&effects);
    for lanes in [0, 31, 33, 769, 800, 65536 + 32] {
        let refused = MemberError::Lanes { lanes, max_lanes: 768 };
        assert_eq!(table.ready(member(&spec, 0), lanes, HEARD), Err(refused), "{lanes}");
    }
    assert_eq!(table.ready(member(&spec, 0), 352, None), Err(MemberError::NoHello(0)));
    assert_eq!(table.ready(member(&spec, 2), 352, HEARD), Err(no_member(2)));
    assert_eq!(table.ready(member(&spec, 0), 32, HEARD), Ok(vec![]));
    table.ready(member(&spec, 1), 768, HEARD).unwrap();
    let again = MemberError::NotAssigned { rank: 1, state: "started already" };
    assert_eq!(table.ready(member(&spec, 1), 768, HEARD), Err(again));
}

/// What is nearly rank `rank` of the job, each wrong in another way.
fn strangers(job: &Opened, rank: u32) -> Vec<MemberId> {
    let id = member(job, rank);
    let mut strangers = vec![
        MemberId { job: id.job + 1, ..id },
        MemberId { job: id.job + 65536, ..id },
        MemberId { epoch: 0, ..id },
        MemberId { epoch: id.epoch ^ 1, ..id },
        MemberId { rank: id.rank + 1, ..id },
        MemberId { rank: job.secrets.len() as u32, ..id },
        MemberId { secret: 0, ..id },
        MemberId { secret: job.secrets[rank as usize].into(), ..id },
    ];
    strangers.extend((0..64).map(|bit| MemberId { secret: id.secret ^ 1 << bit, ..id }));
    strangers
}

fn refused(id: MemberId) -> MemberError {
    MemberError::NoMember { job: id.job, rank: id.rank }
}

#[test]
fn whoever_lacks_a_members_secret_changes_nothing() {
    let mut table = durable_table(1);
    let (streams, effects) = join_all(&mut table, "train", 2);
    let spec = opened(&effects);
    for start in [false, true] {
        let before = table.list();
        for stranger in strangers(&spec, 0) {
            assert_eq!(table.shards(stranger), Err(refused(stranger)));
            assert_eq!(table.ready(stranger, 768, HEARD), Err(refused(stranger)));
            assert_eq!(
                table.report_calls(stranger, calls(&[(1, "a")]), &[0, 1]),
                Err(refused(stranger))
            );
            assert_eq!(table.report_no_multicast(stranger), Err(refused(stranger)));
            assert_eq!(table.resume(stranger, peer(0)), Err(refused(stranger)));
            assert_eq!(table.leave(stranger, "", &[]), Err(refused(stranger)));
            assert_eq!(table.leave(stranger, "broken", &[1]), Err(refused(stranger)));
        }
        assert_eq!(table.list(), before);
        if !start {
            (0..2).for_each(|rank| {
                drop(table.ready(member(&spec, rank), 352, HEARD).expect("ready"))
            });
        }
    }
    let effects = table.leave(member(&spec, 0), "", &[]).unwrap();
    assert_eq!(effects.last(), Some(&Effect::End(streams[0])), "in good order after all that");
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
    for stream in [streams[0], streams[1], waiting] {
        let told = effects
            .iter()
            .position(|e| *e == Effect::Tell(stream, aborted("the aggregator stops", &[])));
        let ended = effects.iter().position(|e| *e == Effect::End(stream));
        assert!(told.expect("told") < ended.expect("ended"));
    }
}

/// A table over a data plane that outlives the daemon.
fn durable_table(seed: u64) -> Table {
    Table::new(Limits { durable: true, ..LIMITS }, None, seed)
}

/// Those of an earlier daemon; which does not matter here.
fn used_epochs() -> Epochs {
    Epochs::new(&mut StdRng::seed_from_u64(3))
}

/// What is saved by these effects, which begin with it.
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
    assert_eq!(effects[1], Effect::Start(spec.number));
    (streams, spec, saved(&effects))
}

fn no_member(rank: u32) -> MemberError {
    MemberError::NoMember { job: 0, rank }
}

#[test]
fn ranks_of_a_restored_job_come_back_and_those_that_do_not_are_named() {
    let (_, spec, job) = durable_job(&mut durable_table(1));
    let mut table = durable_table(2);
    assert_eq!(table.restore(vec![job], used_epochs()), [Effect::Start(0)]);
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
    // Whoever is too late hears why.
    let (late, effects) = table.resume(member(&spec, 1), peer(1)).unwrap();
    assert_eq!(effects, [Effect::Tell(late, news), Effect::End(late)]);
    assert_eq!(table.expire(), []);
    assert_eq!(table.disconnect(zero).last(), Some(&Effect::Close(0)));
    assert_eq!(table.free_slots(), POOL);
}

/// A rank that stood still is taken for dead, and the job ends without it; when it goes on, it
/// hears so.
#[test]
fn a_rank_that_was_taken_for_dead_hears_why_when_it_comes_back() {
    let mut table = table();
    let (streams, spec) = started(&mut table, "train", 2);
    let news = aborted(
        "rank 1 (10.0.0.2) did not answer the aggregator for 5 s, and was taken for dead",
        &[1],
    );
    let expected = [Effect::Abort(0), Effect::Tell(streams[0], news.clone())];
    assert_eq!(table.fall_silent(streams[1], Duration::from_millis(5_100)), expected);
    let hears = |table: &mut Table, rank| {
        let (stream, effects) = table.resume(member(&spec, rank), peer(rank)).unwrap();
        assert_eq!(effects, [Effect::Tell(stream, news.clone()), Effect::End(stream)]);
        assert_eq!(table.disconnect(stream), []);
    };
    hears(&mut table, 1);
    // Then all have stood still, and nothing is left of the job.
    assert_eq!(table.fall_silent(streams[0], Duration::from_secs(5)), [Effect::Close(0)]);
    assert_eq!((table.list(), table.free_slots()), (vec![], POOL));
    for rank in [0, 1, 1] {
        hears(&mut table, rank);
    }
    for stranger in strangers(&spec, 1) {
        assert_eq!(table.resume(stranger, peer(1)), Err(refused(stranger)));
    }
    // As many later recent_aborts push it out.
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

/// What the longest texts and numbers make of it; every character is the one that JSON makes
/// longest.
#[test]
fn the_largest_job_fits_an_entry_of_the_journal() {
    let limits = Limits { durable: true, ..LIMITS };
    let mut table = Table::new(limits, None, 1);
    let local = Ipv4Addr::new(255, 255, 255, 255);
    let peer: IpAddr = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap();
    let mut effects = Vec::new();
    for rank in 0..64 {
        let threads = Threads { most: u32::MAX, host: "\u{1}".repeat(MAX_HOST_LEN) };
        let name = "\u{1}".repeat(MAX_NAME_LEN);
        let joiner = Joiner { name, rank, world_size: 64, peer, local: Some(local), threads };
        effects = table.join(&joiner).unwrap().1;
    }
    let spec = opened(&effects);
    for rank in 0..64 {
        let bindings = (0..8).map(|shard| Binding { ifindex: u32::MAX - shard, ..BINDING });
        table.ready(member(&spec, rank), 768, bindings).unwrap();
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
        [Effect::Start(0), Effect::Close(7), Effect::Close(MAX_SHARDS as u16)]
    );
    let line = "job 7 \"train\": not restored, its numbers [7, 512] are not free";
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
