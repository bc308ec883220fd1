//! The job table as its tests see it.

use std::net::IpAddr;
use std::time::Duration;

use rand::SeedableRng;
use switchml_protocol::bpf_types::job::Binding;

use super::super::*;

/// A job table that keeps its log lines apart and returns its other effects.
pub struct Table {
    table: JobTable,
    /// The log lines so far.
    pub log: Vec<(Level, String)>,
}

impl Table {
    pub fn new(limits: Limits, data_address: Option<IpAddr>, seed: u64) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        Self { table: JobTable::new(limits, data_address, rng), log: Vec::new() }
    }

    pub fn with_quotas(self, quotas: Quotas) -> Self {
        Self { table: self.table.with_quotas(quotas), ..self }
    }

    pub fn with_tags(self) -> Self {
        Self { table: self.table.with_tags(), ..self }
    }

    fn keep(&mut self, effects: Vec<Effect>) -> Vec<Effect> {
        let mut others = Vec::new();
        for effect in effects {
            match effect {
                Effect::Log(level, line) => self.log.push((level, line)),
                other => others.push(other),
            }
        }
        others
    }

    pub fn restore(&mut self, saved: Vec<Job>, epochs: Epochs) -> Vec<Effect> {
        self.table.continue_epochs(epochs);
        let effects = saved.into_iter().flat_map(|job| self.table.restore(job)).collect();
        self.keep(effects)
    }

    pub fn resume(
        &mut self,
        id: MemberId,
        peer: IpAddr,
    ) -> Result<(StreamId, Vec<Effect>), MemberError> {
        self.resume_by(id, Origin::direct(peer))
    }

    pub fn resume_by(
        &mut self,
        id: MemberId,
        origin: Origin,
    ) -> Result<(StreamId, Vec<Effect>), MemberError> {
        let (stream, effects) = self.table.resume(id, origin)?;
        Ok((stream, self.keep(effects)))
    }

    pub fn expire(&mut self) -> Vec<Effect> {
        let effects = self.table.expire();
        self.keep(effects)
    }

    pub fn lose_below(
        &mut self,
        id: MemberId,
        what: &str,
        combiner: &str,
    ) -> Result<Vec<Effect>, MemberError> {
        let effects = self.table.lose_below(id, what, combiner)?;
        Ok(self.keep(effects))
    }

    pub fn give_up_on(&mut self, stream: StreamId) -> Vec<Effect> {
        let effects = self.table.give_up_on(stream);
        self.keep(effects)
    }

    pub fn lose_port(&mut self, port: u32, what: &str) -> Vec<Effect> {
        let effects = self.table.lose_port(port, what);
        self.keep(effects)
    }

    pub fn join(&mut self, joiner: &Joiner) -> Result<(StreamId, Vec<Effect>), JoinError> {
        let (stream, effects) = self.table.join(joiner)?;
        Ok((stream, self.keep(effects)))
    }

    pub fn ready(
        &mut self,
        id: MemberId,
        lanes: u32,
        bindings: impl IntoIterator<Item = Binding>,
    ) -> Result<Vec<Effect>, MemberError> {
        let effects = self.table.ready(id, lanes, false, bindings)?;
        Ok(self.keep(effects))
    }

    /// A rank is ready that needs copies, unless the group reaches it, and reads those of `taker`.
    pub fn ready_to_read(
        &mut self,
        id: MemberId,
        by_group: bool,
        taker: Option<u32>,
        bindings: impl IntoIterator<Item = Binding>,
    ) -> Result<Vec<Effect>, MemberError> {
        taker.map_or(Ok(()), |taker| self.table.read_along(id, taker))?;
        let effects = self.table.ready(id, 352, !by_group, bindings)?;
        Ok(self.keep(effects))
    }

    pub fn report_calls(
        &mut self,
        id: MemberId,
        calls: Vec<control::Call>,
        named: &[u32],
    ) -> Result<Vec<Effect>, MemberError> {
        let effects = self.table.report_calls(id, calls, named)?;
        Ok(self.keep(effects))
    }

    pub fn report_no_multicast(&mut self, id: MemberId) -> Result<Vec<Effect>, MemberError> {
        let effects = self.table.report_no_multicast(id)?;
        Ok(self.keep(effects))
    }

    pub fn report_share(&mut self, id: MemberId, share: u32) -> Result<(), MemberError> {
        self.table.report_share(id, share)
    }

    pub fn report_path(&mut self, id: MemberId, path: control::Path) -> Result<(), MemberError> {
        self.table.report_path(id, path)
    }

    pub fn report_round_trips(
        &mut self,
        id: MemberId,
        report: &control::Times,
    ) -> Result<(), MemberError> {
        self.table.report_round_trips(id, report)
    }

    pub fn round_trips(&self) -> &switchml_protocol::bpf_types::times::Times {
        self.table.round_trips()
    }

    pub fn conclude(&mut self, number: u16, epoch: u32) -> Vec<Effect> {
        let effects = self.table.conclude(number, epoch);
        self.keep(effects)
    }

    pub fn leave(
        &mut self,
        id: MemberId,
        error: &str,
        blamed: &[u32],
    ) -> Result<Vec<Effect>, MemberError> {
        let effects = self.table.leave(id, error, blamed)?;
        Ok(self.keep(effects))
    }

    pub fn be_lost(&mut self, id: MemberId, error: &str) -> Result<Vec<Effect>, MemberError> {
        let effects = self.table.be_lost(id, error)?;
        Ok(self.keep(effects))
    }

    pub fn disconnect(&mut self, stream: StreamId) -> Vec<Effect> {
        let effects = self.table.disconnect(stream, Duration::ZERO);
        self.keep(effects)
    }

    pub fn fall_silent(&mut self, stream: StreamId, silence: Duration) -> Vec<Effect> {
        let effects = self.table.disconnect(stream, silence);
        self.keep(effects)
    }

    pub fn fail(&mut self, shard: u16, reason: &str) -> Vec<Effect> {
        let effects = self.table.fail(shard, reason);
        self.keep(effects)
    }

    pub fn shut_down(&mut self) -> Vec<Effect> {
        let effects = self.table.shut_down();
        self.keep(effects)
    }
}

impl std::ops::Deref for Table {
    type Target = JobTable;

    fn deref(&self) -> &JobTable {
        &self.table
    }
}
