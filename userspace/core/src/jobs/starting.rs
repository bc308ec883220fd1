//! Ranks are ready, and their job starts.

use switchml_control as control;
use switchml_control::join_event::Event;
use switchml_protocol::LANES_PER_BLOCK;
use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::capabilities::Capabilities;

use super::error::MemberError;
use super::job::State;
use super::{Effect, JobTable, MemberId, info, warn};
use crate::limits::{Fanout, Limits};

impl JobTable {
    /// Rules 22.4 and 22.5: a rank's paths are open for packets of `lanes`, and the job's group
    /// reaches it, unless it `needs_copies`; `bindings` are where the data plane has heard it, one
    /// for each shard in which it has.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; the table is as before.
    pub fn ready(
        &mut self,
        id: MemberId,
        lanes: u32,
        needs_copies: bool,
        bindings: impl IntoIterator<Item = Binding>,
    ) -> Result<Vec<Effect>, MemberError> {
        let Limits { max_lanes, fanout, .. } = self.limits;
        let job = self.job_of(id)?;
        let fanout = job.fanout(fanout);
        let lanes = match u16::try_from(lanes) {
            Ok(lanes)
                if lanes > 0 && usize::from(lanes) % LANES_PER_BLOCK == 0 && lanes <= max_lanes =>
            {
                lanes
            }
            _ => return Err(MemberError::Lanes { lanes, max_lanes }),
        };
        if job.state != State::Assigned {
            return Err(MemberError::NotAssigned { rank: id.rank, state: job.state.name() });
        }
        let bindings: Vec<_> = bindings.into_iter().collect();
        if bindings.len() != job.shards.len() {
            return Err(MemberError::NoHello(id.rank));
        }
        let Some(member) = job.member_mut(id.rank) else { unreachable!("found above") };
        member.ready = Some(lanes);
        member.by_group = match fanout {
            Fanout::Auto => !needs_copies,
            Fanout::Multicast => true,
            Fanout::Unicast => false,
        };
        member.ports = bindings.iter().map(|binding| binding.ifindex).collect();
        let from = bindings.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let (number, name, rank) = (job.number, &job.name, id.rank);
        let mut effects = vec![info(format!(
            "job {number} {name:?}: rank {rank} ready at {from}, {lanes} lanes"
        ))];
        let Some(lanes) = job.common_lanes() else { return Ok(effects) };
        let fanout = job.describe_fanout(fanout);
        effects.push(info(format!("job {number} {name:?}: started, {lanes} lanes{fanout}")));
        job.state = State::Started { lanes };
        self.tally.started += 1;
        effects.extend(self.warn_of_forgery(number));
        effects.extend(self.save(number));
        let Some(job) = self.jobs.get(&number) else { unreachable!("found above") };
        let ways = job.ways();
        effects.extend(job.on_shards(|shard| Effect::Start(shard, ways.clone())));
        effects.extend(job.tell_all(&Event::Started(control::Started { lanes: lanes.into() })));
        Ok(effects)
    }

    /// Says, when the first job starts whose packets have no tags and could, who can forge them.
    fn warn_of_forgery(&mut self, number: u16) -> Option<Effect> {
        let job = self.jobs.get(&number)?;
        let is_alone = job.present().all(|(_, member)| member.peer.is_loopback());
        let has_choice = job.features(&self.limits).used().contains(Capabilities::TAGS);
        if !job.key.is_none() || !has_choice || is_alone || self.has_warned_of_forgery {
            return None;
        }
        self.has_warned_of_forgery = true;
        Some(warn(format!(
            "job {number} {:?}: packets have no tags, so anyone on a rank's network, at the same \
             port of the aggregator, can forge its results; --packet-tags (with TLS) prevents \
             that. This warning is shown once",
            job.name
        )))
    }
}
