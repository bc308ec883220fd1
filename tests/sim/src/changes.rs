//! Draws reconfigurations: ranks of a job are lost, left out, or come, and the present ones go on
//! in another job, in another order.

use crate::program;
use crate::rng::Rng;
use crate::scenario::{Change, JobPlan, Loss, MS, Scenario, US};

/// Most reconfigurations of a job.
const MOST: u64 = 3;
/// Most calls of a job that ranks go on in.
const CALLS: u64 = 8;

/// Reconfigures the jobs of some scenarios. It draws from a generator of its own, so that all other
/// scenarios are as without.
pub fn draw(mut scenario: Scenario) -> Scenario {
    let rng = &mut Rng::new(scenario.seed.rotate_left(40) ^ 0x6368_616e_6765);
    if !rng.one_in(4) {
        return scenario;
    }
    for job in 0..scenario.jobs.len() {
        let pool = scenario.jobs[job].workers.clone();
        if pool.len() > 1 && !rng.one_in(4) {
            if rng.one_in(2) {
                hold_back(rng, &mut scenario.jobs[job]);
            }
            let mut from = job;
            for _ in 0..rng.range(1, MOST) {
                let next = draw_next(rng, &pool, from, &scenario.jobs[from]);
                from = scenario.jobs.len();
                scenario.jobs.push(next);
            }
        }
    }
    scenario
}

/// Some of a job's workers are not there from the beginning.
fn hold_back(rng: &mut Rng, job: &mut JobPlan) {
    let present = rng.range(1, job.workers.len() as u64) as usize;
    shuffle(rng, &mut job.workers);
    job.workers.truncate(present);
    (job.mistake, job.quitter) = (None, None);
    fill(rng, job);
}

/// The job in which ranks of job number `from` go on, with others of the pool.
fn draw_next(rng: &mut Rng, pool: &[usize], from: usize, before: &JobPlan) -> JobPlan {
    let mut old = before.workers.clone();
    shuffle(rng, &mut old);
    let lost = if rng.one_in(4) { 0 } else { rng.below(old.len() as u64) as usize };
    let (lost, stay) = old.split_at(lost);
    let mut others: Vec<_> =
        pool.iter().copied().filter(|worker| !before.workers.contains(worker)).collect();
    shuffle(rng, &mut others);
    let come = if rng.one_in(2) { rng.range(0, others.len() as u64) as usize } else { 0 };
    let mut workers: Vec<_> = stay.iter().chain(&others[..come]).copied().collect();
    if rng.one_in(2) {
        workers.sort_unstable();
    }
    let kinds = [None, Some(Loss::Death), Some(Loss::HostDeath), Some(Loss::Disconnect)];
    let mut lose = |worker: &usize| rng.pick(&kinds).map(|loss| (*worker, loss));
    let losses = lost.iter().filter_map(&mut lose).collect();
    // None: while ranks still join.
    let calls = if rng.one_in(4) { 0 } else { rng.range(1, before.program.len() as u64) as usize };
    let delay = if rng.one_in(2) { 0 } else { rng.magnitude(US, 10 * MS) };
    let change = Change { from, calls, delay, notice: rng.magnitude(US, 50 * MS), losses };
    let (mistake, quitter) = (None, None);
    let mut next = JobPlan { workers, change: Some(change), mistake, quitter, ..before.clone() };
    fill(rng, &mut next);
    next
}

/// Draws the calls of a job of these workers.
fn fill(rng: &mut Rng, job: &mut JobPlan) {
    job.ranks = job.workers.len() as u16;
    let calls = rng.magnitude(1, CALLS);
    let largest = (20_000 / u64::from(job.ranks)).max(300);
    job.program = program::draw(rng, job.ranks, calls, largest);
}

fn shuffle(rng: &mut Rng, workers: &mut [usize]) {
    for place in (1..workers.len()).rev() {
        workers.swap(place, rng.below(place as u64 + 1) as usize);
    }
}
