//! A job whose ranks have all joined takes numbers and slots, or is refused.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use switchml_control as control;
use switchml_control::join_event::Event;
use switchml_protocol::wire::auth::Key;

use super::job::{Job, Member, State};
use super::{Effect, JobKey, JobTable, info, stripe, threads, warn};
use crate::job_spec::JobSpec;
use crate::limits::{Fanout, Limits};
use crate::slots::power_of_two_up_to;

/// UDP port of the multicast groups.
pub const GROUP_PORT: u16 = 48866;

impl JobTable {
    /// Slots that no job has.
    pub fn free_slots(&self) -> u32 {
        self.free_numbers().count() as u32 * self.limits.slots_per_shard
    }

    /// Numbers that no shard has, lowest first.
    pub(super) fn free_numbers(&self) -> impl DoubleEndedIterator<Item = u16> {
        let used: HashSet<_> =
            self.jobs.values().flat_map(|job| job.shards.iter().copied()).collect();
        (0..self.limits.shards).filter(move |number| !used.contains(number))
    }

    /// Whether the numbers of a saved job, and their slots, are those that this table would give
    /// them, and free.
    pub(super) fn has_room_for(&self, job: &Job) -> bool {
        let free: HashSet<_> = self.free_numbers().collect();
        let is_first = job.shards.first() == Some(&job.number) && job.number < self.limits.max_jobs;
        is_first
            && job.slots_per_shard == self.limits.slots_per_shard
            && job.shards.iter().all(|n| free.contains(n))
    }

    /// Numbers for the shards (rule 16.1) of a job whose ranks all have use for so many data
    /// threads: the lowest, and for threads beyond the first the highest. Those have half of all
    /// numbers at most, so that jobs find one whatever the others took.
    fn numbers(&self, wanted: u32) -> Option<Vec<u16>> {
        let first = self.free_numbers().next().filter(|number| *number < self.limits.max_jobs)?;
        let further: usize = self.jobs.values().map(|job| job.shards.len() - 1).sum();
        let room = usize::from(self.limits.shards / 2).saturating_sub(further);
        let others = self.free_numbers().rev().take_while(|number| *number != first).take(room);
        let others: Vec<_> = others.take(wanted as usize - 1).collect();
        let shards = power_of_two_up_to(1 + others.len() as u32) as usize;
        Some(std::iter::once(first).chain(others).take(shards).collect())
    }

    /// All ranks of the job are there: they are assigned (rule 22.2), or all refused.
    pub(super) fn assign(&mut self, name: &str) -> Vec<Effect> {
        let Some(mut job) = self.waiting.remove(name) else { return Vec::new() };
        let members = job.members.iter_mut().flatten();
        let threads: Vec<_> = members.map(|member| std::mem::take(&mut member.threads)).collect();
        let wanted = threads::common(&threads);
        let within_quota = self.threads_within_quota(&job);
        let Some(shards) = self.numbers(wanted.min(within_quota)) else { return self.refuse(&job) };
        let (number, epoch) = (shards[0], self.epochs.draw());
        let slots_per_shard = self.limits.slots_per_shard;
        job = Job {
            number,
            shards,
            epoch,
            slots_per_shard,
            state: State::Assigned,
            begun_from: None,
            ..job
        };
        let specs = job.specs();
        if specs.is_empty() {
            return Vec::new();
        }
        let count = specs.len();
        let mut effects = vec![info(format!(
            "job {number} {name:?}: assigned, data threads: {count}, slots of each: \
             {slots_per_shard}"
        ))];
        if (count as u32) < wanted {
            let why = match within_quota < wanted {
                true => "its tenant's quota has no slots for more",
                false => "too few job numbers",
            };
            effects.push(info(format!(
                "job {number} {name:?}: {count} data threads, not {wanted}: {why}"
            )));
        }
        for (rank, member) in job.joined() {
            self.streams
                .extend(member.stream().map(|stream| (stream, (JobKey::Assigned(number), rank))));
        }
        let fanout = job.fanout(self.limits.fanout);
        let terms = Terms { id: self.id, limits: &self.limits, fanout, specs: &specs };
        let told = job.joined().filter_map(|(_, member)| {
            Some(Effect::Tell(member.stream()?, Event::Assigned(terms.of(&job, member))))
        });
        let kept = self.limits.durable.then(|| Effect::KeepEpochs(number, self.epochs.clone()));
        effects.extend(kept);
        effects.extend(specs.iter().cloned().map(Effect::Open));
        effects.extend(told);
        self.jobs.insert(number, job);
        effects
    }

