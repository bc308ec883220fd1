use std::cell::RefCell;
use std::net::Ipv4Addr;

use rand::SeedableRng;
use rand::rngs::StdRng;
use switchml_control::{Aborted, Assigned};
use switchml_protocol::U16;
use switchml_protocol::bpf_types::fanout::Way;
use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::capabilities::Capabilities;

use super::*;
use crate::data_plane::{Fanout, JobSpec, Limits};
use crate::jobs::{Epochs, Job, Link, Stripe, Threads};

const LIMITS: Limits = Limits {
    shards: 16,
    slots_per_shard: 512,
    max_lanes: 768,
    max_ranks: 1024,
    max_jobs: 16,
    capabilities: Capabilities::all(),
    ipv4_only: Capabilities::empty(),
    port: 48864,
    fanout: Fanout::Unicast,
    durable: true,
};

/// An action that the control plane carried out: on a job in the data plane, or on a stream.
#[derive(Clone, Debug, PartialEq)]
enum Done {
    KeepEpochs,
    Open(u16),
    Start(u16),
    Abort(u16),
    Close(u16),
    Save(u16),
    Tell(&'static str, Event),
    End(&'static str),
    Schedule(Duration, Timer),
    Prepare(u32, Vec<u16>),
}

/// Records the actions, and fails those that it is told to.
#[derive(Default)]
struct Recorder {
    done: RefCell<Vec<Done>>,
    log: Vec<(Level, String)>,
    refuses: Vec<Done>,
    /// Whether numbers have to be prepared.
    prepares: bool,
    saved: RefCell<Vec<Job>>,
    epochs: RefCell<Option<Epochs>>,
    /// The speed of interface 1's link, "p1", if it has one.
    speed: Option<u64>,
}

impl Recorder {
    fn note(&self, done: Done) -> Result<(), Error> {
        let is_refused = self.refuses.contains(&done);
        self.done.borrow_mut().push(done);
        match is_refused {
            true => Err(Error::Refused { what: "try it".to_owned(), why: "no luck".to_owned() }),
            false => Ok(()),
        }
    }

    fn take(&mut self) -> Vec<Done> {
        self.done.take()
    }
}

impl ServesJobs for Recorder {
    fn open(&self, job: &JobSpec) -> Result<(), Error> {
        self.note(Done::Open(job.number))
    }

    fn start(&self, job: u16, _ways: &[(u16, Way)]) -> Result<(), Error> {
        self.note(Done::Start(job))
    }

    fn abort(&self, job: u16) -> Result<(), Error> {
        self.note(Done::Abort(job))
    }

    fn close(&self, job: u16) -> Result<(), Error> {
        self.note(Done::Close(job))
    }

    fn link(&self, interface: u32) -> Option<(String, u64)> {
        self.speed.filter(|_| interface == 1).map(|speed| ("p1".to_owned(), speed))
    }

    fn binding(&self, job: u16, rank: u16) -> Result<Option<Binding>, Error> {
        let ip = [10, 0, job as u8, rank as u8 + 1];
        Ok(Some(Binding {
            ifindex: 1,
            ip: ip.into(),
            mac: [2; 6],
            port: U16::new(40_000),
            ..Binding::default()
        }))
    }

    fn save(&self, job: &Job) -> Result<(), Error> {
        let mut saved = self.saved.borrow_mut();
        saved.retain(|saved| saved.number != job.number);
        saved.push(job.clone());
        self.note(Done::Save(job.number))
    }

    fn keep_epochs(&self, epochs: &Epochs) -> Result<(), Error> {
        self.epochs.replace(Some(epochs.clone()));
        self.note(Done::KeepEpochs)
    }
}

impl Io for Recorder {
    type Stream = &'static str;
    type DataPlane = Self;

    fn data_plane(&self) -> &Self {
        self
    }

    fn tell(&mut self, stream: &&'static str, event: Event) {
        self.done.get_mut().push(Done::Tell(stream, event));
    }

    fn end(&mut self, stream: &'static str) {
        self.done.get_mut().push(Done::End(stream));
    }

    fn schedule(&mut self, after: Duration, timer: Timer) {
        self.done.get_mut().push(Done::Schedule(after, timer));
    }

    fn prepare(&mut self, epoch: u32, numbers: &[u16]) -> bool {
        if self.prepares {
            self.done.get_mut().push(Done::Prepare(epoch, numbers.to_vec()));
        }
        !self.prepares
    }

    fn log(&mut self, level: Level, line: &str) {
        self.log.push((level, line.to_owned()));
    }
}

fn control_plane() -> ControlPlane<&'static str> {
    ControlPlane::new(JobTable::new(LIMITS, None, StdRng::seed_from_u64(1)))
}

fn joiner(name: &str, rank: u32, world_size: u32) -> Joiner {
    let address = |host| Ipv4Addr::new(10, 0, 0, host);
    Joiner {
        tenant: String::new(),
        name: name.to_owned(),
        rank,
        world_size,
        peer: address(rank as u8 + 1).into(),
        host_name: String::new(),
        local: address(254).into(),
        threads: Threads::default(),
        stripe: Stripe::default(),
        link: Link::default(),
        via: Vec::new(),
        others: Vec::new(),
        in_place_of: String::new(),
        at: std::time::Instant::now(),
    }
}

/// The Assigned of each rank, in order.
fn assigned(done: &[Done]) -> Vec<Assigned> {
    let assigned = |done: &Done| match done {
        Done::Tell(_, Event::Assigned(assigned)) => Some(assigned.clone()),
        _ => None,
    };
    done.iter().filter_map(assigned).collect()
}

/// A job of two ranks, whose streams are "zero" and "one", up to where they are ready.
fn join(
    control_plane: &mut ControlPlane<&'static str>,
    io: &mut Recorder,
    name: &str,
) -> [(StreamId, MemberId); 2] {
    let streams = [(0, "zero"), (1, "one")]
        .map(|(rank, stream)| control_plane.join(io, &joiner(name, rank, 2), stream).unwrap());
    let assigned = assigned(&io.take());
    [0, 1].map(|rank| {
        let &Assigned { job, epoch, control_secret: secret, .. } = &assigned[rank];
        (streams[rank], MemberId { job, epoch, rank: rank as u32, secret })
    })
}

fn start(
    control_plane: &mut ControlPlane<&'static str>,
    io: &mut Recorder,
    name: &str,
) -> [(StreamId, MemberId); 2] {
    let members = join(control_plane, io, name);
    for (_, member) in members {
        control_plane.ready(io, member, 352, false).unwrap();
    }
    members
}

fn aborted(reason: &str, ranks: &[u32]) -> Event {
    let (reason, ranks) = (reason.to_owned(), ranks.to_vec());
    Event::Aborted(Aborted { reason, ranks, ..Aborted::default() })
}

#[test]
fn a_job_that_does_not_open_is_aborted_and_nobody_is_assigned() {
    let (mut control_plane, mut io) = (control_plane(), Recorder::default());
    io.refuses = vec![Done::Open(0)];
    control_plane.join(&mut io, &joiner("train", 0, 2), "zero").unwrap();
    io.take();
    control_plane.join(&mut io, &joiner("train", 1, 2), "one").unwrap();
    let news = aborted("the aggregator failed: try it: no luck", &[]);
    let expected = [
        Done::KeepEpochs,
        Done::Open(0),
        Done::Save(0),
        Done::Abort(0),
        Done::Tell("zero", news.clone()),
        Done::Tell("one", news),
    ];
    assert_eq!(io.take(), expected);
    let line = |level, line: &str| (level, line.to_owned());
    let expected = [
        line(Level::Info, "job \"train\": rank 0 of 2 joined from 10.0.0.1, 1 missing"),
        line(Level::Info, "job \"train\": rank 1 of 2 joined from 10.0.0.2, 0 missing"),
        line(Level::Info, "job 0 \"train\": assigned, data threads: 1, slots of each: 512"),
        line(Level::Error, "job 0: try it: no luck"),
        line(Level::Warn, "job 0 \"train\": aborted, the aggregator failed: try it: no luck"),
    ];
    assert_eq!(io.log, expected);
}

#[test]
fn a_job_that_does_not_start_is_aborted_and_nobody_is_told_of_a_start() {
    let (mut control_plane, mut io) = (control_plane(), Recorder::default());
    io.refuses = vec![Done::Start(0)];
    start(&mut control_plane, &mut io, "train");
    let news = aborted("the aggregator failed: try it: no luck", &[]);
    let expected = [
        Done::Save(0),
        Done::Start(0),
        // The job's present state, for the next daemon.
        Done::Save(0),
        Done::Abort(0),
        Done::Tell("zero", news.clone()),
        Done::Tell("one", news),
    ];
    assert_eq!(io.take(), expected);
}

/// A job of two ranks joins, whose numbers are to be prepared. The stream of its rank 0, its number
/// and its epoch.
fn join_unprepared(
    control_plane: &mut ControlPlane<&'static str>,
    io: &mut Recorder,
    name: &str,
) -> (StreamId, (u16, u32)) {
    io.prepares = true;
    let zero = control_plane.join(io, &joiner(name, 0, 2), "zero").unwrap();
    control_plane.join(io, &joiner(name, 1, 2), "one").unwrap();
    let done = io.take();
    assert!(!done.iter().any(|done| matches!(done, Done::Open(_))), "{done:?}");
    assert_eq!(assigned(&done), []);
    let prepared = done.iter().find_map(|done| match done {
        Done::Prepare(epoch, numbers) => Some((numbers[0], *epoch)),
        _ => None,
    });
    (zero, prepared.expect("its numbers are prepared"))
}

#[test]
fn a_job_whose_numbers_are_being_prepared_keeps_no_other_waiting() {
    let (mut control_plane, mut io) = (control_plane(), Recorder::default());
    let (_, a) = join_unprepared(&mut control_plane, &mut io, "a");
    let (_, b) = join_unprepared(&mut control_plane, &mut io, "b");
    for job in [b, a] {
        control_plane.prepared(&mut io, job, Ok(()));
        let done = io.take();
        assert_eq!((&done[0], assigned(&done).len()), (&Done::Open(job.0), 2));
    }
    control_plane.prepared(&mut io, a, Ok(()));
    assert_eq!(io.take(), [], "once");
}

#[test]
fn a_job_whose_numbers_cannot_be_prepared_is_aborted_and_nobody_is_assigned() {
    let (mut control_plane, mut io) = (control_plane(), Recorder::default());
    let (_, job) = join_unprepared(&mut control_plane, &mut io, "train");
    let refused = Error::Refused { what: "try it".to_owned(), why: "no luck".to_owned() };
    control_plane.prepared(&mut io, job, Err(refused));
    let news = aborted("the aggregator failed: try it: no luck", &[]);
    let expected =
        [Done::Save(0), Done::Abort(0), Done::Tell("zero", news.clone()), Done::Tell("one", news)];
    assert_eq!(io.take(), expected);
}

/// The job's number may belong to another job by then.
#[test]
fn a_job_that_ends_while_its_numbers_are_prepared_is_not_opened() {
    let (mut control_plane, mut io) = (control_plane(), Recorder::default());
    let (zero, job) = join_unprepared(&mut control_plane, &mut io, "train");
    control_plane.disconnect(&mut io, zero, Duration::ZERO);
    let reason = "rank 0 (10.0.0.1) is gone: its process ended, or its connection broke";
    assert_eq!(io.take().last(), Some(&Done::Tell("one", aborted(reason, &[0]))));
    control_plane.prepared(&mut io, job, Ok(()));
    assert_eq!(io.take(), []);
}

#[test]
fn what_fails_at_the_end_of_a_job_is_logged_and_the_rest_is_done() {
    let (mut control_plane, mut io) = (control_plane(), Recorder::default());
    let [(zero, _), (one, _)] = start(&mut control_plane, &mut io, "train");
    io.take();
    io.refuses = vec![Done::Save(0), Done::Abort(0), Done::Close(0)];
    control_plane.disconnect(&mut io, one, Duration::ZERO);
    let reason = "rank 1 (10.0.0.2) is gone: its process ended, or its connection broke";
    let expected = [Done::Save(0), Done::Abort(0), Done::Tell("zero", aborted(reason, &[1]))];
    assert_eq!(io.take(), expected);
    control_plane.disconnect(&mut io, zero, Duration::ZERO);
    assert_eq!(io.take(), [Done::Save(0), Done::Close(0)]);
    let failures = io.log.iter().filter(|(level, _)| *level == Level::Error);
    assert_eq!(failures.count(), 4);
    assert_eq!(control_plane.table().list(), []);
}

#[test]
fn a_connection_that_was_silent_for_too_long_is_taken_for_dead() {
    for (silence, what) in [
        (Duration::ZERO, "is gone: its process ended, or its connection broke"),
        (Duration::from_millis(999), "is gone: its process ended, or its connection broke"),
        (Duration::from_secs(4), "did not answer for 4 s, and is considered dead"),
    ] {
        let (mut control_plane, mut io) = (control_plane(), Recorder::default());
        let [_, (one, _)] = start(&mut control_plane, &mut io, "train");
        io.take();
        control_plane.disconnect(&mut io, one, silence);
        let news = aborted(&format!("rank 1 (10.0.0.2) {what}"), &[1]);
        assert_eq!(io.take().last(), Some(&Done::Tell("zero", news)), "{silence:?}");
    }
}

#[test]
fn a_stream_that_has_ended_is_told_nothing() {
    let (mut control_plane, mut io) = (control_plane(), Recorder::default());
    let [(zero, member), _] = start(&mut control_plane, &mut io, "train");
    io.take();
    control_plane.leave(&mut io, member, "", &[]).unwrap();
    assert_eq!(io.take().last(), Some(&Done::End("zero")));
    assert!(control_plane.streams().all(|(stream, _)| stream != zero));
    control_plane.shut_down(&mut io);
    let done = io.take();
    let reason = "the aggregator stops".to_owned();
    let stops = Event::Aborted(Aborted { reason, stops: true, ..Aborted::default() });
    assert!(done.contains(&Done::Tell("one", stops)), "{done:?}");
    assert_eq!(done.last(), Some(&Done::End("one")));
    assert_eq!(control_plane.streams().count(), 0);
}

#[test]
fn reports_of_calls_are_gathered_for_a_while() {
    let (mut control_plane, mut io) = (control_plane(), Recorder::default());
    let [(_, zero), _] = start(&mut control_plane, &mut io, "train");
    io.take();
    let calls = vec![Call { number: 1, call: "barrier()".to_owned(), cut: 0 }];
    control_plane.report_calls(&mut io, zero, calls, &[0, 1]).unwrap();
    let timer = Timer::Conclude(0, zero.epoch);
    assert_eq!(io.take()[0], Done::Schedule(Duration::from_millis(500), timer));
    control_plane.on_timer(&mut io, timer);
    assert_eq!(io.take()[..2], [Done::Save(0), Done::Abort(0)]);
}

#[test]
fn a_job_that_is_not_restored_keeps_no_other_from_it() {
    let (mut first, mut io) = (control_plane(), Recorder::default());
    let [(_, lost), _] = start(&mut first, &mut io, "a");
    let [(_, kept), _] = start(&mut first, &mut io, "b");
    let saved = Saved { jobs: io.saved.take(), epochs: io.epochs.take().expect("kept") };

    let (mut second, mut io) = (control_plane(), Recorder::default());
    io.refuses = vec![Done::Start(0)];
    second.restore(&mut io, saved);
    let expected = [
        Done::Start(0),
        Done::Save(0),
        Done::Abort(0),
        Done::Start(1),
        Done::Schedule(Duration::from_secs(5), Timer::Expire),
    ];
    assert_eq!(io.take(), expected);
    let peer = Origin::direct(Ipv4Addr::new(10, 0, 0, 1).into());
    second.resume(&mut io, lost, peer.clone(), "lost").unwrap();
    let news = aborted("the aggregator failed: try it: no luck", &[]);
    assert_eq!(io.take(), [Done::Tell("lost", news)]);
    second.resume(&mut io, kept, peer, "kept").unwrap();
    assert!(matches!(io.take()[..], [Done::Tell("kept", Event::Started(_))]));
    // Rank 1 of neither comes back.
    second.on_timer(&mut io, Timer::Expire);
    let reason = "rank 1 (10.0.0.2) did not come back after the aggregator was restarted";
    let expected =
        [Done::Save(0), Done::Save(1), Done::Abort(1), Done::Tell("kept", aborted(reason, &[1]))];
    assert_eq!(io.take(), expected);
}

/// Both hosts are behind the same port: the job takes as long as a ring over links of half its
/// speed.
#[test]
fn a_port_that_is_too_slow_is_told_when_a_job_starts() {
    for (speed, expected) in [(None, 0), (Some(10_000_000_000), 1)] {
        let (mut control_plane, mut io) = (control_plane(), Recorder::default());
        io.speed = speed;
        start(&mut control_plane, &mut io, "train");
        let line = "job 0 \"train\": 2 hosts share port p1 of 10 Gb/s; if their own links are \
                    faster than 5 Gb/s, a ring such as Gloo's takes less time: ";
        let is_it =
            |(level, said): &&(Level, String)| *level == Level::Info && said.starts_with(line);
        assert_eq!(io.log.iter().filter(is_it).count(), expected, "{:?}", io.log);
    }
}

/// A port of 10 Gb/s takes 2 tensors, each of 10 Gb/s, in twice the time of a link and of a ring.
/// Other aggregators take a part, whose size this one does not judge.
#[test]
fn what_a_slow_port_costs_is_told_if_links_are_known() {
    for (aggregators, expected) in [(1, 1), (2, 0)] {
        let (mut control_plane, mut io) = (control_plane(), Recorder::default());
        io.speed = Some(10_000_000_000);
        let stripe = Stripe { aggregators, weight: 0 };
        let link = Link { of_rank: 10_000_000_000, own: None };
        for (rank, stream) in [(0, "zero"), (1, "one")] {
            let joiner = Joiner { stripe, link: link.clone(), ..joiner("train", rank, 2) };
            control_plane.join(&mut io, &joiner, stream).unwrap();
        }
        for (rank, assigned) in (0..).zip(assigned(&io.take())) {
            let Assigned { job, epoch, control_secret: secret, .. } = assigned;
            let member = MemberId { job, epoch, rank, secret };
            control_plane.ready(&mut io, member, 352, false).unwrap();
        }
        let is_it = |(_, said): &&(Level, String)| said.contains("this takes 2.0 times as long");
        assert_eq!(io.log.iter().filter(is_it).count(), expected, "{:?}", io.log);
    }
}
