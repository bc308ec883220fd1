//! Virtual time, and everything in flight.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::rc::Rc;

use switchml_control::join_event;
use switchml_protocol::header::{HEADER_LEN, Header, Kind, flags};
use switchml_protocol::job::Binding;
use switchml_protocol::{DATA_PORT, U16};
use switchml_userspace_core::control_plane::Timer;
use switchml_userspace_core::jobs::{Joiner, MemberId};
use switchml_worker_core::session::Answer;
use tracing::trace;
use zerocopy::FromBytes;

use crate::link::{Delivery, Link};
use crate::rng::Ppm;
use crate::rng::Rng;
use crate::scenario::{MS, SECOND, Scenario, Time, Tree};
use crate::tally::{Fault, Tally};

/// A control connection.
pub type Connection = usize;

/// Why the simulated system is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(pub String);

/// Fails with a violation unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::net::Violation(format!($($text)+)));
        }
    };
}
pub(crate) use ensure;

/// A scheduled event.
#[derive(Debug)]
pub enum Event {
    /// A datagram reaches the aggregator.
    AtAggregator {
        /// Where the datagram comes from.
        binding: Binding,
        /// The datagram's bytes.
        packet: Rc<[u8]>,
        /// Whether it carries a CE mark.
        congested: bool,
        /// Whether its header and its length are undamaged.
        header_intact: bool,
    },
    /// A datagram reaches a combiner.
    AtCombiner {
        /// The combiner.
        combiner: usize,
        /// UDP port.
        port: u16,
        /// Where the datagram comes from.
        binding: Binding,
        /// The datagram's bytes.
        packet: Rc<[u8]>,
        /// Whether it carries a CE mark.
        congested: bool,
        /// Whether it is undamaged.
        intact: bool,
    },
    /// A datagram of the aggregator's reaches a worker's host.
    AtWorker {
        /// The worker.
        worker: usize,
        /// UDP port.
        port: u16,
        /// The datagram's bytes.
        packet: Rc<[u8]>,
        /// Whether it carries a CE mark.
        congested: bool,
        /// Whether it is undamaged.
        intact: bool,
    },
    /// A worker's timer, or its turn to process what has arrived.
    Turn(usize),
    /// A message reaches the daemon.
    AtDaemon(Connection, Message),
    /// A timer of the control plane expires, in the daemon of this generation.
    Timer(u32, Timer),
    /// A message reaches the worker's end of a connection.
    News(Connection, News),
    /// A worker is started.
    Start(usize),
    /// The incident with this number.
    Incident(usize),
    /// The aggregator is back.
    Back,
    /// A combiner is back.
    CombinerBack(usize),
    /// The stranger sends a packet.
    Stranger,
    /// All faults end.
    Heal,
}

/// A message from a worker to the daemon.
#[derive(Clone, Debug)]
pub enum Message {
    /// The worker joins.
    Join(Joiner),
    /// The worker's path is open for this many lanes; whether the worker needs copies of results.
    Ready(MemberId, u16, bool),
    /// The worker's calls in flight, by number, and the ranks that the data plane named.
    ReportCalls(MemberId, Vec<switchml_control::Call>, Vec<u32>),
    /// The worker gets no results by multicast.
    ReportNoMulticast(MemberId),
    /// The worker leaves, with its error and the ranks that it blames, if it has failed.
    Leave(MemberId, String, Vec<u32>),
    /// The worker comes back over another connection.
    Resume(MemberId),
    /// The worker asks which ranks of its job are not ready.
    Unready(MemberId),
    /// The worker's end of the connection is closed.
    Gone,
    /// The connection of a combiner on the way broke.
    CutOff,
    /// The worker's end of the connection has not answered for this long, and is taken for dead.
    Silent(Time),
}

/// What a worker is told.
#[derive(Clone, Debug)]
pub enum News {
    /// An event of the stream.
    Event(join_event::Event),
    /// The answer to the worker's oldest unanswered request.
    Answer(Answer),
    /// The connection is open.
    Connected,
    /// The connection cannot be made.
    Unreachable,
    /// The connection is gone.
    Lost,
}

