//! A simulated combiner: the real combiner's cells and tables in memory, on links that fail. Its
//! control plane is not simulated: the worker's requests reach the root's daemon as if the combiner
//! had passed them on, and the combiner is told what it would have read in the answers.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use switchml_control::Assigned;
use switchml_protocol::DATA_PORT;
use switchml_protocol::aggregator::Members;
use switchml_protocol::auth::Key;
use switchml_protocol::fanout::Way;
use switchml_protocol::header::{Header, Kind, flags};
use switchml_protocol::job::{Binding, VACANT};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::relay;
use switchml_protocol::share::Share;
use switchml_protocol::shell::Origin;
use switchml_userspace_core::job_spec::JobSpec;
use switchml_userspace_core::memory_cells::MemoryCells;
use switchml_userspace_core::memory_tables::answer;
use tracing::trace;
use zerocopy::FromBytes;

use crate::net::{Clock, Net, Place, Violation, address_of_combiner, ensure, parent_address};
use crate::scenario::CombinerPlan;
use crate::tally::Fault;

/// See the module.
pub struct Combiner {
    index: usize,
    plan: CombinerPlan,
    memory: MemoryCells,
    is_down: bool,
    /// Destinations of copies of RESULTs to all, by job, until another rank is bound.
    places: BTreeMap<u16, Vec<Binding>>,
    /// How each rank is reached, by job and rank.
    ways: BTreeMap<(u16, u16), Way>,
}

impl Combiner {
    /// A combiner without jobs.
    pub fn new(index: usize, plan: CombinerPlan) -> Self {
        let memory = MemoryCells::new(plan.cells);
        let (places, ways) = (BTreeMap::new(), BTreeMap::new());
        Self { index, plan, memory, is_down: false, places, ways }
    }

    /// Whether the combiner is down.
    pub fn is_down(&self) -> bool {
        self.is_down
    }

    /// The combiner's host restarts: its state is lost.
    pub fn crash(&mut self) {
        *self = Self { is_down: true, ..Self::new(self.index, self.plan) };
    }

    /// The combiner is back.
    pub fn start(&mut self) {
        self.is_down = false;
    }

    /// Forgets all that it holds, and nothing else (rule 27.12).
    pub fn forget(&mut self) {
        let before = std::mem::replace(&mut self.memory, MemoryCells::new(self.plan.cells));
        self.memory.tables = before.tables;
    }

    /// Stops letting contributions pass without need.
    pub fn heal(&mut self) {
        self.plan.let_pass = 0;
        self.is_down = false;
    }

    /// Learns from the `Assigned` of a rank below; `is_own` if no other combiner is between.
    pub fn learn(&mut self, assigned: &Assigned, rank: u16, is_own: bool) {
        let further = assigned.further_shards.iter().map(|shard| shard.job as u16);
        for number in std::iter::once(assigned.job as u16).chain(further) {
            self.learn_shard(number, assigned, rank, is_own);
        }
    }

    fn learn_shard(&mut self, number: u16, assigned: &Assigned, rank: u16, is_own: bool) {
        let known = self.memory.tables.job(number);
        if !known.is_some_and(|job| job.state != VACANT && job.epoch == assigned.epoch) {
            self.memory.tables.open(&JobSpec {
                number,
                epoch: assigned.epoch,
                secrets: vec![0; assigned.world_size as usize],
                keys: Vec::new(),
                key: Key::NONE,
                slots: 0..assigned.slots,
                address: address_of_combiner(self.index).into(),
                group: ([0; 4].into(), 0),
                parent: Some(SocketAddr::V4(parent_address(self.plan.parent))),
            });
            self.ways.retain(|(job, _), _| *job != number);
        }
        self.memory.tables.admit(number, rank, assigned.hello_secret);
        self.ways.insert((number, rank), if is_own { Way::Copy } else { Way::Combiner });
        self.places.remove(&number);
    }

