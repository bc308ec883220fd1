//! Draws the aggregators of jobs that have several: their number, their links, and their faults.

use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::wire::auth::TAG_LEN;

use crate::changes;
use crate::draw::{Faults, draw_faults, draw_links};
use crate::rng::Rng;
use crate::scenario::{
    AggregatorPlan, Incident, LinkPlan, MS, Manner, SECOND, SLOTS, Scenario, Time, US,
};
use crate::threads;
use crate::uneven;

/// Most aggregators of a job.
const MOST: u64 = 4;
/// Most contributions that an aggregator takes before it dies.
const MOST_CONTRIBUTIONS: u64 = 2_000;
/// What the aggregators of a job may differ in, besides slots, lanes and links.
const DIFFER: [Capabilities; 4] = [
    Capabilities::CHECKED_MAXIMA,
    Capabilities::EMPTY_CONTRIBUTIONS,
    Capabilities::AUDIENCES,
    Capabilities::PARTIAL_SUMS,
];

impl Scenario {
    /// The scenario of a seed. Every fourth one has several aggregators. They are drawn from a
    /// generator of their own, so that the other scenarios do not depend on them.
    pub fn draw(seed: u64) -> Self {
        let rng = &mut Rng::new(seed.rotate_left(56) ^ 0x0073_7472_6970_6573);
        let scenario = Self::draw_at_one(seed);
        uneven::draw(changes::draw(if rng.one_in(4) { draw(rng, scenario) } else { scenario }))
    }
}

/// Gives a scenario several aggregators.
pub fn draw(rng: &mut Rng, mut scenario: Scenario) -> Scenario {
    if rng.one_in(4) {
        threads::draw_large_calls(rng, &mut scenario);
    }
    let (others, faults) = (rng.range(1, MOST - 1), draw_faults(rng));
    scenario.others = (0..others).map(|_| draw_aggregator(rng, &scenario, &faults)).collect();
    let are_given = rng.one_in(2);
    let mut weight = |_| if are_given { rng.magnitude(1, 10_000) as u32 } else { 0 };
    scenario.weights = (0..=others).map(&mut weight).collect();
    for job in &mut scenario.jobs {
        // Places count from the first chunk, and moves begin with round 0.
        job.origin = 0;
        // Ranks that are done help others to move, until they leave.
        job.linger = if rng.one_in(2) { rng.magnitude(MS, 20 * SECOND) } else { 0 };
    }
    // Paths are opened at one aggregator after another.
    scenario.join_timeout += others * 8 * SECOND;
    if !rng.one_in(3) {
        // So that calls wait for the ranks that take longest to move.
        scenario.limits.timeout += std::time::Duration::from_secs(120);
    }
    draw_incidents(rng, scenario)
}

fn draw_aggregator(rng: &mut Rng, scenario: &Scenario, faults: &Faults) -> AggregatorPlan {
    let mut capabilities = scenario.capabilities;
    if rng.one_in(4) {
        capabilities.toggle(rng.pick(&DIFFER));
    }
    let links = scenario.links.iter().map(|first| {
        let links = draw_links(rng, faults);
        // It is mostly the rank's interface that limits packets.
        let largest = match rng.one_in(8) {
            true => first[0].largest_packet.min(links[0].largest_packet + TAG_LEN),
            false => first[0].largest_packet,
        };
        links.map(|link| LinkPlan { largest_packet: largest, ..link })
    });
    AggregatorPlan {
        links: links.collect(),
        slots: rng.pick(&SLOTS),
        max_lanes: if rng.one_in(4) { 32 * rng.range(1, 24) as u16 } else { scenario.max_lanes },
        capabilities,
        durable: rng.one_in(2),
    }
}

fn draw_incidents(rng: &mut Rng, mut scenario: Scenario) -> Scenario {
    let number = scenario.aggregators() as u64;
    let durable: Vec<_> = (0..scenario.aggregators())
        .filter(|aggregator| scenario.aggregator(*aggregator).durable)
        .collect();
    for (_, incident) in &mut scenario.incidents {
        match incident {
            Incident::Restart { aggregator, .. } => *aggregator = rng.pick(&durable),
            Incident::Replace { aggregator, .. } => *aggregator = rng.below(number) as usize,
            _ => {}
        }
    }
    if rng.one_in(2) {
        // Nothing else goes wrong with processes, so jobs go on long after a death.
        scenario.incidents.clear();
        scenario.open_fails = 0;
        scenario.jobs.iter_mut().for_each(|job| (job.mistake, job.quitter) = (None, None));
    }
    // Ranks take long to start at several aggregators, and to notice that one is gone.
    let more = rng.magnitude(100 * MS, 30 * SECOND);
    scenario.heals_at = scenario.heals_at.map(|at| at + more);
    let latest = scenario.heals_at.map_or(4 * SECOND, |at| at / 2);
    let span = rng.magnitude(2 * MS, latest);
    let incidents = rng.range(0, 3);
    let drawn = (0..incidents).map(|_| (rng.below(span), draw_incident(rng, number)));
    let drawn: Vec<(Time, Incident)> = drawn.collect();
    scenario.incidents.extend(drawn);
    scenario.incidents.sort_by_key(|(at, _)| *at);
    scenario
}

fn draw_incident(rng: &mut Rng, aggregators: u64) -> Incident {
    let aggregator = rng.below(aggregators) as usize;
    match rng.below(8) {
        0 => Incident::Unreachable { aggregator, time: rng.magnitude(MS, 30 * SECOND) },
        1 => {
            let (time, by) = (rng.magnitude(MS, 8 * SECOND), rng.magnitude(10 * US, SECOND));
            Incident::Slow { aggregator, time, by }
        }
        2 => {
            let (orderly, after) = (rng.one_in(2), rng.magnitude(MS, 2 * SECOND));
            Incident::Replace { aggregator, orderly, after }
        }
        _ => {
            let manner = rng.pick(&[Manner::Orderly, Manner::Killed, Manner::Silent]);
            let contributions = rng.magnitude(1, MOST_CONTRIBUTIONS) as u32;
            Incident::Death { aggregator, contributions, manner }
        }
    }
}
