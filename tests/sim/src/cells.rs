//! The data plane of a simulated combiner: the real one's cells and tables in memory, on links that
//! fail.

use switchml_protocol::DATA_PORT;
use switchml_protocol::bpf_types::fanout::Way;
use switchml_protocol::bpf_types::job::{ABORTED, Binding, VACANT};
use switchml_protocol::node::egress::{self, Copies, Hop};
use switchml_protocol::node::ingress::Origin;
use switchml_protocol::node::{Served, Target};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::root::admission::Members;
use switchml_protocol::wire::header::{Header, Kind, flags};
use switchml_userspace_core::data_plane::{Error, ServesJobs};
use switchml_userspace_core::job_spec::JobSpec;
use switchml_userspace_core::memory_cells::MemoryCells;
use switchml_userspace_core::memory_tables::answer;
use tracing::trace;
use zerocopy::FromBytes;

use crate::net::{Above, Clock, Net, Place, Violation, ensure};
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
        Self { index, plan, memory: MemoryCells::new(plan.cells, DATA_PORT) }
    }

    /// Forgets all that the cells hold, and nothing else (rule 27.12).
    pub fn forget(&mut self) {
        let before =
            std::mem::replace(&mut self.memory, MemoryCells::new(self.plan.cells, DATA_PORT));
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
        let mark = (port == DATA_PORT).then(|| self.let_pass(net, &mut packet)).flatten();
        let at = (port, (net.now / 1_000) as u32);
        let (Served { outcome, target }, ahead) = self.memory.serve(&(), &mut packet, &origin, at);
        if let Some(mark) = mark.filter(|_| matches!(outcome, Outcome::Passed | Outcome::Flushed))
            && let Ok((header, _)) = Header::mut_from_prefix(&mut packet)
        {
            header.flags = header.flags & !flags::RETRANSMIT | mark;
        }
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
        if let Some(ahead) = ahead {
            self.send(net, binding, target, &ahead, true);
        }
        // A packet made here from verified values is intact.
        let is_made = matches!(outcome, Outcome::Combined | Outcome::Evicted);
        let packet = answer(&packet).unwrap_or_default();
        self.send(net, binding, target, packet, intact || is_made);
        Ok(())
    }

    /// Marks a contribution as a resend, which passes, if the plan says so (rule 27.12). The mark
    /// that it had before.
    fn let_pass(&self, net: &mut Net, packet: &mut [u8]) -> Option<u8> {
        let (header, _) = Header::mut_from_prefix(packet).ok()?;
        if header.kind == Kind::Hello as u8 {
            return None;
        }
        let is_let = net.rng.chance(self.plan.let_pass);
        if is_let {
            net.tally.fault(Fault::LetPass);
        }
        let mark = header.flags & flags::RETRANSMIT;
        if is_let || header.job.get() >= self.plan.jobs {
            header.flags |= flags::RETRANSMIT;
        }
        Some(mark)
    }

    /// Sends what became of a packet from `binding`.
    fn send(&self, net: &mut Net, binding: &Binding, target: Target, packet: &[u8], intact: bool) {
        let Ok((header, _)) = Header::ref_from_prefix(packet) else { return };
        let (number, rank, tables) = (header.job.get(), header.rank.get(), &self.memory.tables);
        let above = Above::Combiner(self.index);
        let mut hop = Hop::default();
        match egress::route(tables, target, (number, rank), 0, &mut hop) {
            None | Some(Copies::None) => {}
            Some(Copies::Back) => net.to_place(above, binding, packet, intact),
            Some(Copies::One) => match target {
                Target::Parent { from_port, .. } => {
                    net.to_parent(self.index, from_port, packet, intact);
                }
                _ => net.to_place(above, &hop.to, packet, intact),
            },
            Some(Copies::Each) => {
                let (_, places) = tables.places(number).unwrap_or_default();
                for (place, _) in places {
                    net.to_place(above, &place, packet, intact);
                }
            }
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
        Ok(self.memory.tables.home(job, rank))
    }
}