struct Scheduled {
    at: Time,
    number: u64,
    event: Event,
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Scheduled {}

struct Wire {
    worker: usize,
    /// When the last message in each direction arrives: TCP keeps them in order.
    last: [Time; 2],
}

/// The clock, the queue of events, links and connections.
pub struct Net {
    /// The time.
    pub now: Time,
    /// Draws what happens during the run.
    pub rng: Rng,
    /// Counters.
    pub tally: Tally,
    queue: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    links: Vec<[Link; 2]>,
    /// The links of combiners.
    uplinks: Vec<[Link; 2]>,
    tree: Tree,
    wires: Vec<Wire>,
    control_delay: (Time, Time),
    control_loss: Ppm,
    ports: Vec<u32>,
    without_multicast: Vec<bool>,
    /// Packets that a stranger may have seen, the newest last; the secret of a HELLO is removed.
    pub seen: Vec<Vec<u8>>,
    spied: bool,
}

impl Net {
    /// A network at rest.
    pub fn new(scenario: &Scenario) -> Self {
        Self {
            now: 0,
            rng: Rng::new(!scenario.seed),
            tally: Tally::default(),
            queue: BinaryHeap::new(),
            scheduled: 0,
            links: scenario.links.iter().map(|plans| plans.map(Link::new)).collect(),
            uplinks: (scenario.tree.combiners.iter())
                .map(|plan| plan.uplink.map(Link::new))
                .collect(),
            tree: scenario.tree.clone(),
            wires: Vec::new(),
            control_delay: scenario.control_delay,
            control_loss: scenario.control_loss,
            ports: scenario.ports.clone(),
            without_multicast: scenario.without_multicast.clone(),
            seen: Vec::new(),
            spied: scenario.stranger.is_some(),
        }
    }

    /// Makes an event happen, now at the earliest.
    pub fn schedule(&mut self, at: Time, event: Event) {
        self.scheduled += 1;
        self.queue.push(Reverse(Scheduled { at: at.max(self.now), number: self.scheduled, event }));
    }

    /// Takes the next event, and advances the clock to it.
    pub fn pop(&mut self) -> Option<Event> {
        let Reverse(Scheduled { at, event, .. }) = self.queue.pop()?;
        self.now = at;
        Some(event)
    }

    /// Largest packet that passes between a worker's interface and its link.
    pub fn largest_packet(&self, worker: usize) -> usize {
        self.links[worker][0].largest_packet()
    }

    /// The worker's link in a direction.
    pub fn link(&mut self, worker: usize, direction: usize) -> &mut Link {
        &mut self.links[worker][direction]
    }

    /// Ends all faults of links and connections.
    pub fn heal(&mut self) {
        self.links.iter_mut().chain(&mut self.uplinks).flatten().for_each(Link::heal);
        self.control_delay.1 = 0;
        self.control_loss = 0;
        self.without_multicast.fill(false);
    }

    /// A worker sends a datagram to its aggregator or combiner. Returns whether it arrives, damaged
    /// or not.
    pub fn to_aggregator(&mut self, worker: usize, port: u16, packet: &[u8]) -> bool {
        trace!("{} {worker}:{port} -> {}", Clock(self.now), describe(packet));
        self.spy(packet);
        let binding = binding_of(worker, port, self.ports[worker]);
        let arrivals = self.over(Cable::OfWorker(worker), 0, packet, true);
        let arrives = !arrivals.is_empty();
        let flipped =
            |delivery: &Delivery| !delivery.intact && delivery.packet.len() == packet.len();
        if is_empty_contribution(packet) && arrivals.iter().any(flipped) {
            self.tally.fault(Fault::EmptyFlips);
        }
        let above = self.tree.above.get(worker).copied().flatten();
        self.arrive_above((above, DATA_PORT), binding, packet, arrivals, true);
        arrives
    }

    /// A combiner sends a datagram to its parent, from this port. `intact`: whether it was made of
    /// intact packets.
    pub fn to_parent(&mut self, combiner: usize, port: u16, packet: &[u8], intact: bool) {
        trace!("{} combiner {combiner}:{port} -> {}", Clock(self.now), describe(packet));
        self.spy(packet);
        let binding = binding_of_combiner(combiner, port);
        let arrivals = self.over(Cable::OfCombiner(combiner), 0, packet, intact);
        self.tally.up(packet.len());
        let parent = self.tree.combiners[combiner].parent;
        self.arrive_above((parent, DATA_PORT), binding, packet, arrivals, intact);
    }

    /// Delivers the packets that come out of a link towards the root.
    fn arrive_above(
        &mut self,
        (above, port): (Option<usize>, u16),
        binding: Binding,
        sent: &[u8],
        arrivals: Vec<Delivery>,
        was_intact: bool,
    ) {
        for Delivery { at, packet, congested, intact } in arrivals {
            let header_intact = was_intact
                && packet.len() == sent.len()
                && packet[..HEADER_LEN] == sent[..HEADER_LEN];
            let packet = packet.into();
            let event = match above {
                None => Event::AtAggregator { binding, packet, congested, header_intact },
                Some(combiner) => {
                    let intact = intact && was_intact;
                    Event::AtCombiner { combiner, port, binding, packet, congested, intact }
                }
            };
            self.schedule(at, event);
        }
    }

