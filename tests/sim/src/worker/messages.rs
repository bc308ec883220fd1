//! What a rank says to its daemon, and what it hears: messages for its session and from it.

use switchml_control::{JoinRequest, LeaveRequest, ResumeRequest, join_event};
use switchml_protocol::VERSION;
use switchml_protocol::capabilities::Capabilities;
use switchml_userspace_core::jobs::Threads;
use switchml_worker_core::engine::{Identity, Keys};
use switchml_worker_core::session::{self, Goodbye, Request};

use super::{Assigned, Phase, Worker};
use crate::net::{Message, Violation, ensure};
use crate::surroundings::Surroundings;
use crate::tally::Fate;

impl Worker {
    /// Translates an event of the stream for the session.
    pub(super) fn understand(
        &mut self,
        world: &mut Surroundings<'_>,
        event: join_event::Event,
    ) -> Result<session::News, Violation> {
        let narrow = |ranks: &[u32]| ranks.iter().map(|rank| *rank as u16).collect::<Vec<_>>();
        Ok(match event {
            join_event::Event::Waiting(waiting) => {
                let missing = narrow(&waiting.missing_ranks);
                let rank = self.rank;
                ensure!(!missing.contains(&rank), "rank {rank} is told that it is missing itself");
                session::News::Waiting(missing)
            }
            join_event::Event::Assigned(assigned) => {
                let capabilities = Capabilities::from_bits_truncate(assigned.capabilities);
                let keys =
                    Keys::from_bytes(&assigned.member_key, &assigned.job_key).unwrap_or_default();
                let identity = Identity {
                    job: assigned.job as u16,
                    epoch: assigned.epoch,
                    rank: self.rank,
                    ranks: self.plan(world).ranks,
                    keys,
                };
                let further = assigned.further_shards.iter().map(|shard| shard.job as u16);
                self.assigned = Some(Assigned {
                    identity,
                    shards: std::iter::once(identity.job).chain(further).collect(),
                    slots: assigned.slots as u16,
                    max_lanes: assigned.max_lanes as u16,
                    capabilities,
                    hello_secret: assigned.hello_secret,
                    control_secret: assigned.control_secret,
                });
                session::News::Assigned { durable: assigned.durable }
            }
            join_event::Event::Started(started) => {
                if matches!(self.phase, Phase::Running(_) | Phase::Failed { .. }) {
                    world.net.tally.fate(Fate::Resumed);
                }
                session::News::Started { lanes: started.lanes as u16 }
            }
            join_event::Event::Aborted(aborted) => session::News::Aborted {
                reason: aborted.reason,
                ranks: narrow(&aborted.ranks),
                calls: (aborted.calls.into_iter())
                    .map(|made| session::MadeCall {
                        ranks: narrow(&made.ranks),
                        number: made.number,
                        call: made.call,
                    })
                    .collect(),
            },
            join_event::Event::Left(left) => session::News::Left(left.rank as u16),
            join_event::Event::CallsWanted(_) => session::News::CallsWanted,
        })
    }

    pub(super) fn send(&mut self, world: &mut Surroundings<'_>, request: Request) {
        let Some(connection) = self.connection else { return };
        let member = self.member();
        let message = match request {
            Request::Join => Message::Join(self.join_request(world)),
            Request::Resume => {
                Message::Resume(ResumeRequest { member: Some(member), ..Default::default() })
            }
            Request::Ready { lanes, needs_copies } => Message::Ready(member, lanes, needs_copies),
            Request::Unready => Message::Unready(member),
            Request::ReportCalls { last, named } => {
                let calls = match &self.phase {
                    Phase::Running(calls) | Phase::Failed { calls, .. } => calls.open(last),
                    _ => Vec::new(),
                };
                let named = named.into_iter().flatten().map(u32::from).collect();
                Message::ReportCalls(member, calls, named)
            }
            Request::ReportNoMulticast => Message::ReportNoMulticast(member),
            Request::Leave(Goodbye { error, ranks }) => {
                if !matches!(self.phase, Phase::Leaving(_)) {
                    // The job did not start in time: the others will hear whose fault that is.
                    world.oracle.blame(self.who(), ranks.iter().copied().chain([self.rank]));
                }
                let ranks = ranks.into_iter().map(u32::from).collect();
                Message::Leave(LeaveRequest {
                    member: Some(member),
                    error,
                    ranks,
                    ..Default::default()
                })
            }
        };
        self.unanswered += 1;
        world.net.ask(connection, message);
    }

    fn join_request(&self, world: &Surroundings<'_>) -> JoinRequest {
        let Threads { most, host } = world.scenario.threads[self.index].clone();
        JoinRequest {
            job_name: format!("job {}", self.job),
            rank: self.rank.into(),
            world_size: self.plan(world).ranks.into(),
            data_threads: most,
            host,
            protocol_version: VERSION.into(),
            ..JoinRequest::default()
        }
    }
}
