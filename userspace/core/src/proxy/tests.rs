//! The proxy on its own: the effects of a rank's requests and of the parent's events.

use std::net::Ipv4Addr;

use switchml_control::{
    Aborted, Assigned, Combiner, Copies, JobStatus, JoinRequest, MemberStatus, ResumeRequest,
    Shard, Started,
};
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::wire::auth::Key;

use super::*;
use crate::limits::Fanout;

const LIMITS: Limits = Limits {
    shards: 512,
    slots_per_shard: 512,
    max_lanes: 352,
    max_ranks: 64,
    max_jobs: 256,
    capabilities: Capabilities::PARTIAL_SUMS,
    ipv4_only: Capabilities::empty(),
    port: 5000,
    fanout: Fanout::Auto,
    durable: false,
};
const ENDS: Ends = Ends {
    peer: IpAddr::V4(Ipv4Addr::new(10, 1, 0, 3)),
    local: IpAddr::V4(Ipv4Addr::new(10, 1, 0, 254)),
};
const EPOCH: u32 = 77;
/// The silence of a connection that was closed.
const CLOSED: Duration = Duration::ZERO;

fn proxy() -> Proxy {
    Proxy::new(LIMITS, None, 1, "tor1".to_owned(), "10.0.0.1:48865".to_owned())
}

fn join(rank: u32) -> JoinRequest {
    JoinRequest {
        job_name: "train".to_owned(),
        rank,
        world_size: 4,
        protocol_version: VERSION.into(),
        ..JoinRequest::default()
    }
}

/// The Assigned of the parent for a rank of a job with two shards.
fn assigned(rank: u32, durable: bool) -> Assigned {
    let group_address = "239.255.0.7".to_owned();
    Assigned {
        job: 7,
        epoch: EPOCH,
        slots: 512,
        data_address: "10.0.0.1".to_owned(),
        data_port: 48864,
        group_address: group_address.clone(),
        group_port: 48866,
        hello_secret: 100 + rank,
        max_lanes: 768,
        durable,
        further_shards: vec![Shard { job: 500, group_address, group_port: 48866 }],
        capabilities: (Capabilities::CHECKED_MAXIMA
            | Capabilities::PARTIAL_SUMS
            | Capabilities::GROUP_HELLOS
            | Capabilities::ROCE)
            .bits(),
        control_secret: 1000 + u64::from(rank),
        world_size: 4,
        aggregator: 77,
        ..Assigned::default()
    }
}

fn id(rank: u32) -> MemberId {
    MemberId { job: 7, epoch: EPOCH, rank, secret: 1000 + u64::from(rank) }
}

fn started() -> Event {
    Event::Started(Started { lanes: 352 })
}

/// Ranks 2 and 3 below, whose job has started.
fn running(durable: bool) -> (Proxy, [StreamId; 2]) {
    let mut proxy = proxy();
    let streams = [2, 3].map(|rank| proxy.join(join(rank), ENDS).expect("joined").0);
    for (stream, rank) in streams.into_iter().zip([2, 3]) {
        proxy.hear(stream, Event::Assigned(assigned(rank, durable)));
    }
    streams.iter().for_each(|stream| drop(proxy.hear(*stream, started())));
    (proxy, streams)
}

/// Rule 27.15.
#[test]
fn it_adds_itself_to_the_way_and_finds_itself_there() {
    let mut proxy = proxy();
    let (_, passed) = proxy.join(join(2), ENDS).expect("joined");
    let own = Combiner {
        id: 1,
        name: "tor1".to_owned(),
        address: "10.1.0.254".to_owned(),
        peer: "10.1.0.3".to_owned(),
        protocol_version: VERSION.into(),
    };
    assert_eq!(passed, JoinRequest { via: vec![own.clone()], ..join(2) });
    let other = Combiner { id: 2, name: "tor2".to_owned(), ..own.clone() };
    let around = JoinRequest { via: vec![own, other], ..join(2) };
    let line = proxy.join(around, ENDS).expect_err("a circle").to_string();
    let circle = "combiners in a circle: tor1 at 10.1.0.254, then tor2 at 10.1.0.254, then tor1 at \
                  10.1.0.254; ";
    assert!(line.starts_with(circle), "{line}");
}

