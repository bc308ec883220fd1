//! Control connections: between workers and what is above them, and between combiners and their
//! parents.

use std::net::Ipv4Addr;

use switchml_control::{JoinRequest, LeaveRequest, ResumeRequest, join_event};
use switchml_userspace_core::control_plane::PING_TIMEOUT;
use switchml_userspace_core::jobs::MemberId;
use switchml_worker_core::session::{Answer, CONNECT};

use super::addresses::{Above, Place, address_of, address_of_combiner};
use super::{Event, Net};
use crate::scenario::{MS, SECOND, Time};
use crate::tally::Fault;

/// A control connection.
pub type Connection = usize;

/// How often a rank probes its connection, and how long it waits for an answer.
const PROBE: Time = 5 * SECOND;
const PROBE_ANSWER: Time = 10 * SECOND;

/// A message from a worker, or a combiner in its place, to the daemon above it.
#[derive(Clone, Debug)]
pub enum Message {
    /// The worker joins.
    Join(JoinRequest),
    /// The worker's path is open for this many lanes; whether the worker needs copies of results,
    /// and the rank whose copies it reads.
    Ready(MemberId, u16, bool, Option<u16>),
    /// The worker's calls in flight, by number, and the ranks that the data plane named.
    ReportCalls(MemberId, Vec<switchml_control::Call>, Vec<u32>),
    /// The worker gets no results by multicast.
    ReportNoMulticast(MemberId),
    /// The worker leaves, or a combiner has lost it.
    Leave(LeaveRequest),
    /// The worker comes back over another connection.
    Resume(ResumeRequest),
    /// The worker asks which ranks of its job are not ready.
    Unready(MemberId),
    /// The lower end of the connection is closed.
    Gone,
    /// The lower end of the connection has not answered for this long, and is taken for dead.
    Silent(Time),
}

/// What comes down a connection.
#[derive(Clone, Debug)]
pub enum News {
    /// An event of the stream.
    Event(join_event::Event),
    /// The answer to the oldest unanswered request.
    Answer(Answer),
    /// The connection is open.
    Connected,
    /// The connection cannot be made.
    Unreachable,
    /// The stream has ended in good order.
    Ended,
    /// The connection is gone.
    Lost,
}

/// A control connection's state.
pub(super) struct Wire {
    lower: Place,
    upper: Above,
    /// Whether the process at the lower and at the upper end is gone.
    gone: [bool; 2],
    /// When the last message in each direction arrives: TCP keeps them in order.
    last: [Time; 2],
}

impl Net {
    /// Opens a control connection from a worker or combiner to what is above it on the way to an
    /// aggregator. The answer comes as news.
    pub fn connect(&mut self, lower: Place, aggregator: usize) -> Connection {
        let upper = match lower {
            Place::Worker(worker) => self.above(worker, aggregator),
            Place::Combiner(combiner) => Above::in_tree(self.tree.combiners[combiner].parent),
            Place::Stranger => Above::Aggregator(aggregator),
        };
        let connection = self.wires.len();
        self.wires.push(Wire { lower, upper, gone: [false; 2], last: [self.now; 2] });
        let is_cut_off = self.cut_until((lower, upper)) > self.now;
        if self.down.contains(&upper) && !is_cut_off && self.rng.one_in(2) {
            // The host is there, and refuses.
            self.tell(connection, News::Unreachable);
        } else {
            self.dial(connection, self.now + CONNECT.as_nanos() as Time);
        }
        connection
    }

    /// Makes a connection, until this time at the latest: as TCP does, it tries again after a
    /// second, and then after twice as long.
    pub fn dial(&mut self, connection: Connection, until: Time) {
        let Wire { lower, upper, gone, .. } = self.wires[connection];
        if gone != [false; 2] {
            return;
        }
        let left = until.saturating_sub(self.now);
        let is_cut_off = self.cut_until((lower, upper)) > self.now;
        if !self.down.contains(&upper) && !is_cut_off {
            self.tell(connection, News::Connected);
        } else if left == 0 {
            self.tell(connection, News::Unreachable);
        } else {
            let spent = CONNECT.as_nanos() as Time - left;
            let at = self.now + (spent + SECOND).min(left);
            self.schedule(at, Event::Dial(connection, until));
        }
    }

    /// A daemon starts to listen.
    pub fn listen(&mut self, daemon: Above) {
        self.down.remove(&daemon);
    }

    /// A daemon is gone, and with it its ends of all connections.
    pub fn go_down(&mut self, daemon: Above) {
        self.down.insert(daemon);
        for connection in 0..self.wires.len() {
            let Wire { lower, upper, gone, .. } = &mut self.wires[connection];
            let is_lower = match daemon {
                Above::Combiner(combiner) => *lower == Place::Combiner(combiner),
                Above::Aggregator(_) => false,
            };
            if *upper == daemon && !std::mem::replace(&mut gone[1], true) {
                self.disturb(connection);
                self.tell(connection, News::Lost);
            } else if is_lower && !std::mem::replace(&mut gone[0], true) {
                self.ask(connection, Message::Gone);
            }
        }
    }

    /// A daemon's host is gone without a word. Who is connected finds out by a probe.
    pub fn vanish(&mut self, daemon: Above) {
        self.down.insert(daemon);
        for connection in 0..self.wires.len() {
            let Wire { upper, gone, .. } = &mut self.wires[connection];
            if *upper == daemon && !std::mem::replace(&mut gone[1], true) {
                let after = PROBE_ANSWER + self.rng.below(PROBE);
                self.disturb(connection);
                self.schedule(self.now + after, Event::News(connection, Box::new(News::Lost)));
            }
        }
    }

