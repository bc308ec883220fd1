//! What a seed stands for: jobs, links, and what goes wrong. Each kind of fault is in about every
//! second scenario, so that some have few of them and run deep, and others have many at once.

use std::time::Duration;

use switchml_worker_core::engine::Limits;

use crate::dice::{Dice, Ppm};
use crate::program::{self, Step};

/// Virtual time, or a span of it, in ns.
pub type Time = u64;

/// A microsecond.
pub const US: Time = 1_000;
/// A millisecond.
pub const MS: Time = 1_000_000;
/// A second.
pub const SECOND: Time = 1_000_000_000;

/// Everything that a run does by plan. What happens to each packet is drawn as it comes.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where it came from.
    pub seed: u64,
    /// When all faults end: from then on all jobs must finish. `None` when faults go on, and jobs
    /// may fail.
    pub heals_at: Option<Time>,
    /// Slots of each job.
    pub slots: u32,
    /// Most lanes in a packet that the aggregator takes.
    pub max_lanes: u16,
    /// Whether the aggregator takes maxima unverified, and gives them without a check word.
    pub unchecked_maxima: bool,
    /// [`Builder::deadline`](switchml_worker::Builder::deadline) and
    /// [`Builder::timeout`](switchml_worker::Builder::timeout) of every rank.
    pub limits: Limits,
    /// [`Builder::join_timeout`](switchml_worker::Builder::join_timeout) of every rank.
    pub join_timeout: Time,
    /// How often a rank is started at most, while faults last.
    pub attempts: u32,
    /// Longest that a process takes before it looks at what has arrived.
    pub host_delay: Time,
    /// The jobs.
    pub jobs: Vec<JobPlan>,
    /// The links of each worker, to the aggregator and back.
    pub links: Vec<[LinkPlan; 2]>,
    /// Time that a control message takes: at least, and at most more.
    pub control_delay: (Time, Time),
    /// How often the data plane fails to open a job.
    pub open_fails: Ppm,
    /// What happens, and when; in order.
    pub incidents: Vec<(Time, Incident)>,
    /// How often a stranger sends a packet.
    pub stranger: Option<Time>,
}

/// A job: its ranks and what they call.
#[derive(Clone, Debug)]
pub struct JobPlan {
    /// Number of ranks.
    pub ranks: u16,
    /// The first of the workers that are its ranks, in order.
    pub first_worker: usize,
    /// What every rank calls.
    pub program: Vec<Step>,
    /// Longest pause of a rank before a call, while faults last.
    pub pause: Time,
    /// Round that the job's slots are in when it starts.
    pub origin: u32,
    /// Packets in a batch of new chunks.
    pub batch: u32,
    /// Packets that a rank takes its socket to hold.
    pub receive_room: u32,
    /// Packets that it does hold, of those that come while the rank stands still.
    pub socket_room: u32,
    /// A rank that makes another call than the others, in its first life: its place in the program,
    /// and the call.
    pub mistake: Option<(u16, usize, Step)>,
    /// A rank that closes after so many calls, in its first life.
    pub quitter: Option<(u16, usize)>,
}

/// A link in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkPlan {
    /// Largest packet that passes, in bytes of UDP payload.
    pub largest_packet: usize,
    /// Time that a packet takes at least.
    pub delay: Time,
    /// Most time beyond that; packets overtake each other.
    pub jitter: Time,
    /// Packets lost.
    pub loss: Ppm,
    /// Packets delivered twice.
    pub duplication: Ppm,
    /// Packets of which bits are flipped, header or payload.
    pub corruption: Ppm,
    /// Packets that are cut short, or get bytes behind their end.
    pub cutting: Ppm,
    /// Packets that come much later, after up to [`LinkPlan::latest`].
    pub lateness: Ppm,
    /// How late those are.
    pub latest: Time,
    /// ns that a byte takes to be sent, in thousandths; 0 for a link without limit.
    pub byte_time: u64,
    /// Bytes that wait to be sent before more are dropped.
    pub queue: u64,
    /// Whether packets that find half the queue full are marked (ECN).
    pub marks: bool,
}

