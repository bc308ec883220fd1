//! What a rank says to its daemon, and what it hears: messages for its session and from it.

use switchml_control::{JoinRequest, LeaveRequest, ResumeRequest, join_event};
use switchml_protocol::VERSION;
use switchml_protocol::capabilities::Capabilities;
use switchml_userspace_core::jobs::Threads;
use switchml_worker_core::engine::{Identity, Keys};
use switchml_worker_core::session::{self, Goodbye, Request};
use switchml_worker_core::stripes::Links;

use super::membership::{Assigned, Role};
use super::{Phase, Worker};
use crate::net::{Message, Violation, ensure};
use crate::surroundings::Surroundings;
use crate::tally::Fate;

impl Worker {
    /// Translates an event of the stream for the session.
    pub(super) fn understand(
        &mut self,
        world: &mut Surroundings<'_>,
        id: usize,
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
                let links = Links {
                    hosts: assigned.hosts,
                    own: assigned.link_speed,
                    interfaces: assigned.links,
                    slowest: assigned.slowest_link,
                    is_on_ranks_host: assigned.is_on_ranks_host,
                    has_combiners: assigned.has_combiners,
                };
                let durable = assigned.durable;
                let assigned = Assigned {
                    identity,
                    shards: std::iter::once(identity.job).chain(further).collect(),
                    slots: assigned.slots as u16,
                    max_lanes: assigned.max_lanes as u16,
                    capabilities,
                    hello_secret: assigned.hello_secret,
                    control_secret: assigned.control_secret,
                    number: assigned.aggregator,
                    move_secret: assigned.move_secret,
                    links,
                };
                if let Some(member) = self.members.get_mut(&id) {
                    member.assigned = Some(assigned);
                }
                session::News::Assigned { durable }
            }
            join_event::Event::Started(started) => {
                if self.members.get(&id).is_some_and(|member| member.started.is_some()) {
                    world.net.tally.fate(Fate::Resumed);
                }
                session::News::Started { lanes: started.lanes as u16 }
            }
            join_event::Event::Aborted(aborted) if aborted.stops => {
                let ranks = narrow(&aborted.ranks);
                session::News::Stops { reason: aborted.reason, ranks }
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

    pub(super) fn send(&mut self, world: &mut Surroundings<'_>, id: usize, request: Request) {
        let Some(membership) = self.members.get_mut(&id) else { return };
        let Some(connection) = membership.connection else { return };
        membership.unanswered += 1;
        let member = membership.member(self.rank);
        let (role, aggregator) = (membership.role, membership.aggregator);
        let message = match request {
            Request::Join => Message::Join(self.join_request(world, (role, aggregator))),
            Request::Resume => {
                Message::Resume(ResumeRequest { member: Some(member), ..Default::default() })
            }
            Request::Ready { lanes, needs_copies } => {
                Message::Ready(member, lanes, needs_copies, membership.taker)
            }
            Request::Unready => Message::Unready(member),
            Request::ReportCalls { last, named } => {
                let calls = match &self.phase {
                    Phase::Running(calls) => calls.open(last),
                    _ => Vec::new(),
                };
                let named = named.into_iter().flatten().map(u32::from).collect();
                Message::ReportCalls(member, calls, named)
            }
            Request::ReportNoMulticast => Message::ReportNoMulticast(member),
            Request::Leave(Goodbye { error, ranks, lost_aggregator }) => {
                if !matches!(self.phase, Phase::Leaving(_)) && role != Role::Leaves {
                    // The job did not start in time: the others will hear whose fault that is.
                    world.oracle.blame(&self.who(), ranks.iter().copied().chain([self.rank]));
                }
                let ranks = ranks.into_iter().map(u32::from).collect();
                Message::Leave(LeaveRequest {
                    member: Some(member),
                    error,
                    ranks,
                    lost_aggregator,
                    ..Default::default()
                })
            }
        };
        world.net.ask(connection, message);
    }

    fn join_request(
        &self,
        world: &Surroundings<'_>,
        (role, aggregator): (Role, usize),
    ) -> JoinRequest {
        let job_name = format!("job {}", self.job);
        let request = JoinRequest {
            rank: self.rank.into(),
            world_size: self.plan(world).ranks.into(),
            protocol_version: VERSION.into(),
            ..JoinRequest::default()
        };
        if let (Role::Awaits(stripe), Some(moving)) = (role, &self.moving) {
            let (job_name, data_threads) = moving.wish(&job_name, stripe);
            return JoinRequest { job_name, data_threads, aggregators: 1, ..request };
        }
        let Threads { most: data_threads, host } = world.scenario.threads[self.index].clone();
        let aggregators = world.scenario.aggregators() as u32;
        let weight = world.scenario.weights.get(aggregator).copied().unwrap_or_default();
        JoinRequest { job_name, data_threads, host, aggregators, weight, ..request }
    }
}