/// Rule 27.16.
#[test]
fn what_is_assigned_opens_the_job_and_is_other_below() {
    let mut proxy = proxy();
    let (two, _) = proxy.join(join(2), ENDS).expect("joined");
    let (three, _) = proxy.join(join(3), ENDS).expect("joined");
    let effects = proxy.hear(two, Event::Assigned(assigned(2, false)));
    let spec = |number: u16| JobSpec {
        number,
        epoch: EPOCH,
        secrets: vec![0; 4],
        keys: Vec::new(),
        key: Key::NONE,
        slots: u32::from(number) * 512..(u32::from(number) + 1) * 512,
        address: ENDS.local,
        group: (Ipv4Addr::new(239, 255, (number >> 8) as u8, number as u8), 48866),
        parent: Some("10.0.0.1:48864".parse().expect("an address")),
    };
    let below = Assigned {
        data_address: "10.1.0.254".to_owned(),
        data_port: 5000,
        max_lanes: 352,
        durable: true,
        further_shards: vec![Shard {
            job: 500,
            group_address: "239.255.1.244".to_owned(),
            group_port: 48866,
        }],
        capabilities: (Capabilities::CHECKED_MAXIMA | Capabilities::PARTIAL_SUMS).bits(),
        ..assigned(2, false)
    };
    let expected = [
        Effect::Open(spec(7)),
        Effect::Open(spec(500)),
        Effect::Admit(7, 2, 102),
        Effect::Admit(500, 2, 102),
        Effect::Tell(two, Event::Assigned(below)),
    ];
    assert_eq!(effects, expected);
    // The next rank joins the job that is already open.
    let effects = proxy.hear(three, Event::Assigned(assigned(3, false)));
    assert_eq!(effects[..2], [Effect::Admit(7, 3, 103), Effect::Admit(500, 3, 103)]);
    assert_eq!(effects.len(), 3);
    // The combiner's group does not reach rank 3.
    proxy.ready(id(3), true, None);
    let ways = vec![(2, Way::Group), (3, Way::Copy)];
    assert_eq!(
        proxy.hear(three, started()),
        [Effect::Start(7, ways.clone()), Effect::Start(500, ways), Effect::Tell(three, started())]
    );
    assert_eq!(proxy.hear(two, started()), [Effect::Tell(two, started())]);
    let copies = vec![(2, Way::Copy), (3, Way::Copy)];
    assert_eq!(
        proxy.report_no_multicast(id(2)),
        Ok(vec![Effect::Start(7, copies.clone()), Effect::Start(500, copies)])
    );
    let stranger = MemberId { secret: 0, ..id(2) };
    assert_eq!(proxy.report_no_multicast(stranger), Err(Refused::NoMember(2)));
}

/// Rule 38.3, among the ranks below.
#[test]
fn a_rank_that_reads_along_gets_no_copies() {
    let (mut proxy, _) = running(false);
    let ways = |proxy: &mut Proxy, two, three| {
        let effects = proxy.report_no_multicast(id(3)).expect("a member");
        assert_eq!(effects[0], Effect::Start(7, vec![(2, two), (3, three)]));
    };
    // Rank 2 hears the group, so it has no copies that rank 3 could read.
    proxy.ready(id(3), true, Some(2));
    ways(&mut proxy, Way::Group, Way::Copy);
    proxy.ready(id(2), true, None);
    ways(&mut proxy, Way::Copy, Way::With(2));
    // A taker that reads along itself, one elsewhere, and the rank itself are none.
    proxy.ready(id(2), true, Some(3));
    ways(&mut proxy, Way::Copy, Way::Copy);
    proxy.ready(id(2), true, None);
    proxy.ready(id(3), true, Some(1));
    ways(&mut proxy, Way::Copy, Way::Copy);
    proxy.ready(id(3), true, Some(3));
    ways(&mut proxy, Way::Copy, Way::Copy);
}