    /// Sends a packet over a link. Returns the deliveries.
    fn over(
        &mut self,
        cable: Cable,
        direction: usize,
        packet: &[u8],
        intact: bool,
    ) -> Vec<Delivery> {
        let Self { now, rng, tally, links, uplinks, .. } = self;
        let link = match cable {
            Cable::OfWorker(worker) => &mut links[worker][direction],
            Cable::OfCombiner(combiner) => &mut uplinks[combiner][direction],
        };
        let mut arrivals = Vec::new();
        link.send(*now, (packet, intact), rng, tally, |delivery| arrivals.push(delivery));
        tally.packets += 1;
        arrivals
    }

    /// The root, or this combiner, sends a datagram to a place below, where a rank or combiner is
    /// or was. `intact`: whether it was made of intact packets.
    pub fn to_place(&mut self, from: Option<usize>, to: &Binding, packet: &[u8], intact: bool) {
        let port = to.port.get();
        match Place::of(to) {
            Place::Worker(worker) => self.send_down(worker, port, packet, intact),
            Place::Combiner(combiner) => {
                trace!("{} combiner {combiner}:{port} <- {}", Clock(self.now), describe(packet));
                self.spy(packet);
                let binding = binding_of_parent(from);
                for arrival in self.over(Cable::OfCombiner(combiner), 1, packet, intact) {
                    let Delivery { at, packet, congested, intact: unharmed } = arrival;
                    let (packet, intact) = (packet.into(), intact && unharmed);
                    let event =
                        Event::AtCombiner { combiner, port, binding, packet, congested, intact };
                    self.schedule(at, event);
                }
            }
            Place::Stranger => {}
        }
    }

    fn send_down(&mut self, worker: usize, port: u16, packet: &[u8], intact: bool) {
        trace!("{} {worker}:{port} <- {}", Clock(self.now), describe(packet));
        self.spy(packet);
        for delivery in self.over(Cable::OfWorker(worker), 1, packet, intact) {
            let event = Event::AtWorker {
                worker,
                port,
                packet: delivery.packet.into(),
                congested: delivery.congested,
                intact: intact && delivery.intact,
            };
            self.schedule(delivery.at, event);
        }
    }

    /// The aggregator sends a datagram to the group that a worker has joined.
    pub fn to_member(&mut self, worker: usize, port: u16, packet: &[u8]) {
        if self.without_multicast[worker] {
            return self.tally.fault(Fault::NoMulticast);
        }
        self.send_down(worker, port, packet, true);
    }

    /// Opens a control connection.
    pub fn connect(&mut self, worker: usize) -> Connection {
        self.wires.push(Wire { worker, last: [self.now; 2] });
        self.wires.len() - 1
    }

    /// The combiners on a worker's way, from its own on.
    pub fn way(&self, worker: usize) -> Vec<usize> {
        self.tree.way(worker).collect()
    }

    /// The worker at a connection's end.
    pub fn worker_at(&self, connection: Connection) -> usize {
        self.wires[connection].worker
    }

    /// Tells the daemon.
    pub fn tell_daemon(&mut self, connection: Connection, message: Message) {
        let at = self.control_arrival(connection, 0, 0);
        self.schedule(at, Event::AtDaemon(connection, message));
    }

    /// Makes the daemon find out, after a while, that the other end is dead.
    pub fn go_silent(&mut self, connection: Connection, after: Time) {
        let at = self.control_arrival(connection, 0, after);
        self.schedule(at, Event::AtDaemon(connection, Message::Silent(after)));
    }

    /// Tells a worker.
    pub fn tell_worker(&mut self, connection: Connection, news: News) {
        self.tell_worker_later(connection, news, 0);
    }

    /// Tells a worker, delayed by `after`.
    pub fn tell_worker_later(&mut self, connection: Connection, news: News, after: Time) {
        let at = self.control_arrival(connection, 1, after);
        self.schedule(at, Event::News(connection, news));
    }

    fn control_arrival(&mut self, connection: Connection, direction: usize, more: Time) -> Time {
        let (least, most) = self.control_delay;
        let mut at = self.now + least + self.rng.below(most + 1) + more;
        if self.rng.chance(self.control_loss) {
            self.tally.fault(Fault::SlowControl);
            at += self.rng.magnitude(200 * MS, 8 * SECOND);
        }
        let last = &mut self.wires[connection].last[direction];
        *last = (*last).max(at);
        *last
    }

