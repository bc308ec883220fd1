//! A simulated combiner: the real proxy over the simulated cells, with connections below and to the
//! parent, as `userspace/src/combiner.rs` has them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use switchml_control::{LeaveRequest, join_event};
use switchml_protocol::DATA_PORT;
use switchml_protocol::MAX_RANKS;
use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::bpf_types::maps::{MAX_JOBS, MAX_SHARDS};
use switchml_protocol::capabilities::Capabilities;
use switchml_userspace_core::data_plane::{Fanout, Limits};
use switchml_userspace_core::jobs::{Level, MemberId, StreamId};
use switchml_userspace_core::proxy::{self, Effect, Ends, Io, Proxy, Refused, Timer};
use switchml_worker_core::session::Answer;
use tracing::{debug, trace};

use crate::cells::Cells;
use crate::net::{
    Above, Clock, Connection, Event, Message, Net, News, Place, Violation, address_of_combiner,
};
use crate::scenario::{CombinerPlan, Scenario, Time};

/// See the module.
pub struct Combiner {
    proxy: Proxy,
    links: Links,
    cells: Cells,
    limits: Limits,
    plan: CombinerPlan,
    is_down: bool,
}

/// A combiner's connections.
struct Links {
    /// The combiner's number.
    combiner: usize,
    /// The number of daemons before this one, whose timers are ignored.
    generation: u32,
    /// The connections from below that have streams.
    below: BTreeMap<StreamId, Connection>,
    /// The connections to the parent, by stream, once the parent has opened its own.
    open: BTreeMap<StreamId, Connection>,
    above: BTreeMap<Connection, ToParent>,
}

/// A connection to the parent.
#[derive(Default)]
struct ToParent {
    /// The stream from below to which it belongs; `None` if it was made for one request.
    stream: Option<StreamId>,
    /// The request for which it was made, until it is there.
    first: Option<Message>,
    /// The connections from below whose requests wait for answers, the oldest first.
    asked: VecDeque<Connection>,
}

impl Combiner {
    /// A combiner without jobs.
    pub fn new(index: usize, scenario: &Scenario) -> Self {
        let plan = scenario.tree.combiners[index];
        let limits = Limits {
            shards: MAX_SHARDS as u16,
            slots_per_shard: scenario.slots,
            max_lanes: scenario.max_lanes,
            max_ranks: MAX_RANKS as u16,
            max_jobs: MAX_JOBS as u16,
            capabilities: Capabilities::PARTIAL_SUMS,
            ipv4_only: Capabilities::empty(),
            port: DATA_PORT,
            fanout: Fanout::Unicast,
            durable: false,
        };
        Self::of_generation(0, index, limits, plan)
    }

    fn of_generation(generation: u32, index: usize, limits: Limits, plan: CombinerPlan) -> Self {
        let id = u64::from(generation) << 32 | index as u64;
        let name = format!("tor{index}");
        let parent = plan.parent.map_or("the root".to_owned(), |parent| parent.to_string());
        let links = Links {
            combiner: index,
            generation,
            below: BTreeMap::new(),
            open: BTreeMap::new(),
            above: BTreeMap::new(),
        };
        let proxy = Proxy::new(limits, None, id, name, parent);
        let cells = Cells::new(index, plan);
        Self { proxy, links, cells, limits, plan, is_down: false }
    }

    /// Whether the combiner is down.
    pub fn is_down(&self) -> bool {
        self.is_down
    }

    /// The combiner's host restarts, after the daemon has told all if that is `orderly`: its state
    /// is lost.
    pub fn crash(&mut self, net: &mut Net, orderly: bool) {
        if orderly {
            let effects = self.proxy.shut_down();
            self.perform(net, None, effects);
        }
        let Links { combiner, generation, .. } = self.links;
        net.go_down(Above::Combiner(combiner));
        *self = Self::of_generation(generation + 1, combiner, self.limits, self.plan);
        self.is_down = true;
    }

    /// The combiner is back.
    pub fn start(&mut self, net: &mut Net) {
        self.is_down = false;
        net.listen(Above::Combiner(self.links.combiner));
    }

    /// Forgets what its cells hold, and nothing else (rule 27.12).
    pub fn forget(&mut self) {
        self.cells.forget();
    }

    /// Stops letting contributions pass without need.
    pub fn heal(&mut self, net: &mut Net) {
        self.plan.let_pass = 0;
        self.cells.heal();
        self.start(net);
    }

    /// All its connections with its parent break.
    pub fn cut_off(&mut self, net: &mut Net) {
        self.links.above.keys().for_each(|above| net.break_off(*above));
    }

    /// A datagram at one of its ports, from `binding`, as it was sent if `intact`.
    pub fn serve(
        &mut self,
        net: &mut Net,
        from: (&Binding, u16),
        packet: &[u8],
        congested: bool,
        intact: bool,
    ) -> Result<(), Violation> {
        if self.is_down {
            return Ok(());
        }
        self.cells.serve(net, from, packet, congested, intact)
    }

