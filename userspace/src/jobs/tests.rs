//! The job table on its own: each rule by example, and invariants under random histories.

use std::collections::{BTreeMap, HashMap, HashSet};

use proptest::prelude::*;
use rand::SeedableRng;
use switchml_protocol::{MAX_LANES, U16};

use super::*;

const POOL: u32 = 1024;
const LIMITS: Limits = Limits { slots: POOL, max_lanes: MAX_LANES as u16, port: 48864, fanout: Fanout::Multicast };
/// Where the data plane has heard a rank; which place does not matter here.
const HEARD: Option<Place> = Some(Place { ifindex: 1, ip: [10, 0, 0, 1], mac: [2; 6], port: U16::new(40_000) });
const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);

fn table() -> JobTable {
    JobTable::new(LIMITS, None, StdRng::seed_from_u64(1))
}

fn peer(rank: u32) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, rank as u8 + 1).into()
}

fn joiner(name: &str, rank: u32, world_size: u32) -> Joiner {
    Joiner { name: name.to_owned(), rank, world_size, peer: peer(rank), local: Some(LOCAL) }
}

/// Joins all ranks of a job; the effects of the last one, and everyone's session.
fn join_all(table: &mut JobTable, name: &str, world_size: u32) -> (Vec<Session>, Vec<Effect>) {
    let mut sessions = Vec::new();
    let mut effects = Vec::new();
    for rank in 0..world_size {
        let (session, new_effects) = table.join(&joiner(name, rank, world_size)).expect("a free place");
        sessions.push(session);
        effects = new_effects;
    }
    (sessions, effects)
}

fn opened(effects: &[Effect]) -> &JobSpec {
    effects.iter().find_map(|effect| if let Effect::Open(spec) = effect { Some(spec) } else { None }).expect("an Open")
}

fn member(spec: &JobSpec, rank: u32) -> MemberId {
    MemberId { job: spec.number.into(), epoch: spec.epoch, rank }
}

/// A job of which all ranks have started.
fn started(table: &mut JobTable, name: &str, world_size: u32) -> (Vec<Session>, JobSpec) {
    let (sessions, effects) = join_all(table, name, world_size);
    let spec = opened(&effects).clone();
    for rank in 0..world_size {
        table.ready(member(&spec, rank), 352, HEARD).expect("ready");
    }
    (sessions, spec)
}

fn aborted(reason: &str, ranks: &[u32]) -> Event {
    Event::Aborted(control::Aborted { reason: reason.to_owned(), ranks: ranks.to_vec() })
}

#[test]
fn ranks_wait_for_each_other_and_are_assigned_together() {
    let mut table = table();
    let waiting = |missing: &[u32]| Event::Waiting(control::Waiting { missing_ranks: missing.to_vec() });
    let (a, effects) = table.join(&joiner("train", 2, 3)).unwrap();
    assert_eq!(effects, [Effect::Tell(a, waiting(&[0, 1]))]);
    let (b, effects) = table.join(&joiner("train", 0, 3)).unwrap();
    assert_eq!(effects, [Effect::Tell(b, waiting(&[1])), Effect::Tell(a, waiting(&[1]))]);
    let (c, effects) = table.join(&joiner("train", 1, 3)).unwrap();

    let spec = opened(&effects).clone();
    assert_eq!((spec.number, spec.slots.clone(), spec.address), (0, 0..512, LOCAL));
    assert_eq!(spec.group, (Ipv4Addr::new(239, 255, 0, 0), 48866));
    assert_ne!(spec.epoch, 0);
    let assigned = |secret| {
        Event::Assigned(control::Assigned {
            job: 0,
            epoch: spec.epoch,
            slots: 512,
            data_address: "10.0.0.254".to_owned(),
            data_port: 48864,
            group_address: "239.255.0.0".to_owned(),
            group_port: 48866,
            hello_secret: secret,
            max_lanes: 768,
        })
    };
    let [zero, one, two] = spec.secrets[..] else { panic!("{} secrets", spec.secrets.len()) };
    assert!(zero != one && one != two && zero != two);
    let expected = [
        Effect::Open(spec.clone()),
        Effect::Tell(b, assigned(zero)),
        Effect::Tell(c, assigned(one)),
        Effect::Tell(a, assigned(two)),
    ];
    assert_eq!(effects, expected);
}

