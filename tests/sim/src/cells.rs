//! The data plane of a simulated combiner: the real one's cells and tables in memory, on links that
//! fail.

use switchml_protocol::DATA_PORT;
use switchml_protocol::fanout::Way;
use switchml_protocol::header::{Header, Kind, flags};
use switchml_protocol::job::{ABORTED, Binding, VACANT};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::relay;
use switchml_protocol::share::Share;
use switchml_protocol::shell::Origin;
use switchml_userspace_core::data_plane::{Error, ServesJobs};
use switchml_userspace_core::job_spec::JobSpec;
use switchml_userspace_core::memory_cells::MemoryCells;
use switchml_userspace_core::memory_tables::answer;
use tracing::trace;
use zerocopy::FromBytes;

use crate::net::{Clock, Net, Place, Violation, ensure};
use crate::scenario::CombinerPlan;
use crate::tally::Fault;

/// See the module.
pub struct Cells {
    index: usize,
    plan: CombinerPlan,
    memory: MemoryCells,
}

impl Cells {
    /// The cells of the combiner with this number, without jobs.
    pub fn new(index: usize, plan: CombinerPlan) -> Self {
        Self { index, plan, memory: MemoryCells::new(plan.cells) }
    }

    /// Forgets all that the cells hold, and nothing else (rule 27.12).
    pub fn forget(&mut self) {
        let before = std::mem::replace(&mut self.memory, MemoryCells::new(self.plan.cells));
        self.memory.tables = before.tables;
    }

    /// Stops letting contributions pass without need.
    pub fn heal(&mut self) {
        self.plan.let_pass = 0;
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
        ensure!(
            outcome != Outcome::BadCheck
                || net.tally.is_damaged()
                || Place::of(binding) == Place::Stranger,
            "combiner {}: a wrong check word",
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
                let (_, places) = self.memory.tables.places(number).unwrap_or_default();
                for (place, _) in places {
                    net.to_place(Some(self.index), &place, packet, intact);
                }
            }
            _ => {}
        }
    }
}

impl ServesJobs for Cells {
    fn open(&self, job: &JobSpec) -> Result<(), Error> {
        self.memory.tables.open(job);
        Ok(())
    }

    fn admit(&self, job: u16, rank: u16, secret: u32) -> Result<(), Error> {
        self.memory.tables.admit(job, rank, secret);
        Ok(())
    }

    fn start(&self, job: u16, ways: &[(u16, Way)]) -> Result<(), Error> {
        self.memory.tables.start(job, ways);
        Ok(())
    }

    fn abort(&self, job: u16) -> Result<(), Error> {
        self.memory.tables.set_state(job, ABORTED);
        Ok(())
    }

    fn close(&self, job: u16) -> Result<(), Error> {
        self.memory.tables.set_state(job, VACANT);
        Ok(())
    }

    fn binding(&self, job: u16, rank: u16) -> Result<Option<Binding>, Error> {
        Ok(self.memory.tables.binding(job, rank))
    }
}