    /// A timer of the control plane has expired.
    pub fn on_timer(&mut self, net: &mut Net, generation: u32, timer: Timer) {
        if generation == self.links.generation && !self.is_down {
            let Self { proxy, links, cells, .. } = self;
            proxy::on_timer(proxy, &mut ProxyIo { net, links, cells }, timer);
        }
    }

    /// A message from below.
    pub fn hear(&mut self, net: &mut Net, from: Connection, message: Message) {
        let combiner = self.links.combiner;
        trace!("{} combiner {combiner}, connection {from} -> {message:?}", Clock(net.now));
        match message {
            Message::Join(request) => {
                let asked = self.proxy.join(request, ends(net, from, combiner));
                self.open(
                    net,
                    from,
                    asked.map(|(stream, request)| (stream, Message::Join(request))),
                );
            }
            Message::Resume(request) => {
                let asked = self.proxy.resume(request, ends(net, from, combiner));
                let asked = asked.map(|(stream, request)| (stream, Message::Resume(request)));
                self.open(net, from, asked);
            }
            Message::Ready(id, _, needs_copies, taker) => {
                self.proxy.ready(id, needs_copies, taker);
                self.pass(net, from, Some(id), message);
            }
            Message::Leave(LeaveRequest { member, .. }) => {
                let id = member.unwrap_or_default();
                self.pass(net, from, Some(id), message);
                self.proxy.leave(id);
            }
            Message::ReportCalls(id, ..) => self.pass(net, from, Some(id), message),
            Message::Unready(_) => self.pass(net, from, None, message),
            Message::ReportNoMulticast(id) => {
                let answer = match self.proxy.report_no_multicast(id) {
                    Err(error) => refusal(&error),
                    Ok(effects) => {
                        self.perform(net, None, effects);
                        Answer::Done
                    }
                };
                net.tell(from, News::Answer(answer));
            }
            Message::Gone => self.lose_below(net, from, Duration::ZERO),
            Message::Silent(time) => self.lose_below(net, from, Duration::from_nanos(time)),
        }
    }

    /// A stream from below begins: asks the parent for one.
    fn open(
        &mut self,
        net: &mut Net,
        from: Connection,
        asked: Result<(StreamId, Message), Refused>,
    ) {
        match asked {
            Err(error) => net.tell(from, News::Answer(refusal(&error))),
            Ok((stream, question)) => {
                self.links.below.insert(stream, from);
                self.links.connect(net, Some(stream), from, question);
            }
        }
    }

    /// Passes a member's request on, by the connection of its stream if it has one.
    fn pass(&mut self, net: &mut Net, from: Connection, id: Option<MemberId>, message: Message) {
        let stream = id.and_then(|id| self.proxy.stream_of(id));
        let Links { open, above, .. } = &mut self.links;
        let known = stream.and_then(|stream| open.get(&stream));
        match known.and_then(|known| Some((*known, above.get_mut(known)?))) {
            Some((connection, above)) => {
                above.asked.push_back(from);
                net.ask(connection, message);
            }
            None => self.links.connect(net, None, from, message),
        }
    }

    /// A connection from below has ended.
    fn lose_below(&mut self, net: &mut Net, from: Connection, silence: Duration) {
        let mut streams = self.links.below.iter();
        let Some(stream) = streams.find(|(_, below)| **below == from).map(|(stream, _)| *stream)
        else {
            return;
        };
        self.drop_stream(net, stream, silence);
    }

    /// A stream from below is dropped, as its owner in the product is.
    fn drop_stream(&mut self, net: &mut Net, stream: StreamId, silence: Duration) {
        self.links.below.remove(&stream);
        let effects = self.proxy.disconnect(stream, silence);
        self.perform(net, None, effects);
        // The request for a stream of its own, if the parent has not answered yet.
        self.links.above.retain(|connection, above| {
            let is_of_it = above.stream == Some(stream);
            if is_of_it {
                net.ask(*connection, Message::Gone);
            }
            !is_of_it
        });
    }

    /// News from the parent.
    pub fn learn(&mut self, net: &mut Net, from: Connection, news: News) {
        debug!("{} combiner {} hears {news:?}", Clock(net.now), self.links.combiner);
        let Some(above) = self.links.above.get_mut(&from) else { return };
        let stream = above.stream;
        match news {
            News::Connected => {
                if let Some(first) = above.first.take() {
                    net.ask(from, first);
                }
            }
            News::Event(event) => {
                let Some(stream) = stream else { return };
                let effects = self.proxy.hear(stream, event);
                self.perform(net, Some(stream), effects);
            }
            News::Answer(answer) => self.take_answer(net, from, answer),
            News::Ended => {
                // A goodbye may still wait for its answer.
                above.stream = None;
                if above.asked.is_empty() {
                    self.links.hang_up(net, from);
                }
                self.lose_parent(net, stream, None);
            }
            News::Unreachable | News::Lost => {
                let why = "its parent does not answer";
                for below in std::mem::take(&mut above.asked) {
                    net.tell(below, News::Answer(Answer::Lost(why.to_owned())));
                }
                self.links.hang_up(net, from);
                self.lose_parent(net, stream, Some(why));
            }
        }
    }

