//! Exhaustive search of small worlds: every state that a job can get into over a network that loses, reorders, and
//! delivers again anything that was ever sent. The slots are driven by the crate's own code.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use switchml_protocol::header::{Header, Op};
use switchml_protocol::job::{Job, OPEN};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::slot::{SetHead, Slot, contribute};
use switchml_protocol::{EVERYONE, LANES_PER_BLOCK, U32};
use zerocopy::FromBytes;

use crate::switch::{EPOCH, contribution};

/// A world to search.
#[derive(Clone, Copy)]
struct World {
    ranks: u16,
    slots: usize,
    /// Chunks that every worker sends.
    chunks: usize,
    /// Round of the first chunks; if not 0, every slot holds the two rounds before.
    origin: u32,
}

/// Far more than any world here has. Values that grow for ever would make it endless.
const MOST_STATES: usize = 100_000;

/// All that tells two moments of a world apart. What is on its way to the aggregator follows from `sent`: workers send
/// again, and the network may deliver any of it, any number of times, or never.
#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    /// Head and value of both sets of every slot. All lanes of a packet are alike.
    slots: Vec<[(SetHead, u32); 2]>,
    workers: Vec<Worker>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Worker {
    /// Chunks sent so far: 0..sent.
    sent: usize,
    /// Bitmap of the chunks whose result is on its way to this worker.
    coming: u32,
    /// Bitmap of the chunks whose result it holds.
    done: u32,
}

/// What a rank adds to a chunk. Sums tell who is in, how often, and of which chunks.
fn value(rank: u16, chunk: usize) -> u32 {
    (chunk as u32 + 1) * 100u32.pow(u32::from(rank))
}

impl World {
    fn start(&self) -> State {
        let mut state = State {
            slots: vec![[(SetHead::default(), 0); 2]; self.slots],
            workers: vec![Worker::default(); usize::from(self.ranks)],
        };
        if self.origin > 0 {
            // Play rounds 0 and 1, then renumber them.
            let young = Self { origin: 0, ..*self };
            for (chunk, rank) in (0..2 * self.slots).flat_map(|chunk| (0..self.ranks).map(move |rank| (chunk, rank))) {
                young.serve(&mut state, rank, chunk);
            }
            for [even, odd] in &mut state.slots {
                (even.0.round, odd.0.round) = (self.origin - 2, self.origin - 1);
            }
            state.workers.fill(Worker::default());
        }
        state
    }

    fn is_done(&self, state: &State) -> bool {
        state.workers.iter().all(|worker| worker.done == (1 << self.chunks) - 1)
    }

    /// Every state that one event leads to.
    fn successors(&self, state: &State) -> Vec<State> {
        let mut successors = Vec::new();
        for (rank, worker) in state.workers.iter().enumerate() {
            if worker.coming != worker.done {
                // All that is on its way to the worker gets lost for good.
                let mut next = state.clone();
                next.workers[rank].coming = worker.done;
                successors.push(next);
            }
            if self.may_send(worker) {
                let mut next = state.clone();
                next.workers[rank].sent += 1;
                successors.push(next);
            }
            for chunk in 0..worker.sent {
                let mut next = state.clone();
                self.serve(&mut next, rank as u16, chunk);
                successors.push(next);
                if worker.coming & 1 << chunk != 0 {
                    let mut next = state.clone();
                    next.workers[rank].done |= 1 << chunk;
                    successors.push(next);
                }
            }
        }
        successors
    }

    /// The worker's rule: a chunk goes out once the result of the chunk before it in the same slot is held.
    fn may_send(&self, worker: &Worker) -> bool {
        let previous = worker.sent.checked_sub(self.slots);
        worker.sent < self.chunks && previous.is_none_or(|previous| worker.done & 1 << previous != 0)
    }

