//! Ranks join, and jobs wait until all ranks have.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use switchml_control as control;
use switchml_control::join_event::Event;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::features::{JobShape, Reason};
use switchml_protocol::wire::auth::Key;

use super::error::JoinError;
use super::job::{Job, Member, Presence, State};
use super::lately::INCOMPLETE;
use super::paths::Paths;
use super::rack::{Rack, in_words, peer_of};
use super::stripe::{Link, Stripe};
use super::{
    Effect, JobKey, JobTable, MAX_HOST_LEN, MAX_NAME_LEN, MAX_TENANT_LEN, MAX_WAITING,
    MAX_WAITING_OF_HOST, StreamId, Threads, info,
};
use rand::Rng;

/// Most other aggregators of a job that are kept, and bytes of each address.
const MOST_OTHERS: usize = 16;
const MAX_ADDRESS_LEN: usize = 64;

/// A rank that wants to join.
#[derive(Clone, Debug)]
pub struct Joiner {
    /// Name of the job.
    pub name: String,
    /// The tenant of the rank's job token; empty if no token is asked for.
    pub tenant: String,
    /// The rank.
    pub rank: u32,
    /// Number of ranks of the job.
    pub world_size: u32,
    /// Source address of the rank's control connection.
    pub peer: IpAddr,
    /// Name of the rank's host, as the rank says; may be empty.
    pub host_name: String,
    /// The address by which the rank reached the daemon.
    pub local: IpAddr,
    /// The data threads that the rank can use.
    pub threads: Threads,
    /// What the rank knows of the job's aggregators.
    pub stripe: Stripe,
    /// The links between the rank and the aggregator.
    pub link: Link,
    /// The combiners between the rank and the daemon.
    pub via: Vec<control::Combiner>,
    /// The job's other aggregators, for people.
    pub others: Vec<String>,
    /// The lost aggregator in whose place the job goes on here, for people; may be empty.
    pub in_place_of: String,
    /// The time of the request.
    pub at: Instant,
}

impl Joiner {
    /// The rank that this request is from: of this tenant, at this end of the connection to ours,
    /// which leads over this link if that is known.
    pub fn new(
        request: control::JoinRequest,
        tenant: String,
        (peer, local): (IpAddr, IpAddr),
        own: Option<(String, u64)>,
        at: Instant,
    ) -> Self {
        Self {
            name: request.job_name,
            tenant,
            rank: request.rank,
            world_size: request.world_size,
            peer,
            host_name: request.host_name,
            local,
            threads: Threads { most: request.data_threads, host: request.host },
            stripe: Stripe { aggregators: request.aggregators.max(1), weight: request.weight },
            link: Link { of_rank: request.link_speed, own },
            via: request.via,
            others: plain(request.other_aggregators.iter().take(MOST_OTHERS)),
            in_place_of: plain([&request.in_place_of]).concat(),
            at,
        }
    }
}

impl JobTable {
    /// Whether ranks of jobs here may send to combiners.
    fn check_combiner(&self, combiner: &control::Combiner) -> Result<(), JoinError> {
        let job = JobShape { has_tags: self.has_tags, has_combiners: true, ..JobShape::default() };
        match self.limits.features(job).why_not(Capabilities::PARTIAL_SUMS) {
            None => Ok(()),
            Some(Reason::Tags) => Err(JoinError::Tags(in_words(combiner))),
            Some(Reason::NotOffered | Reason::Combiners | Reason::ManyRanks | Reason::Ipv6) => {
                Err(JoinError::NoPartialSums(in_words(combiner)))
            }
        }
    }

    /// Rule 22.1: a rank joins. Its stream is returned; the effects may tell it something at once.
    ///
    /// # Errors
    ///
    /// [`JoinError`]; only the tenant's joins are counted, the table is as before otherwise.
    pub fn join(&mut self, joiner: &Joiner) -> Result<(StreamId, Vec<Effect>), JoinError> {
        check_joiner(joiner, self.limits.most_ranks())?;
        self.count_join(&joiner.tenant, joiner.at)?;
        if let Some(combiner) = joiner.via.last() {
            self.check_combiner(combiner)?;
        }
        let local = self.data_address.unwrap_or(joiner.local);
        if matches!(local, IpAddr::V6(local) if local.is_unicast_link_local()) {
            return Err(JoinError::LinkLocal(local));
        }
        let assigned = self.jobs.values().find(|job| job.name == joiner.name && !job.is_ending());
        match self.waiting.get(&joiner.name).or(assigned) {
            Some(job) => check_fits(job, joiner)?,
            None => self.create(joiner)?,
        }
        let stream = self.next_stream.take();
        let (hello_secret, control_secret) = (self.rng.next_u32(), self.rng.next_u64());
        let key = self.new_key();
        let presence = Presence::Here(stream);
        let member = Member {
            presence,
            rack: Rack::new(&joiner.via),
            is_behind: !joiner.via.is_empty(),
            why_cut: String::new(),
            host_name: plain_host_name(&joiner.host_name),
            peer: peer_of(&joiner.via, joiner.peer),
            local,
            hello_secret,
            control_secret,
            key,
            threads: joiner.threads.clone(),
            link: joiner.link.clone(),
            ready: None,
            ports: BTreeSet::new(),
            by_group: false,
            taker: None,
            has_no_multicast: false,
            paths: Paths::default(),
        };
        let place = member.place();
        let Some(job) = self.waiting.get_mut(&joiner.name) else {
            unreachable!("found or created above")
        };
        job.members[joiner.rank as usize] = Some(member);
        self.streams.insert(stream, (JobKey::Waiting(joiner.name.clone()), joiner.rank));
        let missing = job.missing().len();
        let Joiner { name, rank, world_size, .. } = joiner;
        let mut effects = vec![info(format!(
            "job {name:?}: rank {rank} of {world_size} joined from {place}, {missing} missing"
        ))];
        effects.extend(match missing {
            0 => self.assign(name),
            _ => self.tell_missing(name),
        });
        Ok((stream, effects))
    }