    fn spy(&mut self, packet: &[u8]) {
        const MEMORY: usize = 64;
        if !self.spied {
            return;
        }
        let mut packet = packet.to_vec();
        if let Ok((header, _)) = Header::mut_from_prefix(&mut packet)
            && header.kind == Kind::Hello as u8
        {
            header.aux.set(0);
        }
        if self.seen.len() == MEMORY {
            self.seen.swap_remove(0);
        }
        self.seen.push(packet);
    }
}

fn is_empty_contribution(packet: &[u8]) -> bool {
    Header::ref_from_prefix(packet).is_ok_and(|(header, _)| {
        header.kind == Kind::Contribution as u8 && header.flags & flags::EMPTY != 0
    })
}

/// A worker's address.
pub fn address_of(worker: usize) -> Ipv4Addr {
    let [high, low] = (worker as u16 + 1).to_be_bytes();
    Ipv4Addr::new(10, 0, high, low)
}

/// The source of a worker's datagrams, behind that interface of the aggregator.
pub fn binding_of(worker: usize, port: u16, ifindex: u32) -> Binding {
    let ip = address_of(worker).octets();
    let mac = [2, 0, 0, 0, ip[2], ip[3]];
    Binding { ifindex, ip: ip.into(), mac, port: U16::new(port), ..Binding::default() }
}

/// The first UDP port of ranks.
const FIRST_PORT: u16 = 20_000;
/// Ports of a shard, for one start of its rank after another.
const STARTS: u16 = 1_024;

/// The UDP port of a rank's shard, when the rank has opened so many sockets before.
pub fn port_of(shard: usize, sockets: u16) -> u16 {
    FIRST_PORT + shard as u16 * STARTS + sockets % STARTS
}

/// The shard whose UDP port this is.
pub fn shard_at(port: u16) -> usize {
    usize::from(port.saturating_sub(FIRST_PORT) / STARTS)
}

/// The source of a combiner's datagrams.
fn binding_of_combiner(combiner: usize, port: u16) -> Binding {
    let ip = address_of_combiner(combiner).octets();
    let mac = [2, 0, 0, 1, ip[2], ip[3]];
    let ifindex = COMBINER_PORTS + combiner as u32;
    Binding { ifindex, ip: ip.into(), mac, port: U16::new(port), ..Binding::default() }
}

/// The source of a parent's datagrams, as a combiner sees it.
fn binding_of_parent(parent: Option<usize>) -> Binding {
    let address = parent_address(parent);
    let (ip, port) = (address.ip().octets().into(), U16::new(address.port()));
    Binding { ip, port, ..Binding::default() }
}

/// A combiner's address.
pub fn address_of_combiner(combiner: usize) -> Ipv4Addr {
    let [high, low] = (combiner as u16 + 1).to_be_bytes();
    Ipv4Addr::new(10, 1, high, low)
}

/// The data address of a combiner's parent.
pub fn parent_address(parent: Option<usize>) -> SocketAddrV4 {
    let of_combiner = parent.map(|index| SocketAddrV4::new(address_of_combiner(index), DATA_PORT));
    of_combiner.unwrap_or(AGGREGATOR)
}

/// The number of the stranger, beyond those of workers.
pub const STRANGER: usize = 60_000;

/// The first interface of combiners, after those of workers.
const COMBINER_PORTS: u32 = 100_000;

/// The link of a worker, or a combiner's uplink.
enum Cable {
    OfWorker(usize),
    OfCombiner(usize),
}

/// What an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A worker.
    Worker(usize),
    /// A combiner.
    Combiner(usize),
    /// The stranger.
    Stranger,
}

impl Place {
    /// What the address of a binding belongs to.
    pub fn of(binding: &Binding) -> Self {
        let [.., kind, high, low] = binding.ip.0;
        let number = usize::from(u16::from_be_bytes([high, low]));
        match (kind, number) {
            _ if number == STRANGER + 1 => Self::Stranger,
            (1, _) => Self::Combiner(number - 1),
            _ => Self::Worker(number - 1),
        }
    }
}

/// A time that prints readably.
pub struct Clock(pub Time);

impl std::fmt::Display for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>13.6} s", self.0 as f64 / 1e9)
    }
}

/// A datagram for people.
fn describe(packet: &[u8]) -> String {
    let Ok((header, payload)) = Header::ref_from_prefix(packet) else {
        return format!("{} bytes", packet.len());
    };
    let kind =
        Kind::from_wire(header.kind).map_or_else(|| "?".to_owned(), |kind| format!("{kind:?}"));
    format!(
        "{kind} job {} epoch {:08x} rank {} slot {} round {} op {:02x} \
         flags {:03b} lanes {} \
         fingerprint {:08x}, {} bytes",
        header.job,
        header.epoch,
        header.rank,
        header.slot,
        header.round,
        header.op,
        header.flags,
        header.lanes,
        header.fingerprint,
        payload.len()
    )
}

/// The aggregator's data address.
pub const AGGREGATOR: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), DATA_PORT);