#[test]
fn unicast_fan_out_assigns_no_group() {
    let limits = Limits { fanout: Fanout::Unicast, ..LIMITS };
    let mut table = JobTable::new(limits, None, StdRng::seed_from_u64(1));
    let (_, effects) = join_all(&mut table, "train", 1);
    let Effect::Tell(_, Event::Assigned(assigned)) = &effects[1] else { panic!("{effects:?}") };
    assert_eq!((assigned.group_address.as_str(), assigned.group_port), ("", 0));
}

#[test]
fn a_configured_data_address_comes_before_that_of_the_connection() {
    let configured = Ipv4Addr::new(192, 0, 2, 7);
    let mut table = JobTable::new(LIMITS, Some(configured), StdRng::seed_from_u64(1));
    let over_ipv6 = Joiner { local: None, ..joiner("train", 0, 1) };
    let (_, effects) = table.join(&over_ipv6).unwrap();
    assert_eq!(opened(&effects).address, configured);
}

#[test]
fn the_smallest_path_gives_the_lanes() {
    let mut table = table();
    let (sessions, effects) = join_all(&mut table, "train", 3);
    let spec = opened(&effects).clone();
    assert_eq!(table.ready(member(&spec, 0), 768, HEARD), Ok(vec![]));
    assert_eq!(table.ready(member(&spec, 2), 352, HEARD), Ok(vec![]));
    let started = |session| Effect::Tell(session, Event::Started(control::Started { lanes: 352 }));
    let expected = vec![Effect::Start(0), started(sessions[0]), started(sessions[1]), started(sessions[2])];
    assert_eq!(table.ready(member(&spec, 1), 736, HEARD), Ok(expected));
}

#[test]
fn a_lost_rank_aborts_its_job_and_no_other() {
    let mut table = table();
    let (sessions, spec) = started(&mut table, "train", 3);
    let (_, other) = started(&mut table, "other", 2);
    let news = aborted("rank 1 (10.0.0.2) is gone: its process ended, or its host cannot be reached", &[1]);
    let expected =
        [Effect::Abort(spec.number), Effect::Tell(sessions[0], news.clone()), Effect::Tell(sessions[2], news)];
    assert_eq!(table.disconnect(sessions[1]), expected);
    assert_eq!(table.disconnect(sessions[0]), []);
    assert_eq!(table.disconnect(sessions[2]), [Effect::Close(spec.number)]);
    let left: Vec<_> = table.list().into_iter().map(|job| job.job).collect();
    assert_eq!(left, [u32::from(other.number)]);
}

#[test]
fn a_rank_that_fails_says_why_in_one_line() {
    let mut table = table();
    let (sessions, spec) = started(&mut table, "train", 2);
    let news = aborted("rank 1 (10.0.0.2) failed: out of memory", &[1]);
    let expected = vec![Effect::Abort(0), Effect::Tell(sessions[0], news), Effect::End(sessions[1])];
    assert_eq!(table.leave(member(&spec, 1), "out\n  of\x1b\tmemory\n"), Ok(expected));
    let other = aborted(&format!("rank 0 (10.0.0.1) failed: {}", "x".repeat(500)), &[0]);
    let (sessions, spec) = started(&mut table, "long", 2);
    let effects = table.leave(member(&spec, 0), &"x".repeat(10_000)).unwrap();
    assert_eq!(effects[1], Effect::Tell(sessions[1], other));
}

#[test]
fn ranks_that_leave_in_good_order_end_the_job() {
    let mut table = table();
    let (sessions, spec) = started(&mut table, "train", 2);
    assert_eq!(table.leave(member(&spec, 0), ""), Ok(vec![Effect::End(sessions[0])]));
    assert_eq!(table.disconnect(sessions[0]), []);
    assert_eq!(table.pool().free(), POOL - 512);
    assert_eq!(table.leave(member(&spec, 1), ""), Ok(vec![Effect::Close(0), Effect::End(sessions[1])]));
    assert_eq!(table.pool().free(), POOL);
    assert_eq!(table.list(), []);
    let gone = MemberError::NoJob { job: 0, epoch: spec.epoch };
    assert_eq!(table.leave(member(&spec, 1), ""), Err(gone));
}

