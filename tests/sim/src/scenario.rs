//! The scenario of a seed: jobs, links, and faults. Each kind of fault is in about every second
//! scenario, so that some scenarios have few kinds and run deep, and others have many at once.

use std::time::Duration;

use switchml_protocol::auth::TAG_LEN;
use switchml_protocol::capabilities::Capabilities;
use switchml_userspace_core::data_plane::Fanout;
use switchml_worker_core::engine::Limits;

use crate::program::{self, Step};
use crate::rng::{Ppm, Rng};

/// Virtual time, or a span of it, in ns.
pub type Time = u64;

/// A microsecond.
pub const US: Time = 1_000;
/// A millisecond.
pub const MS: Time = 1_000_000;
/// A second.
pub const SECOND: Time = 1_000_000_000;

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
    /// The jobs.
    pub jobs: Vec<JobPlan>,
    /// The links of each worker, to the aggregator and back.
    pub links: Vec<[LinkPlan; 2]>,
    /// The combiners between workers and the root.
    pub tree: Tree,
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
}

/// A job: its ranks and what they call.
#[derive(Clone, Debug)]
pub struct JobPlan {
    /// Number of ranks.
    pub ranks: u16,
    /// The first worker of the job; its ranks are consecutive workers.
    pub first_worker: usize,
    /// The calls of every rank.
    pub program: Vec<Step>,
    /// Longest pause of a rank before a call, while faults last.
    pub pause: Time,
    /// No rank calls before this time.
    pub begin: Time,
    /// Pause of all ranks after each call.
    pub rest: Time,
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
    /// The daemon is killed and restarted. Its data plane, which is durable, continues.
    Restart {
        /// Time until it is back.
        after: Time,
    },
    /// A combiner's host restarts.
    CombinerCrash {
        /// The combiner.
        combiner: usize,
        /// Time until it is back.
        after: Time,
    },
    /// A combiner forgets what its cells hold.
    Forget {
        /// The combiner.
        combiner: usize,
    },
    /// The aggregator stops, and restarts without any memory.
    Replace {
        /// Whether the stop is orderly, so that ranks are told.
        orderly: bool,
        /// Time until it is back.
        after: Time,
    },
}

impl Scenario {
    /// The scenario of a seed.
    pub fn draw(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        let jobs = draw_jobs(rng);
        Self::draw_for(rng, seed, jobs)
    }

    /// Draws the rest of the scenario of a seed with these jobs.
    pub(crate) fn draw_for(rng: &mut Rng, seed: u64, jobs: Vec<JobPlan>) -> Self {
        let workers = jobs.iter().map(|job| usize::from(job.ranks)).sum();
        let span = rng.magnitude(2 * MS, 4 * SECOND);
        let liveness = rng.one_in(2);
        let faults = draw_faults(rng);
        let mut links: Vec<[LinkPlan; 2]> =
            (0..workers).map(|_| draw_links(rng, &faults)).collect();
        let durable = rng.one_in(2);
        let incidents = draw_incidents(rng, workers, span, durable);
        let (capabilities, fanout) = draw_data_plane(rng);
        // A data plane that does not verify packets has no tags either.
        let tags = seed % 4 == 3 && capabilities.contains(Capabilities::CHECKED_MAXIMA);
        if tags {
            // The narrowest links still carry the smallest chunk.
            links.iter_mut().flatten().for_each(|link| link.largest_packet += TAG_LEN);
        }
        Self {
            seed,
            tags,
            durable,
            heals_at: liveness.then_some(2 * span),
            slots: 16 << rng.pick(&[0, 1, 3, 5]),
            max_lanes: 32 * rng.range(1, 24) as u16,
            limits: Limits {
                deadline: Duration::from_nanos(rng.magnitude(100 * MS, 5 * SECOND)),
                timeout: Duration::from_nanos(rng.magnitude(100 * MS, 1800 * SECOND)),
            },
            join_timeout: rng.magnitude(SECOND, 60 * SECOND),
            attempts: rng.range(1, 4) as u32,
            host_delay: rng.magnitude(US, 50 * US),
            jobs,
            links,
            tree: Tree::default(),
            control_delay: (rng.magnitude(50 * US, MS), rng.magnitude(US, 30 * MS)),
            control_loss: if rng.one_in(3) { rng.magnitude(1_000, 100_000) as Ppm } else { 0 },
            open_fails: if rng.one_in(10) { 300_000 } else { 0 },
            incidents,
            stranger: rng.one_in(3).then(|| rng.magnitude(100 * US, 20 * MS)),
            capabilities,
            fanout,
            ports: draw_ports(rng, workers),
            without_multicast: draw_without_multicast(rng, workers),
        }
    }
}

