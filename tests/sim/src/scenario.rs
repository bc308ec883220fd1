//! A scenario: jobs, links, and faults.

use switchml_protocol::capabilities::Capabilities;
use switchml_userspace_core::data_plane::Fanout;
use switchml_userspace_core::jobs::Threads;
use switchml_worker_core::engine::Limits;

use crate::program::Step;
use crate::rng::Ppm;

/// Virtual time, or a span of it, in ns.
pub type Time = u64;

/// A microsecond.
pub const US: Time = 1_000;
/// A millisecond.
pub const MS: Time = 1_000_000;
/// A second.
pub const SECOND: Time = 1_000_000_000;
/// How many slots an aggregator may have.
pub const SLOTS: [u32; 4] = [16, 32, 128, 512];

/// Everything that is planned for a run. What happens to each packet is drawn during the run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed of the scenario.
    pub seed: u64,
    /// When all faults end: from then on all jobs must finish. `None` when faults continue, and
    /// jobs may fail.
    pub heals_at: Option<Time>,
    /// Slots of each job.
    pub slots: u32,
    /// Most lanes that the aggregator takes in a packet.
    pub max_lanes: u16,
    /// The data plane's capabilities. Without `CHECKED_MAXIMA` it takes maxima unverified, too.
    pub capabilities: Capabilities,
    /// Whether packets have tags.
    pub tags: bool,
    /// How RESULTs to all reach the ranks.
    pub fanout: Fanout,
    /// The aggregator's port of each worker.
    pub ports: Vec<u32>,
    /// Whether each worker gets no multicast, while faults last.
    pub without_multicast: Vec<bool>,
    /// Whether the data plane outlives the daemon's process.
    pub durable: bool,
    /// [`Builder::deadline`](switchml_worker::Builder::deadline) and
    /// [`Builder::timeout`](switchml_worker::Builder::timeout) of every rank.
    pub limits: Limits,
    /// [`Builder::join_timeout`](switchml_worker::Builder::join_timeout) of every rank.
    pub join_timeout: Time,
    /// Most starts of a rank, while faults last.
    pub attempts: u32,
    /// Longest time until a process handles what has arrived.
    pub host_delay: Time,
    /// The first worker on each worker's host; those of a host follow each other.
    pub hosts: Vec<usize>,
    /// Whether ranks serve each other, so that those of a job that share memory need no aggregator
    /// (rule 38.6). They still have their sessions there.
    pub in_memory: bool,
    /// The data threads that each worker offers.
    pub threads: Vec<Threads>,
    /// The jobs.
    pub jobs: Vec<JobPlan>,
    /// The links of each worker, to the aggregator and back.
    pub links: Vec<[LinkPlan; 2]>,
    /// The combiners between workers and the root.
    pub tree: Tree,
    /// The aggregators of all jobs beside the first, whose properties are the ones above.
    pub others: Vec<AggregatorPlan>,
    /// The weight of each aggregator's part (rule 36.1); 0 where ranks compute it.
    pub weights: Vec<u32>,
    /// Time that a control message takes: the least, and the most that is added.
    pub control_delay: (Time, Time),
    /// How often a control message takes up to 8 s, because packets of its connection are lost;
    /// messages behind it wait, too.
    pub control_loss: Ppm,
    /// How often the data plane fails to open a job.
    pub open_fails: Ppm,
    /// Incidents and their times, in order.
    pub incidents: Vec<(Time, Incident)>,
    /// The period of a stranger's packets.
    pub stranger: Option<Time>,
    /// Whether nothing goes wrong but with one aggregator of several: then all ranks finish.
    pub is_calm: bool,
}

