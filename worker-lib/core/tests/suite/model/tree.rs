//! Combiners between workers and aggregator: the real machine, over cells that store only the lanes
//! that contributions here fill, and a way to take out its rules.
//!
//! What a combiner sends stays in the network forever, as all packets do; except for a partial sum
//! of one rank, which does what that rank's contribution does. Contributions may bypass combiners
//! anyway, so it is not kept. A cell may be flushed at any moment, as if another key had claimed
//! it, and may be forgotten, as after a restart. So the model needs no time.

use std::collections::VecDeque;
use std::sync::Arc;

use switchml_protocol::combiner::cell::{Cell, CellContext, CellHead, combine, flush};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::packet::Packet;
use switchml_protocol::wire::header::{Header, Op, flags};
use switchml_protocol::wire::share::Share;

use super::cells::Memory;
use super::packets::{self, Payload};
use super::plan::Contribution;
use super::rules::Rule;
use super::world::{Event, Recipient, Reply, State, World};

/// Bitmap of the ranks of a contribution or partial sum.
fn ranks(datagram: &[u8]) -> u32 {
    Share::of(&packets::header(datagram)).in_group().1
}

impl World {
    /// The combiner that a packet with these ranks reaches next, from number `from` on; none if
    /// that is the root.
    fn next_combiner(&self, ranks: u32, from: usize) -> Option<usize> {
        let combiners = &self.plan.setup.combiners;
        (from..combiners.len()).find(|at| ranks & !u32::from(combiners[*at]) == 0)
    }

    /// The events that combiners and partial sums may cause next.
    pub fn combiner_events(&self, state: &State, events: &mut Vec<Event>) {
        let partials = (0..128).filter(|number| state.partials >> number & 1 == 1);
        for number in partials.clone() {
            events.push(Event::ArrivePartial(number));
        }
        for (node, below) in self.plan.setup.combiners.iter().enumerate() {
            for (at, worker) in state.workers.iter().enumerate() {
                if below >> worker.view.rank & 1 == 1 {
                    let sent = worker.in_network(&self.plan);
                    events.extend(sent.map(|sent| Event::Combine(node, at, sent)));
                }
            }
            // Partial sums from a combiner that is below this one.
            let lower = &self.plan.setup.combiners[..node];
            let comes_here = |number: &usize| {
                let ranks = ranks(&self.partial(*number));
                let covers = |ranks: u32, by: u8| ranks & !u32::from(by) == 0;
                let is_of = |from: &u8| covers(ranks, *from) && covers((*from).into(), *below);
                lower.iter().any(is_of)
            };
            let partials = partials.clone().filter(comes_here);
            events.extend(partials.map(|number| Event::CombinePartial(node, number)));
            if state.combiners[node].holds() {
                events.extend([Event::Flush(node), Event::Forget(node)]);
            }
        }
    }

    /// Applies an event of combiners to the state.
    pub fn apply_to_combiners(&self, state: &mut State, event: Event) {
        let on = match event {
            Event::Combine(node, at, what) => {
                let datagram = self.contribution(state, at, what).to_vec();
                self.combine(state, node, &datagram)
            }
            Event::CombinePartial(node, number) => self.combine(state, node, &self.partial(number)),
            Event::Flush(node) => self.flush(state, node).into_iter().collect(),
            Event::Forget(node) => {
                state.combiners[node] = Memory::default();
                vec![]
            }
            Event::ArrivePartial(number) => {
                let reply = self.arrive_partial(state, &self.partial(number));
                reply.into_iter().for_each(|reply| self.keep(state, reply));
                vec![]
            }
            _ => unreachable!("no event of combiners"),
        };
        on.into_iter().for_each(|datagram| self.keep_partial(state, datagram));
    }

    /// A combiner gets a contribution or partial sum. Returns what it sends to its parent.
    fn combine(&self, state: &mut State, node: usize, datagram: &[u8]) -> Vec<Vec<u8>> {
        let (mut header, mut payload) = packets::split(datagram);
        let context = CellContext {
            below: self.plan.setup.combiners[node].into(),
            now: 0,
            hold_time: u32::MAX,
        };
        let mut cell = state.combiners[node].to_cell();
        self.doctor_cell(&mut cell.head, &header);
        let outcome = combine(
            &mut cell,
            &context,
            Op::Sum,
            &mut Packet::new(&mut header, &mut payload[..], 0),
        );
        state.combiners[node] = Memory::of_cell(&cell);
        match outcome {
            Outcome::Passed => vec![datagram.to_vec()],
            Outcome::Combined | Outcome::Evicted => vec![self.left(header, &payload)],
            Outcome::Flushed => {
                // What the cell holds leaves first.
                let mut on = Vec::from_iter(self.flush_cell(state, node, cell));
                on.push(datagram.to_vec());
                on
            }
            // It is in the cell, or dropped.
            _ => vec![],
        }
    }

    /// Flushes a combiner's cell.
    fn flush(&self, state: &mut State, node: usize) -> Option<Vec<u8>> {
        let cell = state.combiners[node].to_cell();
        self.flush_cell(state, node, cell)
    }