/// The data plane's capabilities: without GROUP_HELLOS, no rank finds out whether multicast reaches
/// it.
fn draw_data_plane(rng: &mut Rng) -> (Capabilities, Fanout) {
    let capabilities = if rng.one_in(4) { Capabilities::empty() } else { Capabilities::all() };
    let fanout = rng.pick(&[Fanout::Auto, Fanout::Auto, Fanout::Multicast, Fanout::Unicast]);
    match fanout {
        Fanout::Auto => (capabilities | Capabilities::GROUP_HELLOS, fanout),
        Fanout::Multicast | Fanout::Unicast => (capabilities - Capabilities::GROUP_HELLOS, fanout),
    }
}

/// A port for each worker, or a few for all.
fn draw_ports(rng: &mut Rng, workers: usize) -> Vec<u32> {
    let ports = if rng.one_in(2) { workers as u64 } else { rng.range(1, 3) };
    (0..workers as u64).map(|worker| (worker % ports) as u32 + 1).collect()
}

fn draw_without_multicast(rng: &mut Rng, workers: usize) -> Vec<bool> {
    let some = rng.one_in(4);
    (0..workers).map(|_| some && rng.one_in(2)).collect()
}

fn draw_jobs(rng: &mut Rng) -> Vec<JobPlan> {
    let mut first_worker = 0;
    let jobs = if rng.one_in(2) { 1 } else { rng.range(1, 4) };
    let mut draw = |_| {
        let job = draw_job(rng, first_worker);
        first_worker += usize::from(job.ranks);
        job
    };
    (0..jobs).map(&mut draw).collect()
}

pub(crate) fn draw_job(rng: &mut Rng, first_worker: usize) -> JobPlan {
    let ranks = match rng.below(40) {
        0 => rng.range(33, 64),
        1..3 => rng.range(9, 32),
        _ => rng.range(1, 6),
    };
    draw_job_of(rng, first_worker, ranks as u16)
}

/// A job of `ranks` ranks.
pub(crate) fn draw_job_of(rng: &mut Rng, first_worker: usize, ranks: u16) -> JobPlan {
    let steps = rng.magnitude(1, 24);
    // The number of packets in all is the same for any number of ranks.
    let largest = (20_000 / u64::from(ranks)).max(300);
    let program = program::draw(rng, ranks, steps, largest);
    let rank = |rng: &mut Rng| rng.below(ranks.into()) as u16;
    let step = |rng: &mut Rng| rng.below(steps) as usize;
    let mistake = (ranks > 1 && rng.one_in(12)).then(|| {
        let place = step(rng);
        (rank(rng), place, program::mistake(rng, &program[place]))
    });
    let receive_room = rng.magnitude(8, 512) as u32;
    let quitter = (ranks > 1 && rng.one_in(15)).then(|| (rank(rng), step(rng)));
    JobPlan {
        ranks,
        first_worker,
        pause: if rng.one_in(2) { 0 } else { rng.magnitude(10 * US, 300 * MS) },
        begin: 0,
        rest: 0,
        origin: if rng.one_in(4) { 0u32.wrapping_sub(rng.range(1, 6) as u32) } else { 0 },
        batch: rng.pick(&[1, 4, 45]),
        receive_room,
        socket_room: if rng.one_in(2) { rng.range(1, 4) as u32 } else { receive_room },
        program,
        mistake,
        quitter,
    }
}

