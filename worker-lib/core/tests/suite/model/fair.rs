//! How a state ends once faults stop: the network has lost all packets in flight, and from now on
//! delivers everything at once. Engines are real, with their real timers.

use std::collections::VecDeque;

use switchml_worker_core::engine::Failure;

use super::plan::Contribution;
use super::worker::Worker;
use super::world::{Reply, State, World};

/// A limit that no world here needs.
const MOST_ALARMS: usize = 1000;

/// Whether everybody finishes: workers of the session that the aggregator serves must get all
/// results, all others all results or an error.
pub fn finishes(world: &World, state: &State) -> bool {
    let served = state.aggregator.is_open().then_some(state.aggregator.epoch);
    let mut state = state.clone();
    let now = state.workers.iter().map(|worker| worker.now).max().unwrap_or(0);
    for worker in &mut state.workers {
        worker.now = now;
    }
    let left: Vec<_> = state
        .workers
        .iter()
        .filter(|worker| worker.view.left)
        .map(|worker| worker.view.rank)
        .collect();
    for worker in state.workers.iter_mut().filter(|worker| !worker.view.left) {
        left.iter().for_each(|rank| worker.note_departed(*rank));
    }
    let mut packets = VecDeque::new();
    for _ in 0..MOST_ALARMS {
        deliver_all(world, &mut state, &mut packets);
        if state.violation.is_some() {
            // The search finds this violation too; it is not one of this property.
            return true;
        }
        let waiting = |worker: &Worker| {
            if worker.has_ended(&world.plan) { None } else { worker.engine.deadline() }
        };
        let next = (0..state.workers.len())
            .filter_map(|at| Some((waiting(&state.workers[at])?, at)))
            .min();
        let Some((_, at)) = next else {
            return state.workers.iter().all(|worker| has_finished(world, served, worker));
        };
        // The control plane's part: who fails, leaves with an error, and that aborts the job.
        let failed = |worker: &Worker| {
            worker.view.failure.is_some() && served == Some(world.plan.epoch(worker.view.session))
        };
        if state.workers.iter().any(failed) {
            state.aggregator.abort();
        }
        let resent = state.workers[at].alarm(&world.plan);
        packets.extend(resent.into_iter().map(|sent| (at, sent, true)));
        let now = state.workers[at].now;
        for worker in &mut state.workers {
            worker.now = now.max(worker.now);
        }
    }
    false
}

/// Contributions in flight: the worker's index, the contribution, and whether it is a resend.
type Packets = VecDeque<(usize, Contribution, bool)>;

/// Delivers contributions and their answers until none is left.
fn deliver_all(world: &World, state: &mut State, packets: &mut Packets) {
    loop {
        for at in 0..state.workers.len() {
            while state.workers[at].may_send(&world.plan) {
                packets.push_back((at, state.workers[at].send(&world.plan), false));
            }
        }
        let Some((from, contribution, is_resend)) = packets.pop_front() else { return };
        for reply in world.deliver_through_tree(state, from, contribution, is_resend) {
            let Reply { to, datagram } = reply;
            for at in world.at(state, to) {
                let sent = world.hear(state, at, &datagram);
                packets.extend(sent.into_iter().map(|sent| (at, sent, false)));
            }
        }
    }
}

/// Whether a worker has ended as it should, given the epoch that was served when faults stopped.
fn has_finished(world: &World, served: Option<u32>, worker: &Worker) -> bool {
    if world.plan.setup.mismatch.is_some() && worker.view.session == 0 {
        return matches!(worker.view.failure, Some(Failure::Mismatch { .. } | Failure::Aborted));
    }
    match worker.view.failure {
        None => worker.is_done(&world.plan),
        Some(Failure::Silent | Failure::Damaged | Failure::Missing(_) | Failure::Aborted) => {
            served != Some(world.plan.epoch(worker.view.session))
        }
        Some(
            Failure::Mismatch { .. }
            | Failure::Round { .. }
            | Failure::Departed(_)
            | Failure::Misplaced(_)
            | Failure::Maximum,
        ) => false,
    }
}