#[test]
fn a_rank_that_leaves_before_the_start_aborts_the_job() {
    let mut table = table();
    let (sessions, effects) = join_all(&mut table, "train", 2);
    let spec = opened(&effects).clone();
    let news = aborted("rank 0 (10.0.0.1) left before all ranks were ready", &[0]);
    let expected = vec![Effect::Abort(0), Effect::Tell(sessions[1], news), Effect::End(sessions[0])];
    assert_eq!(table.leave(member(&spec, 0), ""), Ok(expected));
}

#[test]
fn a_rank_that_gives_up_waiting_frees_its_place() {
    let mut table = table();
    let (first, _) = table.join(&joiner("train", 0, 2)).unwrap();
    assert_eq!(table.disconnect(first), []);
    assert_eq!((table.list(), table.pool().free()), (vec![], POOL));
    let (again, _) = table.join(&joiner("train", 0, 3)).unwrap();
    let (gives_up, _) = table.join(&joiner("train", 1, 3)).unwrap();
    let waiting = Event::Waiting(control::Waiting { missing_ranks: vec![1, 2] });
    assert_eq!(table.disconnect(gives_up), [Effect::Tell(again, waiting)]);
}

#[test]
fn after_an_abort_the_name_starts_a_new_job_at_once() {
    let mut table = table();
    let (sessions, old) = started(&mut table, "train", 2);
    table.disconnect(sessions[0]);
    let (_, new) = started(&mut table, "train", 3);
    assert_ne!(new.epoch, old.epoch);
    assert_ne!(new.number, old.number);
    assert!(new.slots.end <= old.slots.start || old.slots.end <= new.slots.start);
    assert_eq!(table.disconnect(sessions[1]), [Effect::Close(old.number)]);
    assert_eq!(table.list().len(), 1);
}

#[test]
fn an_epoch_that_comes_up_again_is_passed_over() {
    let (_, spec) = started(&mut table(), "train", 1);
    // The same random numbers, in a table that has used that epoch before.
    let mut table = table();
    table.used_epochs.insert(spec.epoch);
    let (_, other) = started(&mut table, "train", 1);
    assert_ne!(other.epoch, spec.epoch);
}

#[test]
fn while_ranks_of_a_finished_job_are_leaving_the_name_starts_a_new_one() {
    let mut table = table();
    let (_, old) = started(&mut table, "train", 2);
    table.leave(member(&old, 0), "").unwrap();
    let (_, new) = started(&mut table, "train", 2);
    assert_ne!(new.number, old.number);
}

#[test]
fn joins_that_are_refused_say_what_to_do() {
    let mut table = table();
    table.join(&joiner("train", 2, 4)).unwrap();
    let refused = |table: &mut JobTable, joiner: &Joiner| table.join(joiner).expect_err("refused").to_string();
    let cases = [
        (joiner("", 0, 1), "job name of 0 bytes; give all ranks the same name of 1 to 200 bytes"),
        (joiner("train", 0, 0), "world size 0; a job has 1 to 64 ranks"),
        (joiner("train", 0, 65), "world size 65; a job has 1 to 64 ranks"),
        (joiner("train", 4, 4), "rank 4 of world size 4; ranks are 0 to 3"),
        (
            joiner("train", 2, 4),
            "job \"train\" already has rank 2, from 10.0.0.3; give each process a rank of its own, or each job a name",
        ),
        (
            joiner("train", 0, 3),
            "job \"train\" has world size 4, not 3; give all ranks the same world size, or each job a name",
        ),
    ];
    for (joiner, expected) in cases {
        assert_eq!(refused(&mut table, &joiner), expected);
    }
    let over_ipv6 = Joiner { local: None, ..joiner("train", 0, 4) };
    assert_eq!(table.join(&over_ipv6).unwrap_err(), JoinError::NoIpv4);
    assert_eq!(table.join(&joiner(&"x".repeat(201), 0, 1)).unwrap_err(), JoinError::Name(201));
    assert_eq!(table.list().len(), 1, "a refused rank leaves nothing behind");
}

#[test]
fn the_pool_and_the_table_run_out() {
    let mut small = JobTable::new(Limits { slots: 31, ..LIMITS }, None, StdRng::seed_from_u64(1));
    small.join(&joiner("a", 0, 1)).unwrap();
    assert_eq!(small.join(&joiner("b", 0, 1)).unwrap_err(), JoinError::NoSlots { total: 31, free: 15 });

    let mut large = JobTable::new(Limits { slots: 1 << 20, ..LIMITS }, None, StdRng::seed_from_u64(1));
    for job in 0..256 {
        large.join(&joiner(&job.to_string(), 0, 2)).unwrap();
    }
    assert_eq!(large.join(&joiner("one more", 0, 2)).unwrap_err(), JoinError::TooManyJobs);
    assert_eq!(large.list().len(), 256);
}