/// The faults of links in a scenario.
pub(crate) struct Faults {
    loss: Ppm,
    duplication: Ppm,
    corruption: Ppm,
    cutting: Ppm,
    lateness: Ppm,
    jitter: Time,
    slow: bool,
    marks: bool,
}

pub(crate) fn draw_faults(rng: &mut Rng) -> Faults {
    let mut some = |most: u64| if rng.one_in(2) { rng.magnitude(100, most) as Ppm } else { 0 };
    let (loss, duplication, corruption, cutting, lateness) =
        (some(250_000), some(250_000), some(50_000), some(10_000), some(20_000));
    Faults {
        loss,
        duplication,
        corruption,
        cutting,
        lateness,
        jitter: if rng.one_in(2) { rng.magnitude(US, 20 * MS) } else { 0 },
        slow: rng.one_in(3),
        marks: rng.one_in(2),
    }
}

pub(crate) fn draw_links(rng: &mut Rng, faults: &Faults) -> [LinkPlan; 2] {
    // Packets have few lanes, so that there are many of them.
    let largest_packet = 32 + 128 * rng.range(1, 3) as usize + rng.below(128) as usize;
    let delay = rng.magnitude(US, 50 * US);
    // Some links have no such fault.
    let mut draw = || {
        let mut or_none = |value: Ppm| if rng.one_in(3) { 0 } else { value };
        let plan = LinkPlan {
            largest_packet,
            delay,
            jitter: 0,
            loss: or_none(faults.loss),
            duplication: or_none(faults.duplication),
            corruption: or_none(faults.corruption),
            cutting: or_none(faults.cutting),
            lateness: or_none(faults.lateness),
            ..LinkPlan::default()
        };
        let slow = faults.slow && rng.one_in(2);
        LinkPlan {
            jitter: if rng.one_in(3) { 0 } else { faults.jitter },
            latest: rng.magnitude(MS, 8 * SECOND),
            // 100 Mb/s to 10 Gb/s.
            byte_time: if slow { rng.magnitude(800, 80_000) } else { 0 },
            queue: rng.magnitude(2_000, 200_000),
            marks: faults.marks,
            ..plan
        }
    };
    [draw(), draw()]
}

fn draw_incidents(
    rng: &mut Rng,
    workers: usize,
    span: Time,
    durable: bool,
) -> Vec<(Time, Incident)> {
    let mut incidents = Vec::new();
    let mut some = |rng: &mut Rng, draw: fn(&mut Rng, usize) -> Incident| {
        let number = if rng.one_in(3) { rng.range(1, 3) } else { 0 };
        incidents.extend((0..number).map(|_| {
            let worker = rng.below(workers as u64) as usize;
            (rng.below(span), draw(rng, worker))
        }));
    };
    some(rng, |rng, worker| {
        let restart = (!rng.one_in(3)).then(|| rng.magnitude(100 * US, SECOND));
        Incident::Crash { worker, silent: rng.one_in(3), restart }
    });
    some(rng, |rng, worker| Incident::Stall { worker, time: rng.magnitude(100 * US, 8 * SECOND) });
    some(rng, |rng, worker| Incident::Outage {
        worker,
        direction: rng.below(2) as usize,
        time: rng.magnitude(MS, 8 * SECOND),
    });
    some(rng, |_, worker| Incident::Disconnect { worker });
    if rng.one_in(5) {
        let orderly = rng.one_in(2);
        incidents.push((
            rng.below(span),
            Incident::Replace { orderly, after: rng.magnitude(MS, 2 * SECOND) },
        ));
    }
    if durable && rng.one_in(2) {
        let number = rng.range(1, 3);
        incidents.extend((0..number).map(|_| {
            (rng.below(span), Incident::Restart { after: rng.magnitude(MS, 2 * SECOND) })
        }));
    }
    incidents.sort_by_key(|(at, _)| *at);
    incidents
}
