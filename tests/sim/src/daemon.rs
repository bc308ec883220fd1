//! An aggregator: the real control plane over the simulated data plane, and connections to it.

use std::cell::RefCell;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use switchml_control::{JoinRequest, LeaveRequest, ResumeRequest, join_event};
use switchml_protocol::bpf_types::fanout::Way;
use switchml_protocol::bpf_types::job::Binding;
use switchml_userspace_core::control_plane::{ControlPlane, Io, RequestError, Timer};
use switchml_userspace_core::data_plane::{Error, JobSpec, Limits, ServesJobs};
use switchml_userspace_core::jobs::{
    Epochs, Job, JobTable, Joiner, Level, MemberError, Origin, StreamId,
};
use switchml_worker_core::session::Answer;
use tracing::{debug, trace};

use crate::data_plane::DataPlane;
use crate::net::{Above, Clock, Connection, Event, Message, Net, News, Violation};
use crate::rng::hash;
use crate::scenario::{Manner, Scenario, Time};

/// See the module.
pub struct Daemon {
    /// The aggregator's number.
    number: usize,
    control_plane: ControlPlane<Connection>,
    data_plane: DataPlane,
    /// Whether packets have tags.
    tags: bool,
    state: State,
    /// The number of daemons before this one, whose timers are ignored.
    generation: u32,
    /// The contributions that it takes before it fails, if it is to, and how it does.
    doom: Option<(u64, Manner)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up,
    /// The process is gone, the data plane continues.
    Killed,
    /// The host is gone, or everything on it.
    Gone,
}

impl Daemon {
    /// The daemon of an aggregator, without jobs.
    pub fn new(scenario: &Scenario, number: usize) -> Self {
        let data_plane = DataPlane::new(scenario, number);
        // Rule 28.6. A data plane that does not verify packets has no tags either.
        let tags =
            scenario.tags && scenario.tree.combiners.is_empty() && data_plane.checks_maxima();
        let seed = match number {
            0 => scenario.seed,
            other => hash(&[scenario.seed, other as u64]),
        };
        Self {
            number,
            control_plane: control_plane(data_plane.limits(), tags, seed),
            data_plane,
            tags,
            state: State::Up,
            generation: 0,
            doom: None,
        }
    }

    /// Jobs do not fail to open from now on, and it does not fail.
    pub fn heal(&mut self) {
        self.data_plane.heal();
        self.doom = None;
    }

    /// It fails after so many contributions more.
    pub fn doom(&mut self, contributions: u32, manner: Manner) {
        self.doom = Some((self.data_plane.contributions() + u64::from(contributions), manner));
    }

    /// How it is to fail, if its time has come.
    pub fn is_to_fail(&mut self) -> Option<Manner> {
        let contributions = self.data_plane.contributions();
        let doom = self.doom.take_if(|(until, _)| *until <= contributions);
        doom.map(|(_, manner)| manner)
    }

    /// Whether the daemon is down.
    pub fn is_down(&self) -> bool {
        self.state != State::Up
    }

    /// The data plane, for reading.
    pub fn data_plane(&self) -> &DataPlane {
        &self.data_plane
    }

    /// Stops, with all that it has in memory.
    pub fn stop(&mut self, net: &mut Net, manner: Manner) {
        debug!("{} aggregator {} is gone", Clock(net.now), self.number);
        if manner == Manner::Orderly && !self.is_down() {
            let (control_plane, io) = &mut self.io(net);
            control_plane.shut_down(io);
        }
        match manner {
            Manner::Silent => net.vanish(self.place()),
            _ => net.go_down(self.place()),
        }
        self.state = State::Gone;
    }

    fn place(&self) -> Above {
        Above::Aggregator(self.number)
    }

    /// The daemon is killed. Its data plane continues.
    pub fn kill(&mut self, net: &mut Net) {
        debug!("{} daemon {} is killed", Clock(net.now), self.number);
        net.go_down(self.place());
        self.state = State::Killed;
    }