    /// The parent's stream has ended, in good order or for the reason `why`. A stream that the
    /// parent has not opened yet fails.
    fn lose_parent(&mut self, net: &mut Net, stream: Option<StreamId>, why: Option<&str>) {
        let Some(stream) = stream else { return };
        if self.links.open.remove(&stream).is_none() {
            return self.drop_stream(net, stream, Duration::ZERO);
        }
        let effects = self.proxy.lose_parent(stream, why);
        self.perform(net, None, effects);
    }

    /// The parent answers the oldest request over this connection.
    fn take_answer(&mut self, net: &mut Net, from: Connection, answer: Answer) {
        let Links { above, open, .. } = &mut self.links;
        let Some(ToParent { stream, asked, .. }) = above.get_mut(&from) else { return };
        let (stream, is_done) = (*stream, answer == Answer::Done);
        if let Some(below) = asked.pop_front() {
            net.tell(below, News::Answer(answer));
        }
        match stream {
            None => self.links.hang_up(net, from),
            Some(stream) if !open.contains_key(&stream) => {
                if is_done {
                    open.insert(stream, from);
                } else {
                    self.drop_stream(net, stream, Duration::ZERO);
                }
            }
            Some(_) => {}
        }
    }

    fn perform(&mut self, net: &mut Net, of: Option<StreamId>, effects: Vec<Effect>) {
        let Self { proxy, links, cells, .. } = self;
        proxy::perform(proxy, &mut ProxyIo { net, links, cells }, of, effects);
    }
}

impl Links {
    /// Connects to the parent, for this request of a connection from below.
    fn connect(
        &mut self,
        net: &mut Net,
        stream: Option<StreamId>,
        from: Connection,
        first: Message,
    ) {
        let connection = net.connect(Place::Combiner(self.combiner), 0);
        let asked = VecDeque::from([from]);
        self.above.insert(connection, ToParent { stream, first: Some(first), asked });
    }

    /// Closes a connection to the parent.
    fn hang_up(&mut self, net: &mut Net, connection: Connection) {
        self.above.remove(&connection);
        net.ask(connection, Message::Gone);
    }
}

fn ends(net: &Net, connection: Connection, combiner: usize) -> Ends {
    Ends { peer: net.peer(connection).into(), local: address_of_combiner(combiner).into() }
}

fn refusal(error: &Refused) -> Answer {
    match error {
        Refused::NoMember(_) => Answer::Unknown(error.to_string()),
        _ => Answer::Refused(error.to_string()),
    }
}

/// The outside world of a simulated proxy.
struct ProxyIo<'a> {
    net: &'a mut Net,
    links: &'a mut Links,
    cells: &'a Cells,
}

impl ProxyIo<'_> {
    /// Ends the stream to the parent that belongs to this one, after this request. A request from
    /// below may still wait for its answer.
    fn close(&mut self, stream: StreamId, last: Option<Message>) {
        let Some(connection) = self.links.open.remove(&stream) else { return };
        let Some(above) = self.links.above.get_mut(&connection) else { return };
        above.stream = None;
        if above.asked.is_empty() {
            self.links.above.remove(&connection);
        }
        for message in last.into_iter().chain([Message::Gone]) {
            self.net.ask(connection, message);
        }
    }
}

impl Io for ProxyIo<'_> {
    type DataPlane = Cells;

    fn data_plane(&self) -> &Cells {
        self.cells
    }

    fn tell(&mut self, stream: StreamId, event: join_event::Event) {
        if let Some(below) = self.links.below.get(&stream) {
            self.net.tell(*below, News::Event(event));
        }
    }

    fn end(&mut self, stream: StreamId, broken: Option<String>) {
        if let Some(below) = self.links.below.remove(&stream) {
            self.net.tell(below, if broken.is_some() { News::Lost } else { News::Ended });
        }
    }

    fn leave(&mut self, stream: StreamId, request: LeaveRequest) {
        self.close(stream, Some(Message::Leave(request)));
    }

    fn hang_up(&mut self, stream: StreamId) {
        self.close(stream, None);
    }

    fn schedule(&mut self, after: Duration, timer: Timer) {
        let Links { combiner, generation, .. } = *self.links;
        let at = self.net.now + after.as_nanos() as Time;
        self.net.schedule(at, Event::CombinerTimer(combiner, generation, timer));
    }

    fn log(&mut self, _level: Level, line: &str) {
        debug!("{} combiner {}: {line}", Clock(self.net.now), self.links.combiner);
    }
}