/// A job: its ranks and what they call.
#[derive(Clone, Debug)]
pub struct JobPlan {
    /// Number of ranks.
    pub ranks: u16,
    /// The workers, by rank.
    pub workers: Vec<usize>,
    /// The job that some of them were in before; `None` if it begins with the run.
    pub change: Option<Change>,
    /// The calls of every rank.
    pub program: Vec<Step>,
    /// Longest pause of a rank before a call, while faults last.
    pub pause: Time,
    /// No rank calls before this time.
    pub begin: Time,
    /// Pause of all ranks after each call.
    pub rest: Time,
    /// Longest pause of a rank before it leaves.
    pub linger: Time,
    /// The round that the job's slots are in when it starts.
    pub origin: u32,
    /// Packets in a batch of new chunks.
    pub batch: u32,
    /// Packets that a rank believes its socket can hold.
    pub receive_room: u32,
    /// Packets that the socket really holds while the rank is frozen.
    pub socket_room: u32,
    /// A rank that makes another call than the others, the first time it runs: its place in the
    /// program, and the call.
    pub mistake: Option<(u16, usize, Step)>,
    /// A rank that leaves after this many calls, the first time it runs.
    pub quitter: Option<(u16, usize)>,
}

/// A reconfiguration: how ranks of one job, and others, go on in another one.
#[derive(Clone, Debug)]
pub struct Change {
    /// The job that it ends.
    pub from: usize,
    /// It begins once a rank has made so many calls there, and so much later.
    pub calls: usize,
    /// See above.
    pub delay: Time,
    /// Longest time until a rank that goes on knows.
    pub notice: Time,
    /// Workers that are lost when it begins. Others that do not go on are only left out.
    pub losses: Vec<(usize, Loss)>,
}

/// How a worker is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its process dies.
    Death,
    /// Its host dies, without a word.
    HostDeath,
    /// A control connection breaks: it comes back, and finds its job over.
    Disconnect,
}

/// A link in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkPlan {
    /// Largest packet that passes, in bytes of UDP payload.
    pub largest_packet: usize,
    /// Least time that a packet takes.
    pub delay: Time,
    /// Most time beyond the delay; packets overtake each other.
    pub jitter: Time,
    /// Packets lost.
    pub loss: Ppm,
    /// Packets delivered twice.
    pub duplication: Ppm,
    /// Packets with flipped bits, in the header or the payload.
    pub corruption: Ppm,
    /// Packets that are cut short, or get bytes appended.
    pub cutting: Ppm,
    /// Packets that come much later, after up to [`LinkPlan::latest`].
    pub lateness: Ppm,
    /// The largest delay of late packets.
    pub latest: Time,
    /// ns that a byte takes to be sent, in thousandths; 0 for a link without limit.
    pub byte_time: u64,
    /// Bytes that wait to be sent before more are dropped.
    pub queue: u64,
    /// Whether packets that find half the queue full are marked (ECN).
    pub marks: bool,
}

/// An aggregator.
#[derive(Clone, Debug)]
pub struct AggregatorPlan {
    /// Slots of each job.
    pub slots: u32,
    /// Most lanes that it takes in a packet.
    pub max_lanes: u16,
    /// The data plane's capabilities.
    pub capabilities: Capabilities,
    /// Whether the data plane outlives the daemon's process.
    pub durable: bool,
    /// The links of each worker, to it and back.
    pub links: Vec<[LinkPlan; 2]>,
}

impl Scenario {
    /// The ranks of a job that are not in another one.
    pub fn left_out(&self, from: usize, to: usize) -> Vec<u16> {
        let stays = |worker: &usize| self.jobs[to].workers.contains(worker);
        let ranks = self.jobs[from].workers.iter().zip(0..);
        ranks.filter(|(worker, _)| !stays(worker)).map(|(_, rank)| rank).collect()
    }

    /// The number of aggregators of each job.
    pub fn aggregators(&self) -> usize {
        1 + self.others.len()
    }

    /// The plan of an aggregator.
    pub fn aggregator(&self, number: usize) -> AggregatorPlan {
        match number.checked_sub(1) {
            Some(other) => self.others[other].clone(),
            None => AggregatorPlan {
                slots: self.slots,
                max_lanes: self.max_lanes,
                capabilities: self.capabilities,
                durable: self.durable,
                links: self.links.clone(),
            },
        }
    }
}

/// The combiners of a scenario, if it has any.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Combiners, each after its parent.
    pub combiners: Vec<CombinerPlan>,
    /// The combiner of each worker; workers beyond the end have none.
    pub above: Vec<Option<usize>>,
}