    /// A new daemon in this one's place.
    pub fn start_anew(&mut self, net: &mut Net) {
        debug!("{} another aggregator {} is there", Clock(net.now), self.number);
        self.control_plane = control_plane(self.data_plane.limits(), self.tags, net.rng.any());
        self.generation += 1;
        net.listen(self.place());
        let is_another = self.state == State::Gone;
        self.state = State::Up;
        if is_another {
            self.data_plane.start_anew();
        } else if let Some(saved) = self.data_plane.take_over() {
            let (control_plane, io) = &mut self.io(net);
            control_plane.restore(io, saved);
        }
    }

    fn stream_of(&self, connection: Connection) -> Option<StreamId> {
        let mut streams = self.control_plane.streams();
        streams.find(|(_, to)| **to == connection).map(|(stream, _)| stream)
    }

    fn io<'a>(
        &'a mut self,
        net: &'a mut Net,
    ) -> (&'a mut ControlPlane<Connection>, SimulatedIo<'a>) {
        (
            &mut self.control_plane,
            SimulatedIo {
                net: RefCell::new(net),
                data_plane: RefCell::new(&mut self.data_plane),
                timers: (self.number, self.generation),
                opening: None,
            },
        )
    }

    /// A message over a control connection.
    pub fn hear(&mut self, net: &mut Net, connection: Connection, message: Message) {
        trace!("{} connection {connection} -> {message:?}", Clock(net.now));
        if let Some(answer) = self.request(net, connection, message) {
            net.tell(connection, News::Answer(answer));
        }
    }

    /// Serves a request. Returns the answer, unless it is already in flight.
    fn request(
        &mut self,
        net: &mut Net,
        connection: Connection,
        message: Message,
    ) -> Option<Answer> {
        let stream = self.stream_of(connection);
        let peer = net.peer(connection).into();
        let local = (*self.place().address().ip()).into();
        let (control_plane, io) = &mut self.io(net);
        match message {
            Message::Join(request) => {
                io.opening = Some(connection);
                let ends = (peer, local);
                let joined = control_plane.join(io, &joiner(request, ends), connection);
                joined.err().map(|error| Answer::Refused(error.to_string()))
            }
            Message::Resume(ResumeRequest { member, via, .. }) => {
                io.opening = Some(connection);
                let (id, origin) = (member.unwrap_or_default(), Origin { peer, via });
                let resumed = control_plane.resume(io, id, origin, connection);
                resumed.err().map(|error| refusal(&error))
            }
            Message::Gone => {
                control_plane.disconnect(io, stream?, Duration::ZERO);
                None
            }
            Message::Silent(time) => {
                control_plane.disconnect(io, stream?, Duration::from_nanos(time));
                None
            }
            Message::Leave(LeaveRequest {
                member,
                error,
                ranks,
                lost,
                lost_combiner,
                lost_aggregator,
                ..
            }) => {
                let id = member.unwrap_or_default();
                Some(answer(match lost.as_str() {
                    "" if lost_aggregator => control_plane.be_lost(io, id, &error),
                    "" => control_plane.leave(io, id, &error, &ranks),
                    how => control_plane.lose(io, id, how, &lost_combiner),
                }))
            }
            Message::Ready(id, lanes, needs_copies, taker) => {
                if let Some(taker) = taker {
                    // Whether the member is there, the next request says.
                    let _ = control_plane.read_along(id, taker.into());
                }
                Some(match control_plane.ready(io, id, lanes.into(), needs_copies) {
                    Err(RequestError::DataPlane(error)) => Answer::Refused(error.to_string()),
                    Err(RequestError::Member(error)) => refusal(&error),
                    Ok(()) => Answer::Done,
                })
            }
            Message::ReportCalls(id, calls, named) => {
                Some(answer(control_plane.report_calls(io, id, calls, &named)))
            }
            Message::ReportNoMulticast(id) => {
                Some(answer(control_plane.report_no_multicast(io, id)))
            }
            Message::Unready(id) => {
                let mut ours = control_plane.table().list();
                ours.retain(|job| job.shards.contains(&id.job));
                let members = ours.into_iter().flat_map(|job| job.members);
                let unready = members.filter(|member| !member.ready);
                Some(Answer::Unready(unready.map(|member| member.rank as u16).collect()))
            }
        }
    }

    /// A timer of the control plane has expired.
    pub fn on_timer(&mut self, net: &mut Net, generation: u32, timer: Timer) {
        if generation != self.generation || self.is_down() {
            return;
        }
        let (control_plane, io) = &mut self.io(net);
        control_plane.on_timer(io, timer);
    }

    /// Serves a datagram from `binding`. `header_intact`: whether at most its lanes and check word
    /// are damaged.
    pub fn serve(
        &mut self,
        net: &mut Net,
        binding: &Binding,
        packet: &[u8],
        congested: bool,
        header_intact: bool,
    ) -> Result<(), Violation> {
        if self.state == State::Gone {
            return Ok(());
        }
        self.data_plane.serve(net, binding, packet, congested, header_intact)
    }
}

