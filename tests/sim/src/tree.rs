//! Draws the combiners between workers and root: their number, their places, and their faults.

use switchml_protocol::MAX_RANKS;
use switchml_protocol::capabilities::Capabilities;

use crate::changes;
use crate::draw::{draw_faults, draw_job, draw_job_of, draw_links};
use crate::rng::{Ppm, Rng};
use crate::scenario::{CombinerPlan, Incident, MS, SECOND, Scenario, Time, Tree};

/// Most combiners between a rank and the root.
const MOST_LEVELS: usize = 3;
/// One in `LARGE` seeds has a job with more ranks than the root has ports.
const LARGE: u64 = 256;
/// Racks of such a job, and the racks below an upper combiner.
const RACKS: usize = 32;
const RACKS_BELOW: usize = 8;

impl Scenario {
    /// The scenario of a seed, with combiners between its workers and the root.
    pub fn draw_tree(seed: u64) -> Self {
        let rng = &mut Rng::new(seed.rotate_left(32) ^ 0x7472_6565);
        let is_large = seed % LARGE == LARGE - 1;
        let mut scenario = if is_large { draw_large(seed) } else { Self::draw_at_one(seed) };
        let workers = scenario.links.len();
        let tree = if is_large { draw_racks(rng, workers) } else { draw(rng, workers) };
        // Rule 27.15: without this capability, the root takes no combiner.
        scenario.capabilities |= Capabilities::PARTIAL_SUMS;
        for job in &mut scenario.jobs {
            // The root finds no worker's plan by its combiner's address.
            job.origin = 0;
        }
        let span = scenario.incidents.last().map_or(SECOND, |(at, _)| *at);
        scenario.incidents.extend(draw_incidents(rng, tree.combiners.len() as u64, span));
        scenario.incidents.sort_by_key(|(at, _)| *at);
        // All packets of a host come by the same way.
        let above = scenario.hosts.iter().map(|first| tree.above[*first]).collect();
        scenario.tree = Tree { above, ..tree };
        changes::draw(scenario)
    }
}

/// Draws a job of up to 1024 ranks, and perhaps a small one beside it.
fn draw_large(seed: u64) -> Scenario {
    let rng = &mut Rng::new(seed);
    let ranks = if rng.one_in(2) { MAX_RANKS as u64 } else { rng.range(65, MAX_RANKS as u64) };
    let mut jobs = vec![draw_job_of(rng, 0, ranks as u16)];
    if rng.one_in(2) {
        jobs.push(draw_job(rng, ranks as usize));
    }
    let mut scenario = Scenario::draw_for(rng, seed, jobs);
    // Section 15: without this capability, 255 ranks are the most.
    scenario.capabilities |= Capabilities::CHECKED_MAXIMA;
    scenario
}

/// A combiner for each rack, and perhaps upper combiners for some racks each.
fn draw_racks(rng: &mut Rng, workers: usize) -> Tree {
    let plan = draw_plan(rng);
    let upper = if rng.one_in(2) { RACKS / RACKS_BELOW } else { 0 };
    let mut combiners: Vec<_> = (0..upper).map(|_| plan(rng, None)).collect();
    combiners.extend((0..RACKS).map(|rack| plan(rng, (upper > 0).then_some(rack / RACKS_BELOW))));
    // Ranks of a group are in one rack, or in many.
    let is_scattered = rng.one_in(2);
    let rack = |worker| if is_scattered { worker % RACKS } else { worker * RACKS / workers };
    Tree { above: (0..workers).map(|worker| Some(upper + rack(worker))).collect(), combiners }
}

/// The plan that the combiners of a tree share.
fn draw_plan(rng: &mut Rng) -> impl Fn(&mut Rng, Option<usize>) -> CombinerPlan + use<> {
    let faults = draw_faults(rng);
    let let_pass = if rng.one_in(3) { rng.magnitude(1_000, 500_000) as Ppm } else { 0 };
    let most = if rng.one_in(2) { 16 } else { 2048 };
    move |rng, parent| {
        let cells = rng.magnitude(1, most) as u32;
        let uplink = draw_links(rng, &faults);
        CombinerPlan { parent, uplink, cells, let_pass, jobs: u16::MAX }
    }
}

fn draw(rng: &mut Rng, workers: usize) -> Tree {
    let most = if rng.one_in(8) { 32 } else { 6 };
    let number = rng.range(1, most.min(workers as u64 + 1)) as usize;
    let plan = draw_plan(rng);
    let mut combiners: Vec<CombinerPlan> = Vec::new();
    let mut levels = Vec::new();
    for index in 0..number as u64 {
        let above = rng.below(index) as usize;
        let parent = (index > 0 && rng.one_in(2) && levels[above] < MOST_LEVELS).then_some(above);
        levels.push(1 + parent.map_or(0, |above| levels[above]));
        combiners.push(plan(rng, parent));
    }
    let mut above = || (!rng.one_in(6)).then(|| rng.below(number as u64) as usize);
    Tree { above: (0..workers).map(|_| above()).collect(), combiners }
}

fn draw_incidents(rng: &mut Rng, combiners: u64, span: Time) -> Vec<(Time, Incident)> {
    let number = if rng.one_in(2) { rng.range(1, 6) } else { 0 };
    let mut draw = |_| {
        let combiner = rng.below(combiners) as usize;
        let at = rng.below(span + 1);
        let incident = match rng.below(6) {
            0..3 => Incident::Forget { combiner },
            3 => Incident::CutOff { combiner },
            _ => {
                let (orderly, after) = (rng.one_in(4), rng.magnitude(MS, 8 * SECOND));
                Incident::CombinerCrash { combiner, orderly, after }
            }
        };
        (at, incident)
    };
    (0..number).map(&mut draw).collect()
}