/// A combiner.
#[derive(Clone, Copy, Debug)]
pub struct CombinerPlan {
    /// The combiner above it; `None` if its parent is the root.
    pub parent: Option<usize>,
    /// The uplink to the parent and back.
    pub uplink: [LinkPlan; 2],
    /// The number of cells, for all jobs.
    pub cells: u32,
    /// How often a contribution passes that might have been combined (rule 27.12).
    pub let_pass: Ppm,
    /// Jobs of this number and above find no cell.
    pub jobs: u16,
}

impl Tree {
    /// A worker's combiners, from its own on.
    pub fn way(&self, worker: usize) -> impl Iterator<Item = usize> {
        let own = self.above.get(worker).copied().flatten();
        std::iter::successors(own, |combiner| self.combiners[*combiner].parent)
    }
}

/// A single incident.
#[derive(Clone, Copy, Debug)]
pub enum Incident {
    /// A worker's process dies; if `silent`, its host does too, so that no connection is closed. It
    /// may be restarted after a while.
    Crash {
        /// The worker.
        worker: usize,
        /// Whether the daemon must find out by itself.
        silent: bool,
        /// When the process is restarted.
        restart: Option<Time>,
    },
    /// A worker's process dies in the middle of a turn.
    DieInTurn {
        /// The worker.
        worker: usize,
        /// The steps that it takes before: changes of shared memory, and packets.
        steps: u32,
        /// When the process is restarted.
        restart: Option<Time>,
    },
    /// A worker's process is frozen.
    Stall {
        /// The worker.
        worker: usize,
        /// How long it is frozen.
        time: Time,
    },
    /// A worker's link loses everything.
    Outage {
        /// The worker.
        worker: usize,
        /// Direction: 0 to the aggregator, 1 to the worker.
        direction: usize,
        /// How long the link is down.
        time: Time,
    },
    /// A worker's control connection breaks.
    Disconnect {
        /// The worker.
        worker: usize,
    },
    /// A daemon is killed and restarted. Its data plane, which is durable, continues.
    Restart {
        /// The aggregator.
        aggregator: usize,
        /// Time until it is back.
        after: Time,
    },
    /// A combiner's host restarts.
    CombinerCrash {
        /// The combiner.
        combiner: usize,
        /// Whether its daemon stops in good order, so that the ranks below are told.
        orderly: bool,
        /// Time until it is back.
        after: Time,
    },
    /// A combiner's connections with its parent break.
    CutOff {
        /// The combiner.
        combiner: usize,
    },
    /// A combiner forgets what its cells hold.
    Forget {
        /// The combiner.
        combiner: usize,
    },
    /// An aggregator stops, and restarts without any memory.
    Replace {
        /// The aggregator.
        aggregator: usize,
        /// Whether the stop is orderly, so that ranks are told.
        orderly: bool,
        /// Time until it is back.
        after: Time,
    },
    /// An aggregator fails in the middle of its work.
    Death {
        /// The aggregator.
        aggregator: usize,
        /// The contributions that it takes before.
        contributions: u32,
        /// How it fails.
        manner: Manner,
    },
    /// A stranger learns the aggregators' numbers, and takes a rank's seat wherever its job might
    /// move to, as far as that follows from these.
    Squat {
        /// The rank.
        rank: u16,
    },
    /// Nothing reaches an aggregator, and nothing comes from it.
    Unreachable {
        /// The aggregator.
        aggregator: usize,
        /// How long that lasts.
        time: Time,
    },
    /// An aggregator answers late.
    Slow {
        /// The aggregator.
        aggregator: usize,
        /// How long that lasts.
        time: Time,
        /// How late.
        by: Time,
    },
}

/// How an aggregator fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Its process stands still for so long. A durable data plane goes on.
    Frozen(Time),
    /// Nothing reaches its control plane, or comes from there, for so long. Its data plane goes on.
    Unheard(Time),
    /// It and this worker do not reach each other for so long.
    Apart(usize, Time),
    /// Its daemon dies, and is not back before all faults end. Its durable data plane goes on.
    Orphaned,
    /// Its ranks are told, and it is not back before all faults end.
    Orderly,
    /// Its process dies, and its connections break.
    Killed,
    /// Its host dies without a word.
    Silent,
}