/// A rank that joins over a connection with these ends, its own first.
fn joiner(request: JoinRequest, ends: (IpAddr, IpAddr)) -> Joiner {
    // The time does not matter without tenants.
    Joiner::new(request, String::new(), ends, None, Instant::now())
}

fn control_plane(limits: Limits, tags: bool, seed: u64) -> ControlPlane<Connection> {
    let table = JobTable::new(limits, None, StdRng::seed_from_u64(seed));
    ControlPlane::new(if tags { table.with_tags() } else { table })
}

fn answer(outcome: Result<(), MemberError>) -> Answer {
    match outcome {
        Ok(()) => Answer::Done,
        Err(error) => refusal(&error),
    }
}

fn refusal(error: &MemberError) -> Answer {
    match error {
        MemberError::NoMember { .. } => Answer::Unknown(error.to_string()),
        _ => Answer::Refused(error.to_string()),
    }
}

/// I/O of the control plane in the simulated network.
struct SimulatedIo<'a> {
    net: RefCell<&'a mut Net>,
    data_plane: RefCell<&'a mut DataPlane>,
    /// The aggregator and its generation, whose timers these are.
    timers: (usize, u32),
    /// The stream that opens with its first event.
    opening: Option<Connection>,
}

impl SimulatedIo<'_> {
    fn say(&mut self, connection: Connection, news: News) {
        if self.opening.take_if(|opening| *opening == connection).is_some() {
            self.net.get_mut().tell(connection, News::Answer(Answer::Done));
        }
        self.net.get_mut().tell(connection, news);
    }
}

impl ServesJobs for SimulatedIo<'_> {
    fn open(&self, job: &JobSpec) -> Result<(), Error> {
        self.data_plane.borrow_mut().open(&mut self.net.borrow_mut(), job)
    }

    fn start(&self, job: u16, ways: &[(u16, Way)]) -> Result<(), Error> {
        self.data_plane.borrow_mut().start(&mut self.net.borrow_mut(), job, ways);
        Ok(())
    }

    fn abort(&self, job: u16) -> Result<(), Error> {
        self.data_plane.borrow_mut().abort(job);
        Ok(())
    }

    fn close(&self, job: u16) -> Result<(), Error> {
        self.data_plane.borrow_mut().close(job);
        Ok(())
    }

    fn binding(&self, job: u16, rank: u16) -> Result<Option<Binding>, Error> {
        Ok(self.data_plane.borrow().binding(job, rank))
    }

    fn save(&self, job: &Job) -> Result<(), Error> {
        self.data_plane.borrow_mut().save(job);
        Ok(())
    }

    fn keep_epochs(&self, epochs: &Epochs) -> Result<(), Error> {
        self.data_plane.borrow_mut().keep_epochs(epochs);
        Ok(())
    }
}

impl Io for SimulatedIo<'_> {
    type Stream = Connection;
    type DataPlane = Self;

    fn data_plane(&self) -> &Self {
        self
    }

    fn tell(&mut self, stream: &Connection, event: join_event::Event) {
        self.say(*stream, News::Event(event));
    }

    fn end(&mut self, stream: Connection) {
        self.say(stream, News::Ended);
    }

    fn schedule(&mut self, after: Duration, timer: Timer) {
        let net = self.net.get_mut();
        let (number, generation) = self.timers;
        let at = net.now + after.as_nanos() as Time;
        net.schedule(at, Event::Timer(number, generation, timer));
    }

    fn log(&mut self, _level: Level, line: &str) {
        debug!("{} {line}", Clock(self.net.get_mut().now));
    }
}