    /// There is no room for the job: its ranks are told so, all at once, and go.
    fn refuse(&mut self, job: &Job) -> Vec<Effect> {
        let Limits { max_jobs, shards, .. } = self.limits;
        let remedy = if shards < max_jobs { ", or start it with more --slots" } else { "" };
        let has = match max_jobs.min(shards) {
            1 => "1 job already; wait for it".to_owned(),
            jobs => format!("{jobs} jobs already; wait for one"),
        };
        let reason = format!("the aggregator has {has} to end{remedy}");
        let log = warn(format!("job {:?}: refused, {reason}", job.name));
        let news = Event::Aborted(control::Aborted { reason, ..control::Aborted::default() });
        let streams: Vec<_> = job.joined().filter_map(|(_, member)| member.stream()).collect();
        for stream in &streams {
            self.streams.remove(stream);
        }
        let told = job.tell_all(&news);
        [log].into_iter().chain(told).chain(streams.into_iter().map(Effect::End)).collect()
    }
}

/// The parameters of a job's shards, of which there is at least one, for its ranks.
pub(super) struct Terms<'a> {
    /// The aggregator.
    pub id: u64,
    pub limits: &'a Limits,
    pub fanout: Fanout,
    pub specs: &'a [JobSpec],
}

impl Terms<'_> {
    /// What this one is told (rule 22.2).
    pub fn of(&self, job: &Job, member: &Member) -> control::Assigned {
        let Self { id, limits, fanout, specs } = self;
        let shard = |spec: &JobSpec| {
            let (group_address, group_port) = match fanout {
                Fanout::Auto | Fanout::Multicast => (spec.group.0.to_string(), spec.group.1.into()),
                Fanout::Unicast => (String::new(), 0),
            };
            control::Shard { job: spec.number.into(), group_address, group_port }
        };
        let [first, further @ ..] = specs else { unreachable!("a job has a shard") };
        let control::Shard { job: number, group_address, group_port } = shard(first);
        // A connection to an address of the host's own comes from the same address.
        let is_here = |member: &Member| !member.is_behind && member.peer == member.local;
        let ranks = job.joined().map(|(_, member)| (&member.link, member.peer, is_here(member)));
        let ranks: Vec<_> = ranks.collect();
        let told = control::Assigned {
            job: number,
            aggregator: *id,
            epoch: first.epoch,
            slots: limits.slots_per_shard,
            data_address: first.address.to_string(),
            data_port: limits.port.into(),
            group_address,
            group_port,
            hello_secret: member.hello_secret,
            max_lanes: limits.max_lanes.into(),
            durable: limits.durable && job.may_be_saved(),
            capabilities: job.features(limits).used().bits(),
            further_shards: further.iter().map(shard).collect(),
            control_secret: member.control_secret,
            world_size: job.world_size() as u32,
            member_key: bytes(member.key),
            job_key: bytes(job.key),
            has_combiners: job.has_combiners(),
            move_secret: job.move_secret,
            ..control::Assigned::default()
        };
        stripe::links(&ranks, told)
    }
}

/// A key as messages have it: no bytes for [`Key::NONE`].
fn bytes(key: Key) -> Vec<u8> {
    if key.is_none() { Vec::new() } else { key.to_bytes().into() }
}

impl Job {
    /// The job's shards, as the data plane serves them.
    pub(super) fn specs(&self) -> Vec<JobSpec> {
        let Some(address) = self.address() else { return Vec::new() };
        let secrets: Vec<_> = self.joined().map(|(_, member)| member.hello_secret).collect();
        let keys: Vec<_> = self.joined().map(|(_, member)| member.key).collect();
        let spec = |(number, slots)| JobSpec {
            number,
            epoch: self.epoch,
            secrets: secrets.clone(),
            keys: keys.clone(),
            key: self.key,
            slots,
            address,
            group: group(address, number),
            parent: None,
        };
        self.slots_of_shards().map(spec).collect()
    }
}

/// The multicast group, and its port, of a job whose ranks send to this address. The group is local
/// to a site (RFC 2365); over IPv6 there is none (rule 5.12).
pub(crate) fn group(address: IpAddr, job: u16) -> (Ipv4Addr, u16) {
    let [high, low] = job.to_be_bytes();
    match address {
        IpAddr::V4(_) => (Ipv4Addr::new(239, 255, high, low), GROUP_PORT),
        IpAddr::V6(_) => (Ipv4Addr::UNSPECIFIED, 0),
    }
}