    /// A datagram at one of its ports, from `binding`, as it was sent if `intact`.
    pub fn serve(
        &mut self,
        net: &mut Net,
        (binding, port): (&Binding, u16),
        packet: &[u8],
        congested: bool,
        intact: bool,
    ) -> Result<(), Violation> {
        if self.is_down {
            return Ok(());
        }
        let mut packet = packet.to_vec();
        let origin = Origin { binding: *binding, congested };
        let is_below = port == DATA_PORT;
        let outcome = match is_below {
            true => self.up(net, &mut packet, &origin, intact),
            false => self.memory.down(&mut packet, &origin, DATA_PORT, port),
        };
        net.tally.combined[outcome as usize] += 1;
        trace!("{} combiner {}: {outcome:?} at port {port}", Clock(net.now), self.index);
        let is_taken = !matches!(outcome.action(), Action::Drop)
            || matches!(outcome, Outcome::Held | Outcome::Duplicate);
        ensure!(
            !is_taken || Place::of(binding) != Place::Stranger,
            "combiner {}: {outcome:?} for a stranger",
            self.index
        );
        self.pass_down(net, outcome, &packet, intact);
        Ok(())
    }

    /// Receives a datagram from below, and sends on what leaves.
    fn up(&mut self, net: &mut Net, packet: &mut [u8], origin: &Origin, intact: bool) -> Outcome {
        let Ok((header, _)) = Header::mut_from_prefix(packet) else { return Outcome::Truncated };
        let (number, mark) = (header.job.get(), header.flags & flags::RETRANSMIT);
        let port = relay::rank_port(DATA_PORT, number, Share::of(header).highest());
        let (now, index) = ((net.now / 1_000) as u32, self.index);
        if header.kind != Kind::Hello as u8 && self.lets_pass(net, number) {
            header.flags |= flags::RETRANSMIT;
        }
        let mut ahead = None;
        let first = |first: &[u8]| ahead = Some(first.to_vec());
        let outcome = self.memory.up(packet, origin, now, drop, first);
        if matches!(outcome, Outcome::Passed | Outcome::Flushed)
            && let Ok((header, _)) = Header::mut_from_prefix(packet)
        {
            header.flags = header.flags & !flags::RETRANSMIT | mark;
        }
        if outcome == Outcome::HelloPassed {
            self.places.remove(&number);
        }
        if outcome.action() == Action::Up {
            if let Some(first) = ahead {
                net.to_parent(index, port, &first, true);
            }
            // A packet made here from verified values is intact.
            let is_made = matches!(outcome, Outcome::Combined | Outcome::Evicted);
            net.to_parent(index, port, answer(packet).unwrap_or_default(), intact || is_made);
        }
        outcome
    }

    /// Whether a contribution passes like a resend (rule 27.12).
    fn lets_pass(&self, net: &mut Net, job: u16) -> bool {
        let is_let = net.rng.chance(self.plan.let_pass);
        if is_let {
            net.tally.fault(Fault::LetPass);
        }
        is_let || job >= self.plan.jobs
    }

    /// Passes on an answer of the parent's.
    fn pass_down(&mut self, net: &mut Net, outcome: Outcome, packet: &[u8], intact: bool) {
        let Ok((header, _)) = Header::ref_from_prefix(packet) else { return };
        let (number, rank) = (header.job.get(), header.rank.get());
        match outcome.action() {
            Action::Down => {
                if let Some(binding) = self.memory.tables.binding(number, rank) {
                    net.to_place(Some(self.index), &binding, packet, intact);
                }
            }
            Action::Broadcast => {
                let index = self.index;
                for place in self.places_of(number) {
                    net.to_place(Some(index), place, packet, intact);
                }
            }
            _ => {}
        }
    }

    /// Destinations of copies of a job's RESULTs to all.
    fn places_of(&mut self, number: u16) -> &[Binding] {
        let Self { memory, places, ways, .. } = self;
        places.entry(number).or_insert_with(|| {
            let ways = ways.range((number, 0)..=(number, u16::MAX));
            let ways: Vec<_> = ways.map(|(&(_, rank), way)| (rank, *way)).collect();
            memory.tables.start(number, &ways);
            memory.tables.places(number).map_or_else(Vec::new, |(_, places)| {
                places.into_iter().map(|(place, _)| place).collect()
            })
        })
    }
}