    /// An aggregator cannot be reached until then, by one or by all: messages wait. Ends that hear
    /// nothing for too long take each other for dead.
    pub fn cut_off(&mut self, aggregator: usize, only: Option<Place>, until: Time) {
        let time = until.saturating_sub(self.now);
        let ends = only.map(|lower| (lower, Above::Aggregator(aggregator)));
        let cut = match ends {
            None => &mut self.cut_off[aggregator],
            Some(ends) => self.apart.entry(ends).or_default(),
        };
        *cut = until.max(*cut);
        for connection in 0..self.wires.len() {
            let Wire { lower, upper, gone, .. } = self.wires[connection];
            let patience = PING_TIMEOUT.as_nanos() as Time + self.rng.below(PROBE);
            let is_other = only.is_some_and(|only| only != lower);
            let is_other = is_other || upper != Above::Aggregator(aggregator);
            if is_other || gone != [false; 2] || time <= patience {
                continue;
            }
            let at = self.now + patience;
            self.disturb(connection);
            self.schedule(at, Event::Asked(connection, Box::new(Message::Silent(patience))));
            let noticed = self.now + time.min(PROBE_ANSWER + self.rng.below(PROBE));
            self.schedule(noticed, Event::News(connection, Box::new(News::Lost)));
        }
    }

    /// Until when these ends cannot reach each other.
    fn cut_until(&self, (lower, upper): (Place, Above)) -> Time {
        let by_all = match upper {
            Above::Aggregator(number) => self.cut_off[number],
            Above::Combiner(_) => 0,
        };
        by_all.max(self.apart.get(&(lower, upper)).copied().unwrap_or_default())
    }

    /// An aggregator's process stands still until then. Who is connected finds out by a probe.
    pub fn freeze(&mut self, aggregator: usize, until: Time) {
        self.frozen[aggregator] = self.frozen[aggregator].max(until);
        for connection in 0..self.wires.len() {
            let Wire { upper, gone, .. } = self.wires[connection];
            let noticed = self.now + PROBE_ANSWER + self.rng.below(PROBE);
            if upper == Above::Aggregator(aggregator) && gone == [false; 2] {
                self.disturb(connection);
                if noticed < until {
                    self.schedule(noticed, Event::News(connection, Box::new(News::Lost)));
                }
            }
        }
    }

    /// Until when an aggregator's process stands still, if it does.
    pub fn frozen_until(&self, aggregator: usize) -> Option<Time> {
        Some(self.frozen[aggregator]).filter(|until| *until > self.now)
    }

    /// Breaks a connection: both ends hear of it.
    pub fn break_off(&mut self, connection: Connection) {
        self.disturb(connection);
        self.ask(connection, Message::Gone);
        self.tell(connection, News::Lost);
    }

    /// Something goes wrong with a connection.
    fn disturb(&mut self, connection: Connection) {
        let Wire { lower, upper, .. } = self.wires[connection];
        self.disturbed.insert((lower, upper));
    }

    /// Whether anything ever went wrong with a worker's connections with an aggregator: messages
    /// may be late, and combiners drop connections in turn.
    pub fn was_disturbed(&self, worker: usize, aggregator: usize) -> bool {
        let ends = (Place::Worker(worker), self.above(worker, aggregator));
        let is_direct = matches!(ends.1, Above::Aggregator(_));
        !is_direct || self.tally.faults(Fault::SlowControl) > 0 || self.disturbed.contains(&ends)
    }

    /// The lower end of a connection, if its process is still there.
    pub fn lower(&self, connection: Connection) -> Option<Place> {
        let Wire { lower, gone: [is_gone, _], .. } = self.wires[connection];
        (!is_gone).then_some(lower)
    }

    /// The upper end of a connection, if the process is still there.
    pub fn upper(&self, connection: Connection) -> Option<Above> {
        let Wire { upper, gone: [_, is_gone], .. } = self.wires[connection];
        (!is_gone).then_some(upper)
    }

    /// The address of a connection's lower end.
    pub fn peer(&self, connection: Connection) -> Ipv4Addr {
        match self.wires[connection].lower {
            Place::Worker(worker) => address_of(self.hosts[worker]),
            Place::Combiner(combiner) => address_of_combiner(combiner),
            Place::Stranger => Ipv4Addr::UNSPECIFIED,
        }
    }

    /// Sends a message up a connection.
    pub fn ask(&mut self, connection: Connection, message: Message) {
        let at = self.control_arrival(connection, 0, 0);
        self.schedule(at, Event::Asked(connection, Box::new(message)));
    }

    /// Makes the upper end find out, after a while, that the lower end is dead.
    pub fn go_silent(&mut self, connection: Connection, after: Time) {
        self.disturb(connection);
        let at = self.control_arrival(connection, 0, after);
        self.schedule(at, Event::Asked(connection, Box::new(Message::Silent(after))));
    }

    /// Sends news down a connection.
    pub fn tell(&mut self, connection: Connection, news: News) {
        let at = self.control_arrival(connection, 1, 0);
        self.schedule(at, Event::News(connection, Box::new(news)));
    }

    fn control_arrival(&mut self, connection: Connection, direction: usize, more: Time) -> Time {
        let (least, most) = self.control_delay;
        let mut at = self.now + least + self.rng.below(most + 1) + more;
        if self.rng.chance(self.control_loss) {
            self.tally.fault(Fault::SlowControl);
            at += self.rng.magnitude(200 * MS, 8 * SECOND);
        }
        let Wire { lower, upper, .. } = self.wires[connection];
        let cut_until = self.cut_until((lower, upper));
        if cut_until > self.now {
            at = at.max(cut_until + self.rng.below(SECOND));
        }
        let last = &mut self.wires[connection].last[direction];
        *last = (*last).max(at);
        *last
    }
}