#[test]
fn ready_that_is_refused_says_why() {
    let mut table = table();
    let (_, effects) = join_all(&mut table, "train", 2);
    let spec = opened(&effects).clone();
    for lanes in [0, 31, 33, 769, 800, 65536 + 32] {
        let refused = MemberError::Lanes { lanes, max_lanes: 768 };
        assert_eq!(table.ready(member(&spec, 0), lanes, HEARD), Err(refused), "{lanes}");
    }
    assert_eq!(table.ready(member(&spec, 0), 352, None), Err(MemberError::NoHello(0)));
    assert_eq!(table.ready(member(&spec, 2), 352, HEARD), Err(MemberError::NoRank { job: 0, rank: 2 }));
    let other_epoch = MemberId { epoch: spec.epoch ^ 1, ..member(&spec, 0) };
    assert!(matches!(table.ready(other_epoch, 352, HEARD), Err(MemberError::NoJob { .. })));
    let other_job = MemberId { job: 65536, ..member(&spec, 0) };
    assert!(matches!(table.ready(other_job, 352, HEARD), Err(MemberError::NoJob { .. })));
    assert_eq!(table.ready(member(&spec, 0), 32, HEARD), Ok(vec![]));
    table.ready(member(&spec, 1), 768, HEARD).unwrap();
    let again = MemberError::NotAssigned { rank: 1, state: "started already" };
    assert_eq!(table.ready(member(&spec, 1), 768, HEARD), Err(again));
}

#[test]
fn a_data_plane_that_fails_fails_the_job_for_all() {
    let mut table = table();
    let (sessions, _) = join_all(&mut table, "train", 2);
    let news = aborted("the aggregator failed: no memory", &[]);
    let expected = [Effect::Abort(0), Effect::Tell(sessions[0], news.clone()), Effect::Tell(sessions[1], news)];
    assert_eq!(table.fail(0, "the aggregator failed: no memory"), expected);
}

#[test]
fn stopping_tells_everyone_and_ends_every_stream() {
    let mut table = table();
    let (sessions, _) = started(&mut table, "train", 2);
    let (waiting, _) = table.join(&joiner("other", 0, 2)).unwrap();
    let effects = table.shut_down();
    for session in [sessions[0], sessions[1], waiting] {
        let told = effects.iter().position(|e| *e == Effect::Tell(session, aborted("the aggregator stops", &[])));
        let ended = effects.iter().position(|e| *e == Effect::End(session));
        assert!(told.expect("told") < ended.expect("ended"));
    }
}

/// What a random history does next; numbers choose among what is there.
#[derive(Clone, Debug)]
enum Step {
    Join { name: u8, rank: u32, world_size: u32 },
    Ready { session: usize, lanes: u32 },
    Leave { session: usize, error: bool },
    Disconnect { session: usize },
    Fail { session: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..3, 0u32..4, 1u32..4).prop_map(|(name, rank, world_size)| Step::Join { name, rank, world_size }),
        6 => (any::<usize>(), 1u32..25).prop_map(|(session, blocks)| Step::Ready { session, lanes: blocks * 32 }),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(session, error)| Step::Leave { session, error }),
        2 => any::<usize>().prop_map(|session| Step::Disconnect { session }),
        1 => any::<usize>().prop_map(|session| Step::Fail { session }),
    ]
}

/// What the outside world has seen: the data plane and the ranks, each of which takes only what makes sense to it.
#[derive(Default)]
struct World {
    /// Open jobs, and whether they were started.
    open: BTreeMap<u16, (JobSpec, bool)>,
    epochs: HashSet<u32>,
    /// Ranks whose stream is open: what they were last told, and who they are once assigned.
    streams: BTreeMap<Session, (Option<Event>, Option<MemberId>)>,
    ready: HashMap<(u32, u32), BTreeMap<u32, u32>>,
}

