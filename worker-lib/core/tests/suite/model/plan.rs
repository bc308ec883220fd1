//! The plan of a world: its bounds and faults, and the contributions of each rank.

use std::fmt;

use switchml_protocol::EVERYONE;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::wire::audience::Audience;
use switchml_protocol::wire::header::{Kind, Op};
use switchml_worker_core::engine::{
    Chunk, Config, Engine, Identity, Keys, Part, RttLimits, WindowLimits,
};

use super::packets;
use super::rules::Rule;
use super::tally::{self, Tally};

/// Number of the job.
pub const JOB: u16 = 0;
/// Most slots that a world has.
pub const MOST_SLOTS: usize = 4;
const LANES: u16 = switchml_protocol::LANES_PER_BLOCK as u16;

/// Bounds and faults of a world.
#[derive(Clone, Debug)]
pub struct Setup {
    pub ranks: u16,
    pub slots: u16,
    /// Rounds of every slot in the first session.
    pub rounds: usize,
    /// The round that the first session begins with, an even number; if it is not 0, every slot
    /// holds the two rounds before it.
    pub origin: u32,
    /// Rounds in the second session, which has the same job and slots and may begin at any moment;
    /// 0 if there is none.
    pub next_rounds: usize,
    /// The first session may be aborted at any moment.
    pub abort: bool,
    /// The aggregator may lose its memory at any moment, once.
    pub restart: bool,
    /// Packets may arrive with a bit flipped.
    pub corruption: bool,
    /// Chunk of the first session whose call is another one on the last rank.
    pub mismatch: Option<usize>,
    /// PENDING may arrive.
    pub pending: bool,
    /// Expiries of a worker's timer in a row.
    pub alarms: u8,
    /// Workers that are done leave; the other workers hear of it at any time.
    pub leave: bool,
    /// Ranks whose lanes are all zero, and that send EMPTY: a bitmap for each chunk in turn,
    /// repeated.
    pub zeros: Vec<u8>,
    /// Ranks below each combiner, a bitmap each. A packet passes all combiners that its ranks are
    /// below, in this order.
    pub combiners: Vec<u8>,
    /// Rules that are taken out.
    pub without: Vec<Rule>,
    /// The published algorithm in place of section 8.
    pub published: bool,
}

/// A contribution of a rank to a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contribution {
    pub chunk: usize,
    /// Whether its lanes are left out.
    pub empty: bool,
}

impl Contribution {
    pub fn in_full(chunk: usize) -> Self {
        Self { chunk, empty: false }
    }
}

impl fmt::Display for Contribution {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}{}", self.chunk, if self.empty { " EMPTY" } else { "" })
    }
}

/// Bounds, faults and contributions.
pub struct Plan {
    pub setup: Setup,
    /// Contributions by session, rank and chunk: with all lanes, and as they are sent first.
    contributions: Vec<[Vec<u8>; 2]>,
}

impl Plan {
    pub fn new(setup: Setup) -> Self {
        assert!(usize::from(setup.slots) <= MOST_SLOTS && setup.ranks <= 8);
        assert!(
            setup.origin == 0 || setup.next_rounds == 0 && !setup.restart,
            "sessions begin with round 0"
        );
        let mut plan = Self { setup, contributions: Vec::new() };
        for session in 0..2 {
            for rank in 0..plan.setup.ranks {
                let contributions = plan.contributions_of(session, rank);
                plan.contributions.extend(contributions);
            }
        }
        plan
    }

    /// The contributions of a rank in a session, from an engine that gets each result at once.
    fn contributions_of(&self, session: usize, rank: u16) -> Vec<[Vec<u8>; 2]> {
        let mut engine = self.engine(session, rank);
        let send = |chunk| {
            let mut header = engine.send(0, self.chunk(session, rank, chunk)).header;
            header.aux.set(0);
            let tally = self.contribution(session, rank, chunk);
            let [in_full, first] =
                [packets::in_full(header), header].map(|it| packets::contribution(it, &tally));
            (header.kind, header.rank) = (Kind::Result as u8, EVERYONE.into());
            let (_, payload) = packets::split(&in_full);
            let result = packets::sealed(header, &payload, self.setup.ranks.into());
            engine.receive(0, &result, false).expect("no refusal").expect("its result");
            [in_full, first]
        };
        (0..self.chunks(session)).map(send).collect()
    }

    /// Whether a rule is taken out.
    pub fn lacks(&self, rule: Rule) -> bool {
        self.setup.without.contains(&rule)
    }

    /// Chunks of a session.
    pub fn chunks(&self, session: usize) -> usize {
        usize::from(self.setup.slots) * [self.setup.rounds, self.setup.next_rounds][session]
    }

    pub fn slot_of(&self, chunk: usize) -> usize {
        chunk % usize::from(self.setup.slots)
    }

    pub fn round_of(&self, chunk: usize) -> u32 {
        self.setup.origin.wrapping_add((chunk / usize::from(self.setup.slots)) as u32)
    }

    /// The chunk of a round in a slot.
    pub fn chunk_in(&self, round: u32, slot: u16) -> usize {
        round.wrapping_sub(self.setup.origin) as usize * usize::from(self.setup.slots)
            + usize::from(slot)
    }

    pub fn epoch(&self, session: usize) -> u32 {
        0xE0C0_0001 + if self.lacks(Rule::NewEpoch) { 0 } else { session as u32 }
    }

