//! The states of a host's world, and what changes them.

use std::mem;

use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::wire::header::{Kind, flags};
use switchml_protocol::wire::share::Share;

use super::super::aggregator::Aggregator;
use super::super::packets;
use super::super::promises::Violation;
use super::memory::{Run, Segment};
use super::network::{Host, To};
use super::tasks::{Rank, Task, What};

/// One state of the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub aggregator: Aggregator,
    pub ranks: Vec<Rank>,
    pub segment: Segment,
    /// Bitmap of the packets that were ever sent.
    pub network: u128,
    /// Resends so far, if they are bounded.
    pub resent: u8,
    pub violation: Option<Violation>,
}

impl Host {
    /// Numbers of the packets in the network.
    fn network(state: &State) -> impl Iterator<Item = usize> {
        let network = state.network;
        (0..128).filter(move |number| network >> number & 1 == 1)
    }

    fn keep(&self, state: &mut State, to: To, bytes: Vec<u8>) {
        let number = self.number(to, bytes);
        assert!(number < 128, "more packets than a state has bits for");
        state.network |= 1 << number;
    }

    /// A packet leaves for the aggregator, to which a resend is the same packet.
    fn leave(&self, state: &mut State, packet: &[u8]) {
        let bytes = packets::rewritten(packet, self.plan.setup.ranks, |header| {
            header.flags &= !flags::RETRANSMIT;
        });
        self.keep(state, To::Aggregator, bytes);
    }

    /// The aggregator gets a packet. Only RESULTs matter of what it answers.
    pub fn arrive(&self, state: &mut State, packet: &[u8]) {
        let (_, ranks) = Share::of(&packets::header(packet)).in_group();
        let rank = ranks.trailing_zeros() as u16;
        let (outcome, answer) = state.aggregator.serve(&self.plan, rank, packet);
        let header = packets::header(packet);
        if outcome == Outcome::WrongRound && !self.bounds.forges {
            let chunk = self.plan.chunk_in(header.round.get(), header.slot.get());
            state.violation = Some(Violation::Refused { session: 0, rank, chunk });
        }
        let is_result = |answer: &Vec<u8>| packets::header(answer).kind == Kind::Result as u8;
        if let Some(answer) = answer.filter(is_result) {
            let is_to_all = outcome.action() == Action::Broadcast;
            self.keep(state, if is_to_all { To::All } else { To::Rank(rank) }, answer);
        }
    }

    /// The answers that may come to a rank, and bring it something.
    pub fn answers(&self, state: &State, at: usize) -> Vec<usize> {
        let comes = |number: &usize| {
            let packet = self.packet(*number);
            let header = packets::header(&packet.bytes);
            let chunk = self.plan.chunk_in(header.round.get(), header.slot.get());
            let comes_here = match packet.to {
                To::Aggregator => false,
                To::All => at == 0 || at >= self.bounds.sharing,
                To::Rank(rank) => usize::from(rank) == at,
            };
            comes_here && state.ranks[at].worker.awaits(chunk)
        };
        Self::network(state).filter(comes).collect()
    }

    /// The tasks that a rank may begin.
    pub fn tasks(&self, state: &State, at: usize) -> Vec<What> {
        let Rank { worker, results, .. } = &state.ranks[at];
        let mut tasks = Vec::new();
        tasks.extend(worker.may_send(&self.plan).then_some(What::Send));
        let sent = (0..worker.view.sent).filter(|chunk| worker.awaits(*chunk));
        let may_resend = self.bounds.resends.is_none_or(|most| state.resent < most);
        tasks.extend(sent.clone().filter(|_| may_resend).map(What::Resend));
        let is_fooled = self.bounds.forges && results.is_some();
        tasks.extend(sent.filter(|_| is_fooled).map(What::HearForged));
        tasks.extend(self.answers(state, at).into_iter().map(What::Hear));
        tasks.extend((at > 0 && results.is_some()).then_some(What::Read));
        tasks
    }

    /// Numbers of the packets that may arrive at the aggregator.
    pub fn arrivals(&self, state: &State) -> Vec<usize> {
        Self::network(state).filter(|number| self.packet(*number).to == To::Aggregator).collect()
    }

    /// A rank takes the next steps of its task, as many as it is allowed.
    pub fn proceed(&self, state: &mut State, at: usize, allowance: usize) {
        let Some(Task { what, log, .. }) = state.ranks[at].task.take() else { return };
        let others = state.ranks.iter().filter(|rank| !rank.is_dead);
        let others_read = others.filter_map(|rank| rank.task.as_ref());
        let others_read = others_read.flat_map(|task| task.reads.iter().copied()).collect();
        let segment = mem::take(&mut state.segment);
        let mut rank = state.ranks[at].clone();
        let run = Run::new(segment, others_read, log, allowance);
        let (outcome, mut run) = run.of(|| rank.work(self, what));
        let goes_on = run.goes_on() && allowance < usize::MAX;
        if !goes_on {
            run.finish_write();
        }
        let Run { segment, log, reads, left, is_race, .. } = run;
        state.segment = segment;
        left.iter().for_each(|packet| self.leave(state, packet));
        if is_race {
            state.violation = Some(Violation::Race { rank: at as u16 });
        }
        if goes_on {
            state.ranks[at].task = Some(Task { what, log, reads });
            return;
        }
        state.ranks[at] = rank;
        if let Err(violation) = outcome {
            state.violation = Some(violation);
        }
    }
}
