//! Draws what ranks of a job with several aggregators notice at different times, or not all of
//! them: one that stands still for a while, one of which a part is cut off, one whose daemon alone
//! is dead.

use std::time::Duration;

use crate::rng::Rng;
use crate::scenario::{Incident, LinkPlan, MS, Manner, SECOND, Scenario, Time};

/// Most contributions that an aggregator takes before it fails.
const MOST_CONTRIBUTIONS: u64 = 300;
/// Longest failure: longer than ranks and daemons wait for each other's sign of life.
const LONGEST: Time = 20 * SECOND;
/// Least deadline of a calm scenario: longer than a delayed packet takes.
const LEAST_DEADLINE: Duration = Duration::from_secs(1);

/// Lets an aggregator of some scenarios fail so. It draws from a generator of its own, so that all
/// other scenarios are as without.
pub fn draw(mut scenario: Scenario) -> Scenario {
    let aggregators = scenario.aggregators() as u64;
    let rng = &mut Rng::new(scenario.seed.rotate_left(24) ^ 0x756e_6576_656e);
    if aggregators < 2 || rng.one_in(3) {
        return scenario;
    }
    scenario.is_calm = rng.one_in(2);
    if scenario.is_calm {
        calm(rng, &mut scenario);
    }
    let aggregator = rng.below(aggregators) as usize;
    let contributions = rng.magnitude(1, MOST_CONTRIBUTIONS) as u32;
    let manner = draw_manner(rng, &scenario);
    scenario.incidents.push((0, Incident::Death { aggregator, contributions, manner }));
    if rng.one_in(4) {
        let rank = rng.below(scenario.jobs[0].ranks.into()) as u16;
        scenario.incidents.push((rng.below(2 * MS), Incident::Squat { rank }));
    }
    scenario.incidents.sort_by_key(|(at, _)| *at);
    scenario
}

fn draw_manner(rng: &mut Rng, scenario: &Scenario) -> Manner {
    let time = rng.magnitude(100 * MS, LONGEST);
    let worker = rng.pick(&scenario.jobs[0].workers);
    let dead = [Manner::Orderly, Manner::Killed, Manner::Silent];
    match rng.below(8) {
        0 | 1 => Manner::Frozen(time),
        2 | 3 => Manner::Unheard(time),
        4 => Manner::Apart(worker, time),
        5 | 6 => Manner::Orphaned,
        _ => rng.pick(&dead),
    }
}

/// Takes all other faults out, and all that keeps an aggregator from going on in another's place.
fn calm(rng: &mut Rng, scenario: &mut Scenario) {
    scenario.jobs.retain(|job| job.change.is_none());
    for job in &mut scenario.jobs {
        (job.mistake, job.quitter) = (None, None);
        (job.pause, job.linger) = (rng.magnitude(MS, 8 * SECOND), 0);
        // Long pauses, and yet an end.
        job.program.truncate(8);
    }
    scenario.incidents.clear();
    (scenario.heals_at, scenario.stranger, scenario.attempts) = (None, None, 1);
    (scenario.open_fails, scenario.control_loss) = (0, 0);
    scenario.without_multicast.fill(false);
    scenario.limits.deadline = scenario.limits.deadline.max(LEAST_DEADLINE);
    scenario.limits.timeout = Duration::from_secs(1800);
    scenario.join_timeout = scenario.join_timeout.max(30 * SECOND);
    let first = scenario.links.clone();
    let others = scenario.others.iter_mut().map(|other| &mut other.links);
    for links in others.chain([&mut scenario.links]) {
        links.iter_mut().zip(&first).for_each(|(links, first)| clean(links, first));
    }
    for other in &mut scenario.others {
        (other.capabilities, other.max_lanes) = (scenario.capabilities, scenario.max_lanes);
    }
}

/// Takes the faults out of links, which bring as long packets as others.
fn clean(links: &mut [LinkPlan; 2], first: &[LinkPlan; 2]) {
    for (link, LinkPlan { largest_packet, .. }) in links.iter_mut().zip(*first) {
        let (loss, corruption, cutting, lateness) = (0, 0, 0, 0);
        *link = LinkPlan { largest_packet, loss, corruption, cutting, lateness, ..*link };
    }
}