    /// A rank's engine before its first chunk, with timers of this world's own and a window as
    /// large as the pool.
    pub fn engine(&self, session: usize, rank: u16) -> Engine {
        let config = Config {
            identity: Identity {
                job: JOB,
                epoch: self.epoch(session),
                rank,
                ranks: self.setup.ranks,
                keys: Keys::NONE,
            },
            slots: self.setup.slots,
            capabilities: Capabilities::all(),
            window: WindowLimits {
                initial: self.setup.slots.into(),
                maximum: self.setup.slots.into(),
                waiting: u32::MAX,
            },
            rtt: RttLimits { initial: 1000, packet: 0, floor: 500, ceiling: 4000 },
            reordering: 200,
            deadline: 20_000,
            timeout: 20_000,
        };
        Engine::starting_at(config, u64::from(self.setup.origin) * u64::from(self.setup.slots))
    }

    pub fn chunk(&self, session: usize, rank: u16, index: usize) -> Chunk {
        let differs =
            session == 0 && rank + 1 == self.setup.ranks && self.setup.mismatch == Some(index);
        let fingerprint = 0xF00D_0000 + u32::from(differs);
        Chunk {
            collective: session as u64,
            part: Part::Data(index),
            op: Op::Sum,
            audience: Audience::All,
            lanes: LANES,
            fingerprint,
            empty: self.is_zero(rank, index),
            may_wait: false,
        }
    }

    /// Whether a rank's lanes of a chunk are all zero.
    pub fn is_zero(&self, rank: u16, chunk: usize) -> bool {
        let ranks = self.setup.zeros.get(chunk % self.setup.zeros.len().max(1));
        ranks.is_some_and(|ranks| ranks >> rank & 1 == 1)
    }

    /// The values that a rank contributes to a chunk.
    pub fn contribution(&self, session: usize, rank: u16, chunk: usize) -> Tally {
        if self.is_zero(rank, chunk) {
            return Tally::default();
        }
        tally::of(self.number(session, rank, chunk))
    }

    /// The right sum of a chunk; none where the ranks' calls differ.
    pub fn sum(&self, session: usize, chunk: usize) -> Option<Tally> {
        let differ = session == 0 && self.setup.mismatch == Some(chunk);
        let contribute = (0..self.setup.ranks).filter(|rank| !self.is_zero(*rank, chunk));
        (!differ).then(|| tally::sum(contribute.map(|rank| self.number(session, rank, chunk))))
    }

    /// The right RESULT to all of a chunk.
    pub fn result(&self, session: usize, chunk: usize) -> Vec<u8> {
        let sum = self.sum(session, chunk).expect("one call");
        let (mut header, mut payload) =
            packets::split(self.datagram(session, 0, Contribution::in_full(chunk)));
        (header.kind, header.rank) = (Kind::Result as u8, EVERYONE.into());
        payload.iter_mut().zip(sum).for_each(|(lane, value)| lane.set(value));
        packets::sealed(header, &payload, self.setup.ranks.into())
    }

    /// A rank's contribution, its aux zero.
    pub fn datagram(&self, session: usize, rank: u16, contribution: Contribution) -> &[u8] {
        let Contribution { chunk, empty } = contribution;
        &self.contributions[self.number(session, rank, chunk)][usize::from(empty)]
    }

    fn number(&self, session: usize, rank: u16, chunk: usize) -> usize {
        let before = session * usize::from(self.setup.ranks) * self.chunks(0);
        before + usize::from(rank) * self.chunks(session) + chunk
    }

    /// Asserts that a contribution is always the same for a chunk, except for its aux.
    pub fn assert_same(
        &self,
        session: usize,
        rank: u16,
        contribution: Contribution,
        datagram: &[u8],
    ) {
        let same = packets::rewritten(datagram, self.setup.ranks, |header| header.aux.set(0));
        let known = self.datagram(session, rank, contribution);
        assert!(same == known, "another packet for the same chunk");
    }
}

impl Setup {
    /// A world without rounds, and without faults except those of its network.
    pub fn new(ranks: u16, slots: u16) -> Self {
        Self {
            ranks,
            slots,
            rounds: 0,
            origin: 0,
            next_rounds: 0,
            abort: false,
            restart: false,
            corruption: false,
            mismatch: None,
            pending: false,
            alarms: 0,
            leave: false,
            zeros: Vec::new(),
            combiners: Vec::new(),
            without: Vec::new(),
            published: false,
        }
    }
}

impl fmt::Display for Setup {
    /// Cells of a table: workers, slots, rounds, and what else there is.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { ranks, slots, rounds, .. } = self;
        write!(f, "{ranks} | {slots} | {rounds}")?;
        if self.next_rounds > 0 {
            write!(f, " + {}", self.next_rounds)?;
        }
        let mut more = Vec::new();
        more.extend((self.origin > 0).then(|| format!("from round {} on", self.origin)));
        more.extend(self.pending.then(|| "PENDING".to_owned()));
        more.extend((self.alarms > 0).then(|| format!("timers ({} in a row)", self.alarms)));
        more.extend(self.leave.then(|| "workers leave".to_owned()));
        more.extend((!self.zeros.is_empty()).then(|| {
            let ranks: Vec<_> = self.zeros.iter().map(|ranks| format!("{ranks:b}")).collect();
            format!("EMPTY of ranks {}", ranks.join(" "))
        }));
        more.extend((!self.combiners.is_empty()).then(|| {
            let below: Vec<_> = self.combiners.iter().map(|ranks| format!("{ranks:b}")).collect();
            format!("combiners of ranks {}", below.join(" "))
        }));
        more.extend(self.corruption.then(|| "corruption".to_owned()));
        more.extend(self.mismatch.map(|chunk| format!("another call for chunk {chunk}")));
        more.extend(self.restart.then(|| "restart".to_owned()));
        more.extend(self.abort.then(|| "abort".to_owned()));
        more.extend((self.next_rounds > 0).then(|| "epoch change".to_owned()));
        write!(f, " | {}", more.join(", "))
    }
}