    fn flush_cell(&self, state: &mut State, node: usize, mut cell: Cell) -> Option<Vec<u8>> {
        if cell.head.held == 0 {
            return None;
        }
        let (mut header, mut payload) = (packets::blank(), Payload::default());
        flush(&mut cell, &mut Packet::new(&mut header, &mut payload[..], 0)).expect("room");
        state.combiners[node] = Memory::of_cell(&cell);
        Some(self.left(header, &payload))
    }

    /// The partial sum that leaves, with a check word that fits if that rule is taken out.
    fn left(&self, mut header: Header, payload: &Payload) -> Vec<u8> {
        if self.plan.lacks(Rule::PartialCheck) {
            let share = Share::of(&header);
            let check = header.check_of(packets::lane_sum(payload), share.count());
            header.check.set(check.wrapping_add(share.surplus(&header)));
        }
        packets::joined(&header, payload)
    }

    /// Makes a cell look as if the rules that are taken out were kept.
    fn doctor_cell(&self, head: &mut CellHead, packet: &Header) {
        let (_, ranks) = Share::of(packet).in_group();
        let is_own = head.epoch == packet.epoch.get() && head.slot == packet.slot.get();
        if self.plan.lacks(Rule::CellRound) && is_own && head.held != 0 {
            head.round = packet.round.get();
        }
        if self.plan.lacks(Rule::Passed) {
            head.passed = 0;
        }
        if self.plan.lacks(Rule::Disjoint) {
            head.held &= !ranks;
            head.passed &= !ranks;
        }
    }

    /// The aggregator gets a partial sum. Returns its answer to all.
    fn arrive_partial(&self, state: &mut State, datagram: &[u8]) -> Option<Reply> {
        let rank = ranks(datagram).trailing_zeros() as u16;
        let (_, answer) = state.aggregator.serve(&self.plan, rank, datagram);
        answer.map(|datagram| Reply { to: Recipient::All, datagram })
    }

    /// Keeps a partial sum in the network forever.
    fn keep_partial(&self, state: &mut State, datagram: Vec<u8>) {
        if ranks(&datagram).count_ones() == 1 {
            return;
        }
        let mut partials = self.partials.write().expect("no panic");
        let known = partials.iter().position(|known| **known == datagram);
        let number = known.unwrap_or_else(|| {
            partials.push(Arc::new(datagram));
            partials.len() - 1
        });
        assert!(number < 128, "more partial sums than a state has bits for");
        state.partials |= 1 << number;
    }

    fn partial(&self, number: usize) -> Arc<Vec<u8>> {
        self.partials.read().expect("no panic")[number].clone()
    }

    /// Brings a worker's contribution through all combiners on its way, with nothing lost: the
    /// answers that come of it.
    pub fn deliver_through_tree(
        &self,
        state: &mut State,
        from: usize,
        contribution: Contribution,
        is_resend: bool,
    ) -> Vec<Reply> {
        let mut datagram = self.contribution(state, from, contribution).to_vec();
        if is_resend && !self.plan.lacks(Rule::Untouched) {
            datagram = packets::rewritten(&datagram, self.plan.setup.ranks, |header| {
                header.flags |= flags::RETRANSMIT;
            });
        }
        let mut under_way = VecDeque::from([(0, datagram)]);
        let mut replies = Vec::new();
        while let Some((hop, datagram)) = under_way.pop_front() {
            if let Some(node) = self.next_combiner(ranks(&datagram), hop) {
                let on = self.combine(state, node, &datagram);
                under_way.extend(on.into_iter().map(|datagram| (node + 1, datagram)));
            } else if packets::header(&datagram).is_partial() {
                replies.extend(self.arrive_partial(state, &datagram));
            } else {
                let era = state.workers[from].era();
                replies.extend(self.arrive(state, from, contribution, era).1);
            }
        }
        replies
    }

    /// An event of combiners' in words.
    pub fn describe_combining(&self, event: Event, name: impl Fn(usize) -> String) -> String {
        let of = |number: usize| {
            let header = packets::header(&self.partial(number));
            let chunk = self.plan.chunk_in(header.round.get(), header.slot.get());
            format!("the partial sum of ranks {:b} of chunk {chunk}", header.aux.get())
        };
        match event {
            Event::Combine(node, at, what) => {
                format!("c{}/{what} arrives at combiner {node}", name(at))
            }
            Event::CombinePartial(node, number) => {
                format!("{} arrives at combiner {node}", of(number))
            }
            Event::Flush(node) => format!("what combiner {node} holds leaves"),
            Event::Forget(node) => format!("combiner {node} forgets all"),
            Event::ArrivePartial(number) => format!("{} arrives at the root", of(number)),
            _ => unreachable!("no event of combiners"),
        }
    }

    fn contribution(&self, state: &State, at: usize, what: Contribution) -> &[u8] {
        let view = &state.workers[at].view;
        self.plan.datagram(view.session, view.rank, what)
    }
}