/// Something that happens once.
#[derive(Clone, Copy, Debug)]
pub enum Incident {
    /// A worker's process dies; its host too if `silent`, so that no connection is closed. It is
    /// started again after a while, if ever.
    Crash {
        /// The worker.
        worker: usize,
        /// Whether the daemon has to find out by itself.
        silent: bool,
        /// When it is started again.
        restart: Option<Time>,
    },
    /// A worker's process stands still.
    Stall {
        /// The worker.
        worker: usize,
        /// For how long.
        time: Time,
    },
    /// A worker's link loses everything.
    Outage {
        /// The worker.
        worker: usize,
        /// Direction: 0 to the aggregator, 1 to the worker.
        direction: usize,
        /// For how long.
        time: Time,
    },
    /// A worker's control connection breaks.
    Disconnect {
        /// The worker.
        worker: usize,
    },
    /// The aggregator stops, and starts anew without any memory.
    Replace {
        /// In good order: its ranks are told.
        orderly: bool,
        /// When it is back.
        after: Time,
    },
}

impl Scenario {
    /// The scenario of a seed.
    pub fn draw(seed: u64) -> Self {
        let dice = &mut Dice::new(seed);
        let jobs = draw_jobs(dice);
        let workers = jobs.iter().map(|job| usize::from(job.ranks)).sum();
        let span = dice.magnitude(2 * MS, 4 * SECOND);
        let liveness = dice.one_in(2);
        let faults = draw_faults(dice);
        let links = (0..workers).map(|_| draw_links(dice, &faults)).collect();
        let incidents = draw_incidents(dice, workers, span);
        Self {
            seed,
            heals_at: liveness.then_some(2 * span),
            slots: 16 << dice.pick(&[0, 1, 3, 5]),
            max_lanes: 32 * dice.range(1, 24) as u16,
            limits: Limits {
                deadline: Duration::from_nanos(dice.magnitude(100 * MS, 5 * SECOND)),
                timeout: Duration::from_nanos(dice.magnitude(100 * MS, 1800 * SECOND)),
            },
            join_timeout: dice.magnitude(8 * SECOND, 60 * SECOND),
            attempts: dice.range(1, 4) as u32,
            host_delay: dice.magnitude(US, 50 * US),
            jobs,
            links,
            control_delay: (dice.magnitude(50 * US, MS), dice.magnitude(US, 30 * MS)),
            open_fails: if dice.one_in(10) { 300_000 } else { 0 },
            incidents,
            stranger: dice.one_in(3).then(|| dice.magnitude(100 * US, 20 * MS)),
            unchecked_maxima: dice.one_in(4),
        }
    }
}

fn draw_jobs(dice: &mut Dice) -> Vec<JobPlan> {
    let mut first_worker = 0;
    let jobs = if dice.one_in(2) { 1 } else { dice.range(1, 4) };
    let mut draw = |_| {
        let job = draw_job(dice, first_worker);
        first_worker += usize::from(job.ranks);
        job
    };
    (0..jobs).map(&mut draw).collect()
}

fn draw_job(dice: &mut Dice, first_worker: usize) -> JobPlan {
    let ranks = match dice.below(40) {
        0 => dice.range(33, 64),
        1..3 => dice.range(9, 32),
        _ => dice.range(1, 6),
    } as u16;
    let steps = dice.magnitude(1, 24);
    // As many packets in all, whatever the number of ranks.
    let largest = (20_000 / u64::from(ranks)).max(300);
    let program = program::draw(dice, ranks, steps, largest);
    let rank = |dice: &mut Dice| dice.below(ranks.into()) as u16;
    let step = |dice: &mut Dice| dice.below(steps) as usize;
    let mistake = (ranks > 1 && dice.one_in(12)).then(|| {
        let place = step(dice);
        (rank(dice), place, program::mistake(dice, &program[place]))
    });
    let receive_room = dice.magnitude(8, 512) as u32;
    let quitter = (ranks > 1 && dice.one_in(15)).then(|| (rank(dice), step(dice)));
    JobPlan {
        ranks,
        first_worker,
        pause: if dice.one_in(2) { 0 } else { dice.magnitude(10 * US, 300 * MS) },
        origin: if dice.one_in(4) { 0u32.wrapping_sub(dice.range(1, 6) as u32) } else { 0 },
        batch: dice.pick(&[1, 4, 45]),
        receive_room,
        socket_room: if dice.one_in(2) { dice.range(1, 8) as u32 } else { receive_room },
        program,
        mistake,
        quitter,
    }
}