/// The root knows of ranks below only that the combiner serves them.
#[test]
fn its_status_says_who_gets_copies_below() {
    let (mut proxy, _) = running(false);
    proxy.report_no_multicast(id(3)).expect("a member");
    let member = |rank, ready| MemberStatus { rank, ready, ..MemberStatus::default() };
    let told = |job: u32, members: [MemberStatus; 3]| {
        let members = members.to_vec();
        let mut jobs = [JobStatus { job, shards: vec![job], members, ..JobStatus::default() }];
        proxy.describe(&mut jobs);
        let [JobStatus { members, .. }] = jobs;
        members.iter().map(|member| member.copies() == Copies::Forced).collect::<Vec<_>>()
    };
    let ready = [1, 2, 3].map(|rank| member(rank, true));
    assert_eq!(told(7, ready.clone()), [false, false, true]);
    assert_eq!(told(8, ready), [false; 3], "a job of ranks elsewhere");
    // A rank that is not ready gets nothing yet.
    assert_eq!(told(7, [1, 2, 3].map(|rank| member(rank, false))), [false; 3]);
}

/// Rule 27.18.
#[test]
fn the_parent_hears_how_a_rank_was_lost() {
    let (mut proxy, [two, three]) = running(false);
    let lost = "is gone: its process ended, or its connection broke";
    let effects = proxy.disconnect(two, CLOSED);
    let [Effect::Log(Level::Warn, line), Effect::Lose(stream, request)] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((*stream, line), (two, &format!("job 7: rank 2 {lost}")));
    assert_eq!((request.lost.as_str(), request.lost_combiner.as_str()), (lost, ""));
    assert_eq!(request.member, Some(id(2)));
    // Whoever says goodbye is not lost; with the last one the job is gone.
    proxy.leave(id(3));
    assert_eq!(
        proxy.disconnect(three, CLOSED),
        [Effect::HangUp(three), Effect::Close(7), Effect::Close(500)]
    );
}

/// A combiner between a rank and this one.
fn leaf() -> Combiner {
    Combiner {
        id: 9,
        name: "leaf".to_owned(),
        address: "10.9.0.1".to_owned(),
        peer: "10.9.0.2".to_owned(),
        protocol_version: VERSION.into(),
    }
}

#[test]
fn a_combiner_that_was_lost_below_is_named() {
    let mut proxy = proxy();
    let request = JoinRequest { via: vec![leaf()], ..join(2) };
    let (stream, _) = proxy.join(request, ENDS).expect("joined");
    proxy.hear(stream, Event::Assigned(assigned(2, true)));
    // One copy serves all ranks behind the combiner.
    let effects = proxy.hear(stream, started());
    assert_eq!(effects[0], Effect::Start(7, vec![(2, Way::Combiner)]));
    let effects = proxy.disconnect(stream, CLOSED);
    let Effect::Lose(_, request) = &effects[1] else { panic!("{effects:?}") };
    assert_eq!(request.lost_combiner, "leaf at 10.9.0.1");
}

/// Rule 27.20.
#[test]
fn a_parent_that_is_gone_is_named_or_awaited() {
    let (mut proxy, [two, three]) = running(false);
    let effects = proxy.lose_parent(two, Some("connection reset"));
    let reason = "the aggregator at 10.0.0.1:48865, the parent of combiner tor1 at 10.1.0.254, \
                  went away (connection reset)";
    let aborted = Event::Aborted(Aborted { reason: reason.to_owned(), ..Aborted::default() });
    assert_eq!(effects, [Effect::Tell(two, aborted), Effect::End(two)]);
    let effects = proxy.lose_parent(three, Some("connection reset"));
    assert_eq!(effects[2..], [Effect::Close(7), Effect::Close(500)]);

    let (mut proxy, [two, three]) = running(true);
    let why = "its parent at 10.0.0.1:48865 is gone: connection reset".to_owned();
    let effects = proxy.lose_parent(two, Some("connection reset"));
    assert_eq!(effects, [Effect::Break(two, why)]);
    let effects = proxy.lose_parent(three, Some("connection reset"));
    let forget = Timer::Forget(7, EPOCH);
    assert_eq!(effects[1..], [Effect::Schedule(Duration::from_secs(10), forget)]);
    // A rank tries in vain to come back, which keeps the job; then none does.
    let resume = ResumeRequest { member: Some(id(2)), ..ResumeRequest::default() };
    let (again, _) = proxy.resume(resume, ENDS).expect("asked");
    assert_eq!(proxy.disconnect(again, CLOSED), [Effect::HangUp(again)]);
    let once_more = [Effect::Schedule(Duration::from_secs(10), forget)];
    assert_eq!(proxy.on_timer(forget, &[]), once_more);
    assert_eq!(proxy.on_timer(forget, &[]), [Effect::Close(7), Effect::Close(500)]);
}

