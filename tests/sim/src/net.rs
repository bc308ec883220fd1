//! Virtual time, and everything in flight.

mod addresses;
mod connections;

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::rc::Rc;

use switchml_protocol::DATA_PORT;
use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::wire::header::{HEADER_LEN, Header, Kind, flags};
use switchml_userspace_core::control_plane::Timer;
use switchml_userspace_core::proxy;
use tracing::trace;
use zerocopy::FromBytes;

use crate::link::{Delivery, Link};
use crate::rng::{Ppm, Rng};
use crate::scenario::{Scenario, Time, Tree};
use crate::tally::{Fault, Tally};
pub use addresses::{
    Above, Place, STRANGER, address_of, address_of_combiner, binding_of, port_of, shard_at,
};
use addresses::{binding_of_combiner, binding_of_parent};
use connections::Wire;
pub use connections::{Connection, Message, News};

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
    /// A datagram reaches an aggregator.
    AtAggregator {
        /// The aggregator.
        aggregator: usize,
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
    /// A datagram of an aggregator's reaches a worker's host.
    AtWorker {
        /// The worker.
        worker: usize,
        /// The aggregator.
        aggregator: usize,
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
    /// Another worker of its host has posted results that it may wait for.
    Bell(usize),
    /// A message reaches the daemon at the upper end of a connection.
    Asked(Connection, Box<Message>),
    /// A timer of an aggregator's control plane expires, in the daemon of this generation.
    Timer(usize, u32, Timer),
    /// A timer of a combiner's control plane expires, in the daemon of this generation.
    CombinerTimer(usize, u32, proxy::Timer),
    /// A connection is tried again, until this time at the latest.
    Dial(Connection, Time),
    /// A message reaches the lower end of a connection.
    News(Connection, Box<News>),
    /// A worker is started.
    Start(usize),
    /// Ranks go on in this job.
    Change(usize),
    /// A worker is told that it goes on in this job.
    Told(usize, usize),
    /// The incident with this number.
    Incident(usize),
    /// An aggregator is back.
    Back(usize),
    /// A combiner is back.
    CombinerBack(usize),
    /// The stranger sends a packet.
    Stranger,
    /// All faults end.
    Heal,
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
    /// The links of workers to each aggregator.
    links: Vec<Vec<[Link; 2]>>,
    /// The links of combiners.
    uplinks: Vec<[Link; 2]>,
    tree: Tree,
    wires: Vec<Wire>,
    /// The daemons that are down.
    down: BTreeSet<Above>,
    /// Until when each aggregator cannot be reached, by all or by one.
    cut_off: Vec<Time>,
    apart: BTreeMap<(Place, Above), Time>,
    /// Until when each aggregator's process stands still.
    frozen: Vec<Time>,
    /// The ends of connections with which something went wrong.
    disturbed: BTreeSet<(Place, Above)>,
    control_delay: (Time, Time),
    control_loss: Ppm,
    ports: Vec<u32>,
    hosts: Vec<usize>,
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
            links: (0..scenario.aggregators())
                .map(|number| scenario.aggregator(number).links)
                .map(|links| links.iter().map(|plans| plans.map(Link::new)).collect())
                .collect(),
            uplinks: (scenario.tree.combiners.iter())
                .map(|plan| plan.uplink.map(Link::new))
                .collect(),
            tree: scenario.tree.clone(),
            wires: Vec::new(),
            down: BTreeSet::new(),
            cut_off: vec![0; scenario.aggregators()],
            apart: BTreeMap::new(),
            frozen: vec![0; scenario.aggregators()],
            disturbed: BTreeSet::new(),
            control_delay: scenario.control_delay,
            control_loss: scenario.control_loss,
            ports: scenario.ports.clone(),
            hosts: scenario.hosts.clone(),
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

    /// What is above a worker on the way to an aggregator.
    fn above(&self, worker: usize, aggregator: usize) -> Above {
        let combiner = self.tree.above.get(worker).copied().flatten();
        combiner.map_or(Above::Aggregator(aggregator), Above::Combiner)
    }

    /// Largest packet that passes between a worker's interface and its link to an aggregator.
    pub fn largest_packet(&self, worker: usize, aggregator: usize) -> usize {
        self.links[aggregator][worker][0].largest_packet()
    }

    /// The worker's links in a direction.
    pub fn links_of(&mut self, worker: usize, direction: usize) -> impl Iterator<Item = &mut Link> {
        self.links.iter_mut().map(move |links| &mut links[worker][direction])
    }

    /// All links of an aggregator in a direction.
    pub fn links_to(
        &mut self,
        aggregator: usize,
        direction: usize,
    ) -> impl Iterator<Item = &mut Link> {
        self.links[aggregator].iter_mut().map(move |links| &mut links[direction])
    }

    /// The links between a worker and an aggregator.
    pub fn links_between(&mut self, worker: usize, aggregator: usize) -> &mut [Link; 2] {
        &mut self.links[aggregator][worker]
    }

    /// Ends all faults of links and connections.
    pub fn heal(&mut self) {
        let links = self.links.iter_mut().flatten();
        links.chain(&mut self.uplinks).flatten().for_each(Link::heal);
        self.cut_off.fill(0);
        self.frozen.fill(0);
        self.apart.clear();
        self.control_delay.1 = 0;
        self.control_loss = 0;
        self.without_multicast.fill(false);
    }

    /// A worker sends a datagram to an aggregator, or its combiner. Returns whether it arrives,
    /// damaged or not.
    pub fn to_aggregator(
        &mut self,
        aggregator: usize,
        (worker, port): (usize, u16),
        packet: &[u8],
    ) -> bool {
        trace!("{} {worker}:{port} -> {aggregator}: {}", Clock(self.now), describe(packet));
        self.spy(packet);
        let binding = binding_of(self.hosts[worker], port, self.ports[worker]);
        let arrivals = self.over(Cable::OfWorker(worker, aggregator), 0, packet, true);
        let arrives = !arrivals.is_empty();
        let flipped =
            |delivery: &Delivery| !delivery.intact && delivery.packet.len() == packet.len();
        if is_empty_contribution(packet) && arrivals.iter().any(flipped) {
            self.tally.fault(Fault::EmptyFlips);
        }
        let above = self.above(worker, aggregator);
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
        let parent = Above::in_tree(self.tree.combiners[combiner].parent);
        self.arrive_above((parent, DATA_PORT), binding, packet, arrivals, intact);
    }

    /// Delivers the packets that come out of a link towards the root.
    fn arrive_above(
        &mut self,
        (above, port): (Above, u16),
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
                Above::Aggregator(aggregator) => {
                    Event::AtAggregator { aggregator, binding, packet, congested, header_intact }
                }
                Above::Combiner(combiner) => {
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
            Cable::OfWorker(worker, aggregator) => &mut links[aggregator][worker][direction],
            Cable::OfCombiner(combiner) => &mut uplinks[combiner][direction],
        };
        let mut arrivals = Vec::new();
        link.send(*now, (packet, intact), rng, tally, |delivery| arrivals.push(delivery));
        tally.packets += 1;
        arrivals
    }

    /// An aggregator or a combiner sends a datagram to a place below, where a rank or combiner is
    /// or was. `intact`: whether it was made of intact packets.
    pub fn to_place(&mut self, from: Above, to: &Binding, packet: &[u8], intact: bool) {
        let port = to.port.get();
        match Place::of(to) {
            Place::Worker(worker) => self.send_down(from, (worker, port), packet, intact),
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

    fn send_down(
        &mut self,
        from: Above,
        (worker, port): (usize, u16),
        packet: &[u8],
        intact: bool,
    ) {
        trace!("{} {worker}:{port} <- {from:?}: {}", Clock(self.now), describe(packet));
        self.spy(packet);
        // Jobs with combiners have one aggregator.
        let aggregator = match from {
            Above::Aggregator(number) => number,
            Above::Combiner(_) => 0,
        };
        for delivery in self.over(Cable::OfWorker(worker, aggregator), 1, packet, intact) {
            let event = Event::AtWorker {
                worker,
                aggregator,
                port,
                packet: delivery.packet.into(),
                congested: delivery.congested,
                intact: intact && delivery.intact,
            };
            self.schedule(delivery.at, event);
        }
    }

    /// An aggregator sends a datagram to the group that a worker has joined.
    pub fn to_member(&mut self, from: Above, (worker, port): (usize, u16), packet: &[u8]) {
        if self.without_multicast[worker] {
            return self.tally.fault(Fault::NoMulticast);
        }
        self.send_down(from, (worker, port), packet, true);
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

/// The link of a worker to an aggregator, or a combiner's uplink.
enum Cable {
    OfWorker(usize, usize),
    OfCombiner(usize),
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