/// What links do to packets, in this scenario.
struct Faults {
    loss: Ppm,
    duplication: Ppm,
    corruption: Ppm,
    cutting: Ppm,
    lateness: Ppm,
    jitter: Time,
    slow: bool,
    marks: bool,
}

fn draw_faults(dice: &mut Dice) -> Faults {
    let mut some = |most: u64| if dice.one_in(2) { dice.magnitude(100, most) as Ppm } else { 0 };
    let (loss, duplication, corruption, cutting, lateness) =
        (some(250_000), some(250_000), some(50_000), some(10_000), some(20_000));
    Faults {
        loss,
        duplication,
        corruption,
        cutting,
        lateness,
        jitter: if dice.one_in(2) { dice.magnitude(US, 20 * MS) } else { 0 },
        slow: dice.one_in(3),
        marks: dice.one_in(2),
    }
}

fn draw_links(dice: &mut Dice, faults: &Faults) -> [LinkPlan; 2] {
    // Few lanes in a packet, so that there are many packets.
    let largest_packet = 32 + 128 * dice.range(1, 3) as usize + dice.below(128) as usize;
    let delay = dice.magnitude(US, 50 * US);
    // Some links are spared.
    let mut draw = || {
        let mut or_none = |value: Ppm| if dice.one_in(3) { 0 } else { value };
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
        let slow = faults.slow && dice.one_in(2);
        LinkPlan {
            jitter: if dice.one_in(3) { 0 } else { faults.jitter },
            latest: dice.magnitude(MS, 8 * SECOND),
            // 100 Mb/s to 10 Gb/s.
            byte_time: if slow { dice.magnitude(800, 80_000) } else { 0 },
            queue: dice.magnitude(2_000, 200_000),
            marks: faults.marks,
            ..plan
        }
    };
    [draw(), draw()]
}

fn draw_incidents(dice: &mut Dice, workers: usize, span: Time) -> Vec<(Time, Incident)> {
    let mut incidents = Vec::new();
    let mut some = |dice: &mut Dice, draw: fn(&mut Dice, usize) -> Incident| {
        let number = if dice.one_in(3) { dice.range(1, 3) } else { 0 };
        incidents.extend((0..number).map(|_| {
            let worker = dice.below(workers as u64) as usize;
            (dice.below(span), draw(dice, worker))
        }));
    };
    some(dice, |dice, worker| {
        let restart = (!dice.one_in(3)).then(|| dice.magnitude(100 * US, SECOND));
        Incident::Crash { worker, silent: dice.one_in(3), restart }
    });
    some(dice, |dice, worker| Incident::Stall {
        worker,
        time: dice.magnitude(100 * US, 8 * SECOND),
    });
    some(dice, |dice, worker| Incident::Outage {
        worker,
        direction: dice.below(2) as usize,
        time: dice.magnitude(MS, 8 * SECOND),
    });
    some(dice, |_, worker| Incident::Disconnect { worker });
    if dice.one_in(5) {
        let orderly = dice.one_in(2);
        incidents.push((
            dice.below(span),
            Incident::Replace { orderly, after: dice.magnitude(MS, 2 * SECOND) },
        ));
    }
    incidents.sort_by_key(|(at, _)| *at);
    incidents
}