/// Rule 27.19: a restarted combiner.
#[test]
fn ranks_that_come_back_bring_their_job_and_are_served_once_they_are_bound() {
    let mut proxy = proxy();
    let resume = |rank| ResumeRequest { member: Some(id(rank)), ..ResumeRequest::default() };
    let (two, _) = proxy.resume(resume(2), ENDS).expect("asked");
    let (three, _) = proxy.resume(resume(3), ENDS).expect("asked");
    let effects = proxy.hear(two, Event::Assigned(assigned(2, false)));
    // The rank has it already.
    let [Effect::Open(_), Effect::Open(_), admitted @ ..] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(admitted, [Effect::Admit(7, 2, 102), Effect::Admit(500, 2, 102)]);
    let look = Timer::Look(7, EPOCH);
    let later = Effect::Schedule(LOOK, look);
    assert_eq!(proxy.hear(two, started()), [later.clone(), Effect::Tell(two, started())]);
    proxy.hear(three, Event::Assigned(assigned(3, false)));
    assert_eq!(proxy.on_timer(look, &[]), std::slice::from_ref(&later));
    let one = vec![(3, Way::Group)];
    assert_eq!(
        proxy.on_timer(look, &[3]),
        [Effect::Start(7, one.clone()), Effect::Start(500, one), later]
    );
    let both = vec![(2, Way::Group), (3, Way::Group)];
    assert_eq!(
        proxy.on_timer(look, &[2, 3]),
        [Effect::Start(7, both.clone()), Effect::Start(500, both)]
    );
}

/// Rule 27.19: what a rank below has already, a combiner below may have forgotten.
#[test]
fn a_combiner_below_learns_a_job_from_ranks_that_come_back() {
    let mut proxy = proxy();
    let resume = ResumeRequest { member: Some(id(2)), via: vec![leaf()], standstill_ms: 0 };
    let (stream, _) = proxy.resume(resume, ENDS).expect("asked");
    let effects = proxy.hear(stream, Event::Assigned(assigned(2, true)));
    let Some(Effect::Tell(to, Event::Assigned(told))) = effects.last() else {
        panic!("{effects:?}")
    };
    assert_eq!((*to, told.data_address.as_str()), (stream, "10.1.0.254"));
}

#[test]
fn a_number_that_the_parent_has_given_to_another_job_is_taken_over() {
    let (mut proxy, [_, _]) = running(true);
    let (stream, _) = proxy.join(join(0), ENDS).expect("joined");
    let other = Assigned { epoch: 78, ..assigned(0, true) };
    let effects = proxy.hear(stream, Event::Assigned(other));
    assert_eq!(effects[..2], [Effect::Close(7), Effect::Close(500)]);
    assert!(matches!(&effects[2], Effect::Open(spec) if spec.epoch == 78), "{effects:?}");
}

#[test]
fn a_data_plane_that_fails_ends_the_job_for_all() {
    let (mut proxy, [two, _]) = running(true);
    let effects = proxy.fail(two, "open UDP port 50000: it is in use");
    let reason = "combiner tor1 at 10.1.0.254 failed: open UDP port 50000: it is in use".to_owned();
    let aborted = Aborted { reason: reason.clone(), ..Aborted::default() };
    assert_eq!(effects[1..3], [Effect::Tell(two, Event::Aborted(aborted)), Effect::End(two)]);
    assert!(
        matches!(&effects[3], Effect::Lose(_, request) if request.error == reason),
        "{effects:?}"
    );
}