    /// The aggregator gets a rank's contribution to a chunk.
    fn serve(&self, state: &mut State, rank: u16, chunk: usize) {
        let job = Job { state: OPEN, epoch: EPOCH, ranks: self.ranks.into(), ..Job::default() };
        let round = self.origin.wrapping_add((chunk / self.slots) as u32);
        let bytes = contribution(rank, 0, round, vec![value(rank, chunk); LANES_PER_BLOCK]).to_bytes();
        let mut header = Header::read_from_prefix(&bytes).expect("a header").0;
        let mut payload = [U32::new(value(rank, chunk)); LANES_PER_BLOCK];

        let sets = &mut state.slots[chunk % self.slots];
        let mut slot = Slot::default();
        for (set, (head, value)) in slot.sets.iter_mut().zip(&*sets) {
            set.head = *head;
            set.values[..LANES_PER_BLOCK].fill(*value);
        }
        let outcome = contribute(&job, &mut slot, Op::SumI32, &mut header, &mut payload[..]);
        for (set, (head, value)) in slot.sets.iter().zip(sets) {
            (*head, *value) = (set.head, set.values[0]);
        }

        assert!(!matches!(outcome, Outcome::WrongRound | Outcome::Mismatch), "{outcome:?} for chunk {chunk}");
        if matches!(outcome, Outcome::Completed | Outcome::Replayed) {
            let sum: u32 = (0..self.ranks).map(|rank| value(rank, chunk)).sum();
            assert_eq!(payload[0].get(), sum, "result of chunk {chunk}");
            for (worker, number) in state.workers.iter_mut().zip(0..) {
                if header.rank == EVERYONE || header.rank == number {
                    worker.coming |= 1 << chunk;
                }
            }
        }
    }

    /// Visits every state, and asserts that from each of them the workers can still get all of their results. Wrong
    /// results and refusals are asserted on the way, in [`Self::serve`]. Returns the number of states.
    fn search(&self) -> usize {
        let start = self.start();
        let mut numbers = HashMap::from([(start.clone(), 0usize)]);
        let mut states = vec![start];
        let mut predecessors: Vec<Vec<usize>> = vec![Vec::new()];
        let mut done = Vec::new();
        let mut current = 0;
        while current < states.len() {
            if self.is_done(&states[current]) {
                done.push(current);
            }
            for next in self.successors(&states[current]) {
                let number = match numbers.entry(next) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(new) => {
                        assert!(states.len() < MOST_STATES, "a world without end");
                        states.push(new.key().clone());
                        predecessors.push(Vec::new());
                        *new.insert(states.len() - 1)
                    }
                };
                predecessors[number].push(current);
            }
            current += 1;
        }
        let mut gets_done = vec![false; states.len()];
        while let Some(state) = done.pop() {
            if !std::mem::replace(&mut gets_done[state], true) {
                done.extend(&predecessors[state]);
            }
        }
        assert!(gets_done.iter().all(|gets_done| *gets_done), "a state without a way on");
        states.len()
    }
}

#[test]
fn two_workers_share_one_slot() {
    for origin in [0, u32::MAX - 1] {
        let states = World { ranks: 2, slots: 1, chunks: 8, origin }.search();
        assert!(states > 100, "{states} states");
    }
}

#[test]
fn two_workers_share_two_slots() {
    for origin in [0, u32::MAX - 1] {
        let states = World { ranks: 2, slots: 2, chunks: 6, origin }.search();
        assert!(states > 1000, "{states} states");
    }
}

#[test]
fn three_workers_share_one_slot() {
    for origin in [0, u32::MAX - 1] {
        let states = World { ranks: 3, slots: 1, chunks: 5, origin }.search();
        assert!(states > 1000, "{states} states");
    }
}

#[test]
fn four_workers_share_one_slot() {
    for origin in [0, u32::MAX - 1] {
        let states = World { ranks: 4, slots: 1, chunks: 3, origin }.search();
        assert!(states > 1000, "{states} states");
    }
}

#[test]
fn a_worker_alone() {
    World { ranks: 1, slots: 2, chunks: 8, origin: 0 }.search();
}
