//! Draws the scenario of a seed. Each kind of fault is in about every second scenario, so that some
//! scenarios have few kinds and run deep, and others have many at once.

use std::time::Duration;

use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::wire::auth::TAG_LEN;
use switchml_userspace_core::data_plane::Fanout;
use switchml_userspace_core::jobs::Threads;
use switchml_worker_core::engine::Limits;

use crate::hosts;
use crate::program;
use crate::rng::{Ppm, Rng};
use crate::scenario::{Incident, JobPlan, LinkPlan, MS, SECOND, SLOTS, Scenario, Time, Tree, US};
use crate::threads;

impl Scenario {
    /// The scenario of a seed, with one aggregator.
    pub fn draw_at_one(seed: u64) -> Self {
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
        let scenario = Self {
            seed,
            tags,
            durable,
            heals_at: liveness.then_some(2 * span),
            slots: rng.pick(&SLOTS),
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
            others: Vec::new(),
            weights: Vec::new(),
            control_delay: (rng.magnitude(50 * US, MS), rng.magnitude(US, 30 * MS)),
            control_loss: if rng.one_in(3) { rng.magnitude(1_000, 100_000) as Ppm } else { 0 },
            open_fails: if rng.one_in(10) { 300_000 } else { 0 },
            incidents,
            stranger: rng.one_in(3).then(|| rng.magnitude(100 * US, 20 * MS)),
            is_calm: false,
            capabilities,
            fanout,
            ports: draw_ports(rng, workers),
            without_multicast: draw_without_multicast(rng, workers),
            hosts: (0..workers).collect(),
            in_memory: false,
            threads: vec![Threads::default(); workers],
        };
        hosts::draw(threads::draw(scenario))
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
        workers: (first_worker..first_worker + usize::from(ranks)).collect(),
        change: None,
        pause: if rng.one_in(2) { 0 } else { rng.magnitude(10 * US, 300 * MS) },
        begin: 0,
        rest: 0,
        linger: 0,
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
            Incident::Replace { aggregator: 0, orderly, after: rng.magnitude(MS, 2 * SECOND) },
        ));
    }
    if durable && rng.one_in(2) {
        let number = rng.range(1, 3);
        incidents.extend((0..number).map(|_| {
            let at = rng.below(span);
            (at, Incident::Restart { aggregator: 0, after: rng.magnitude(MS, 2 * SECOND) })
        }));
    }
    incidents.sort_by_key(|(at, _)| *at);
    incidents
}