    /// A random key; [`Key::NONE`] if packets have no tags.
    fn new_key(&mut self) -> Key {
        if !self.has_tags {
            return Key::NONE;
        }
        Key([self.rng.next_u64(), self.rng.next_u64()])
    }

    /// A new job without members, which waits for them.
    fn create(&mut self, joiner: &Joiner) -> Result<(), JoinError> {
        self.check_quota(joiner)?;
        let begun_there = self.waiting.values().filter(|job| job.begun_from == Some(joiner.peer));
        let (waiting, of_host, peer) = (self.waiting.len(), begun_there.count(), joiner.peer);
        if waiting >= MAX_WAITING || of_host >= MAX_WAITING_OF_HOST {
            return Err(JoinError::TooManyWaiting { waiting, of_host, peer });
        }
        let job = Job {
            number: 0,
            name: joiner.name.clone(),
            epoch: 0,
            slots_per_shard: 0,
            shards: Vec::new(),
            state: State::Waiting,
            mismatch: None,
            tenant: joiner.tenant.clone(),
            stripe: joiner.stripe,
            share: None,
            move_secret: self.rng.next_u64(),
            key: self.new_key(),
            begun_from: Some(peer),
            others: joiner.others.clone(),
            in_place_of: joiner.in_place_of.clone(),
            members: (0..joiner.world_size).map(|_| None).collect(),
        };
        self.waiting.insert(joiner.name.clone(), job);
        Ok(())
    }

    pub(super) fn tell_missing(&self, name: &str) -> Vec<Effect> {
        let Some(job) = self.waiting.get(name) else { return Vec::new() };
        job.tell_all(&Event::Waiting(control::Waiting { missing_ranks: job.missing() })).collect()
    }

    /// A rank leaves before all have joined: its place is free again.
    pub(super) fn give_up(&mut self, name: &str, rank: u32) -> Vec<Effect> {
        let Some(job) = self.waiting.get_mut(name) else { return Vec::new() };
        let member = job.members.get_mut(rank as usize).and_then(Option::take);
        let log =
            member.map(|member| info(format!("job {name:?}: {} gave up", member.in_words(rank))));
        let mut effects: Vec<_> = log.into_iter().collect();
        if job.joined().next().is_some() {
            effects.extend(self.tell_missing(name));
        } else if let Some(job) = self.waiting.remove(name) {
            let why = format!("rank {rank}, the last of those that had joined, gave up");
            self.lately.note(&job, INCOMPLETE, &why);
        }
        effects
    }
}

/// Addresses as people read them: what is in none is left out.
fn plain<'a>(given: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || ['-', '.', ':', '[', ']'].contains(c);
    let plain = |text: &String| text.chars().filter(is_plain).take(MAX_ADDRESS_LEN).collect();
    given.into_iter().map(plain).collect()
}

/// A host's name as people read it: what is in no such name is left out, so that a rank can write
/// neither anything else into errors and logs, nor more than is kept for the next daemon.
fn plain_host_name(given: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || ['-', '.', '_'].contains(c);
    given.chars().filter(is_plain).take(MAX_HOST_LEN).collect()
}

fn check_joiner(joiner: &Joiner, max_ranks: u16) -> Result<(), JoinError> {
    let &Joiner { rank, world_size, .. } = joiner;
    if joiner.tenant.len() > MAX_TENANT_LEN {
        return Err(JoinError::Tenant(joiner.tenant.len()));
    }
    if !(1..=MAX_NAME_LEN).contains(&joiner.name.len()) {
        return Err(JoinError::Name(joiner.name.len()));
    }
    if joiner.threads.host.len() > MAX_HOST_LEN {
        return Err(JoinError::Host(joiner.threads.host.len()));
    }
    if !(1..=max_ranks.into()).contains(&world_size) {
        return Err(JoinError::WorldSize { world_size, max_ranks });
    }
    if rank >= world_size {
        return Err(JoinError::Rank { rank, world_size });
    }
    Ok(())
}

/// Whether the job has the place that the rank wants.
fn check_fits(job: &Job, joiner: &Joiner) -> Result<(), JoinError> {
    // Rule 22.16. This check comes first, because the other errors reveal details of the job.
    if job.tenant != joiner.tenant {
        return Err(JoinError::OtherTenant { name: joiner.name.clone() });
    }
    if job.world_size() != joiner.world_size as usize {
        return Err(JoinError::OtherWorldSize {
            name: joiner.name.clone(),
            expected: job.world_size(),
            given: joiner.world_size,
        });
    }
    if job.state == State::Waiting && job.stripe != joiner.stripe {
        return Err(JoinError::OtherStripe {
            name: joiner.name.clone(),
            expected: job.stripe,
            given: joiner.stripe,
        });
    }
    match &job.members[joiner.rank as usize] {
        Some(member) => Err(JoinError::DuplicateRank {
            name: joiner.name.clone(),
            rank: joiner.rank,
            from: member.place(),
        }),
        None => Ok(()),
    }
}