impl World {
    fn apply(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Open(spec) => {
                    assert!(spec.epoch != 0 && self.epochs.insert(spec.epoch), "an epoch is never used again");
                    assert!(spec.slots.end <= POOL);
                    for (other, _) in self.open.values() {
                        let apart = spec.slots.end <= other.slots.start || other.slots.end <= spec.slots.start;
                        assert!(apart, "{:?} and {:?}", spec.slots, other.slots);
                    }
                    assert!(self.open.insert(spec.number, (spec, false)).is_none(), "a number is used once at a time");
                }
                Effect::Start(job) => {
                    let (_, started) = self.open.get_mut(&job).expect("open");
                    assert!(!std::mem::replace(started, true), "started once");
                }
                Effect::Abort(job) => assert!(self.open.contains_key(&job)),
                Effect::Close(job) => assert!(self.open.remove(&job).is_some()),
                Effect::End(session) => drop(self.streams.remove(&session)),
                Effect::Tell(session, event) => self.hear(session, event),
            }
        }
    }

    fn hear(&mut self, session: Session, event: Event) {
        let (last, id) = self.streams.get_mut(&session).expect("nobody is told anything after its stream's end");
        let in_order = matches!(
            (&*last, &event),
            (None | Some(Event::Waiting(_)), Event::Waiting(_) | Event::Assigned(_))
                | (Some(Event::Assigned(_)), Event::Started(_) | Event::Aborted(_))
                | (Some(Event::Started(_)), Event::Aborted(_))
        );
        assert!(in_order, "{event:?} after {last:?}");
        if let Event::Assigned(assigned) = &event {
            let (spec, _) = &self.open[&(assigned.job as u16)];
            let rank = spec.secrets.iter().position(|secret| *secret == assigned.hello_secret).expect("one of them");
            *id = Some(MemberId { job: assigned.job, epoch: assigned.epoch, rank: rank as u32 });
        }
        if let (Event::Started(started), Some(id)) = (&event, &id) {
            let ready = &self.ready[&(id.job, id.epoch)];
            assert_eq!(ready.len(), self.open[&(id.job as u16)].0.secrets.len());
            assert_eq!(Some(&started.lanes), ready.values().min());
        }
        *last = Some(event);
    }

    fn pick(&self, which: usize) -> Option<(Session, Option<MemberId>)> {
        let index = which.checked_rem(self.streams.len())?;
        self.streams.iter().nth(index).map(|(session, (_, id))| (*session, *id))
    }
}

proptest! {
    /// Whatever ranks do, in whatever order: the data plane and each rank see only what makes sense, and nothing is
    /// lent any more once everyone is gone.
    #[test]
    fn any_history_makes_sense_to_everyone(steps in prop::collection::vec(step(), 0..120), seed: u64) {
        let mut table = JobTable::new(LIMITS, None, StdRng::seed_from_u64(seed));
        let mut world = World::default();
        for step in steps {
            match step {
                Step::Join { name, rank, world_size } => {
                    if let Ok((session, effects)) = table.join(&joiner(&name.to_string(), rank, world_size)) {
                        prop_assert!(rank < world_size);
                        prop_assert!(world.streams.insert(session, (None, None)).is_none());
                        world.apply(effects);
                    }
                }
                Step::Ready { session, lanes } => {
                    let Some((_, Some(id))) = world.pick(session) else { continue };
                    let before = world.ready.clone();
                    world.ready.entry((id.job, id.epoch)).or_default().insert(id.rank, lanes);
                    match table.ready(id, lanes, HEARD) {
                        Ok(effects) => world.apply(effects),
                        Err(_) => world.ready = before,
                    }
                }
                Step::Leave { session, error } => {
                    let Some((_, Some(id))) = world.pick(session) else { continue };
                    let effects = table.leave(id, if error { "broken" } else { "" });
                    world.apply(effects.expect("whoever has a stream can leave"));
                }
                Step::Disconnect { session } => {
                    let Some((session, _)) = world.pick(session) else { continue };
                    world.streams.remove(&session);
                    world.apply(table.disconnect(session));
                }
                Step::Fail { session } => {
                    let Some((_, Some(id))) = world.pick(session) else { continue };
                    world.apply(table.fail(id.job as u16, "broken"));
                }
            }
            prop_assert_eq!(table.list().iter().map(|job| job.slots).sum::<u32>(), POOL - table.pool().free());
        }
        for session in world.streams.keys().copied().collect::<Vec<_>>() {
            world.streams.remove(&session);
            world.apply(table.disconnect(session));
        }
        prop_assert!(world.open.is_empty());
        prop_assert_eq!(table.list(), vec![]);
        prop_assert_eq!(table.pool().free(), POOL);
    }
}
