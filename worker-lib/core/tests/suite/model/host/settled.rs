//! How a state ends once faults stop: the network has lost all packets in flight, and from now on
//! delivers everything at once.

use switchml_protocol::outcome::Outcome;
use switchml_protocol::wire::header::HEADER_LEN;

use super::super::packets;
use super::super::plan::Contribution;
use super::network::Host;
use super::tasks::{Rank, Task, What};
use super::world::State;

#[derive(Debug)]
pub struct Settled {
    /// Whether all ranks have all results, or wait for those alone that are dead.
    pub finishes: bool,
    /// Whether no chunk that was begun after the faults had to be sent again; if no rank is dead.
    pub shares: bool,
}

impl Settled {
    pub fn of(host: &Host, state: &State) -> Self {
        let mut state = State { network: 0, ..state.clone() };
        let all_live = state.ranks.iter().all(|rank| !rank.is_dead);
        for at in living(&state) {
            host.proceed(&mut state, at, usize::MAX);
        }
        let begun = state.ranks.iter().map(|rank| rank.worker.view.sent).max().unwrap_or(0);
        let mut shares = true;
        loop {
            host.calm(&mut state);
            let Some(chunk) = host.time_out(&mut state) else { break };
            shares &= !all_live || chunk < begun;
        }
        // The search finds a violation too; it is not one of these properties.
        let finishes = state.violation.is_some()
            || living(&state).into_iter().all(|at| host.waits_for_the_dead_alone(&state, at));
        Self { finishes, shares }
    }

    pub fn is_right(&self) -> bool {
        self.finishes && self.shares
    }
}

fn living(state: &State) -> Vec<usize> {
    (0..state.ranks.len()).filter(|at| !state.ranks[*at].is_dead).collect()
}

/// What ranks have got so far.
fn got(state: &State) -> Vec<u32> {
    state.ranks.iter().map(|rank| rank.worker.view.got).collect()
}

impl Host {
    fn finish(&self, state: &mut State, at: usize, what: What) {
        state.ranks[at].task = Some(Task::new(what));
        self.proceed(state, at, usize::MAX);
    }

    /// Lets everything happen that needs no timer.
    fn calm(&self, state: &mut State) {
        loop {
            let before = got(state);
            for at in living(state) {
                while state.ranks[at].worker.may_send(&self.plan) {
                    self.finish(state, at, What::Send);
                }
            }
            for number in self.arrivals(state) {
                state.network &= !(1 << number);
                self.arrive(state, &self.packet(number).bytes);
            }
            for at in living(state) {
                for answer in self.answers(state, at) {
                    self.finish(state, at, What::Hear(answer));
                }
                if at > 0 && state.ranks[at].results.is_some() {
                    self.finish(state, at, What::Read);
                }
            }
            if before == got(state) {
                return;
            }
        }
    }

    /// Lets the timers of ranks expire, of those with the oldest chunks first, until that changes
    /// something. Returns the chunk that was sent again last.
    fn time_out(&self, state: &mut State) -> Option<usize> {
        let oldest =
            |rank: &Rank| (0..rank.worker.view.sent).find(|chunk| rank.worker.awaits(*chunk));
        let mut waiting: Vec<_> = living(state)
            .into_iter()
            .filter_map(|at| Some((oldest(&state.ranks[at])?, at)))
            .collect();
        waiting.sort_unstable();
        let before = state.clone();
        waiting.into_iter().find_map(|(chunk, at)| {
            self.finish(state, at, What::Resend(chunk));
            self.calm(state);
            let has_come = got(state) != got(&before) || state.aggregator != before.aggregator;
            has_come.then_some(chunk)
        })
    }

    /// Whether a rank is done, or the aggregator has the contributions of all living ranks to its
    /// oldest chunk.
    fn waits_for_the_dead_alone(&self, state: &State, at: usize) -> bool {
        let worker = &state.ranks[at].worker;
        let Some(chunk) = (0..worker.view.sent).find(|chunk| worker.awaits(*chunk)) else {
            return worker.is_done(&self.plan);
        };
        let again = self.plan.datagram(0, worker.view.rank, Contribution::in_full(chunk));
        let (outcome, answer) = state.aggregator.clone().serve(&self.plan, worker.view.rank, again);
        let Some(answer) = answer.filter(|_| outcome == Outcome::Pending) else { return false };
        assert_eq!(packets::header(&answer).lanes.get(), 2);
        let words = answer[HEADER_LEN..].try_into().expect("two words");
        let seen = u64::from_be_bytes(words);
        living(state).into_iter().all(|rank| seen >> rank & 1 == 1)
    }
}
