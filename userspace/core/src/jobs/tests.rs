//! The job table on its own: each rule by example, in a file for each group of requests; invariants
//! under random histories are in [`history`].

mod assignment;
mod ending;
mod history;
mod joining;
mod lately;
mod quotas;
mod racks;
mod reports;
mod restart;
mod round_trips;
mod slow;
mod starting;
mod stripes;
mod table;

use std::collections::HashSet;
use std::iter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use rand::SeedableRng;
use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::bpf_types::maps::{MAX_JOBS, MAX_SHARDS, SLOTS_PER_SHARD};
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::wire::ip::Ip;
use switchml_protocol::{MAX_LANES, MAX_RANKS, U16};

use super::*;
use crate::limits::Fanout;
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
    ipv4_only: Capabilities::empty(),
    port: 48864,
    fanout: Fanout::Multicast,
    durable: false,
};
/// A place from which the data plane has heard a rank; any will do.
const BINDING: Binding = Binding {
    ifindex: 1,
    ip: Ip::v4([10, 0, 0, 1]),
    mac: [2; 6],
    port: U16::new(40_000),
    vlan: 0,
    roce: [0; 2],
};
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
        tenant: String::new(),
        name: name.to_owned(),
        rank,
        world_size,
        peer: peer(rank),
        host_name: String::new(),
        local: LOCAL.into(),
        threads,
        stripe: Stripe::default(),
        link: Link::default(),
        via: Vec::new(),
        others: Vec::new(),
        in_place_of: String::new(),
        at: Instant::now(),
    }
}

/// How `ranks` ranks without combiners get RESULTs to all: by group if their bit is set, else by
/// copies.
fn ways(ranks: u16, by_group: u64) -> Vec<(u16, Way)> {
    let way = |rank| if by_group >> rank & 1 == 1 { Way::Group } else { Way::Copy };
    (0..ranks).map(|rank| (rank, way(rank))).collect()
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

/// A job as the data plane opens it, and the secrets that its ranks were told.
#[derive(Clone, Debug)]
struct Opened {
    spec: JobSpec,
    /// The control secrets, by rank.
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

/// What the first rank is told by these effects.
fn told(effects: &[Effect]) -> &control::Assigned {
    let told = effects.iter().find_map(|effect| match effect {
        Effect::Tell(_, Event::Assigned(assigned)) => Some(assigned),
        _ => None,
    });
    told.expect("an Assigned")
}

/// Rank `rank` with its own secret; for a rank that does not exist, with no rank's secret.
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
        ..Default::default()
    })
}

/// A joiner that can use up to `most` data threads.
fn threaded(name: &str, rank: u32, world_size: u32, most: u32) -> Joiner {
    Joiner { threads: Threads { most, host: String::new() }, ..joiner(name, rank, world_size) }
}

/// A table over a data plane that outlives the daemon.
fn durable_table(seed: u64) -> Table {
    Table::new(Limits { durable: true, ..LIMITS }, None, seed)
}

/// A rank's calls in flight.
fn calls(calls: &[(u64, &str)]) -> Vec<control::Call> {
    calls
        .iter()
        .map(|(number, call)| control::Call { number: *number, call: (*call).to_owned(), cut: 0 })
        .collect()
}

fn no_member(rank: u32) -> MemberError {
    MemberError::NoMember { job: 0, rank }
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

/// Ids that resemble rank `rank` of the job, each with another mistake.
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
            let times = control::Times { counts: vec![1; 24], sum: 1 };
            assert_eq!(table.report_round_trips(stranger, &times), Err(refused(stranger)));
            assert_eq!(table.report_share(stranger, 1), Err(refused(stranger)));
            assert_eq!(table.resume(stranger, peer(0)), Err(refused(stranger)));
            assert_eq!(table.leave(stranger, "", &[]), Err(refused(stranger)));
            assert_eq!(table.leave(stranger, "broken", &[1]), Err(refused(stranger)));
        }
        assert_eq!(table.list(), before);
        assert_eq!(*table.round_trips(), [0; 25]);
        if !start {
            (0..2).for_each(|rank| {
                drop(table.ready(member(&spec, rank), 352, HEARD).expect("ready"))
            });
        }
    }
    let effects = table.leave(member(&spec, 0), "", &[]).unwrap();
    assert_eq!(effects.last(), Some(&Effect::End(streams[0])), "in good order after all that");
}
