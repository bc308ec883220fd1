//! A job, as far as a combiner knows it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use switchml_control as control;
use switchml_control::join_event::Event;
use switchml_protocol::bpf_types::fanout::Way;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::features::JobShape;
use switchml_protocol::wire::auth::Key;

use super::{Below, Effect, LOOK, Proxy, Timer};
use crate::control_plane::RESUME_GRACE;
use crate::job_spec::JobSpec;
use crate::jobs::{MemberId, StreamId, group};
use crate::limits::Fanout;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub epoch: u32,
    pub shards: Vec<u16>,
    /// The address that the ranks below send to.
    address: IpAddr,
    /// Whether the ranks can resume after the parent was lost.
    pub is_durable: bool,
    has_started: bool,
    /// Whether a rank wanted to come back since the last check.
    pub was_asked_for: bool,
    /// The ranks below.
    pub ranks: BTreeMap<u16, Member>,
}

/// A rank below.
#[derive(Clone, Debug)]
pub(super) struct Member {
    secret: u64,
    way: Way,
    /// The rank whose copies of RESULTs it reads.
    pub taker: Option<u16>,
    /// Whether the data plane sends RESULTs to all to this rank.
    is_served: bool,
    pub stream: Option<StreamId>,
}

impl Member {
    /// RESULTs to the group do not reach it.
    pub fn avoid_group(&mut self) {
        if self.way == Way::Group {
            self.way = Way::Copy;
        }
    }
}

impl Job {
    pub fn has_streams(&self) -> bool {
        self.ranks.values().any(|member| member.stream.is_some())
    }

    /// Has the data plane send RESULTs to all to the ranks that it is to serve.
    pub fn starts(&self) -> Vec<Effect> {
        let served = self.ranks.iter().filter(|(_, member)| member.is_served);
        let ways: Vec<_> = served.map(|(rank, member)| (*rank, self.way(*rank, member))).collect();
        self.shards.iter().map(|shard| Effect::Start(*shard, ways.clone())).collect()
    }

    /// Rule 38.3: a rank that gets copies reads those of another one, if that gets some itself.
    fn way(&self, rank: u16, member: &Member) -> Way {
        let gets_own = |taker: &u16| {
            let taker = self.ranks.get(taker).filter(|other| other.is_served);
            taker.is_some_and(|other| other.way == Way::Copy && other.taker.is_none())
        };
        match (member.way, member.taker.filter(gets_own)) {
            (Way::Copy, Some(taker)) if taker != rank => Way::With(taker),
            (way, _) => way,
        }
    }

    /// Serves the ranks that have said HELLO by now, and checks again later while some have not.
    pub fn look(&mut self, number: u16, bound: &[u16]) -> Vec<Effect> {
        let mut has_changed = false;
        for (rank, member) in &mut self.ranks {
            if !member.is_served && bound.contains(rank) {
                (member.is_served, has_changed) = (true, true);
            }
        }
        let mut effects = if has_changed { self.starts() } else { Vec::new() };
        if self.ranks.values().any(|member| member.stream.is_some() && !member.is_served) {
            effects.push(Effect::Schedule(LOOK, Timer::Look(number, self.epoch)));
        }
        effects
    }

    /// Corrects the status of ranks where this combiner knows more than the root.
    pub fn describe(&self, members: &mut [control::MemberStatus]) {
        for status in members {
            let Some(member) = self.ranks.get(&(status.rank as u16)) else { continue };
            if status.ready && member.way == Way::Copy {
                status.set_copies(control::Copies::Forced);
            }
        }
    }
}

impl Proxy {
    /// The parent has assigned a rank (rule 27.16).
    pub(super) fn assign(&mut self, stream: StreamId, assigned: control::Assigned) -> Vec<Effect> {
        let Some(terms) = Terms::read(&assigned) else {
            return self
                .fail(stream, "its parent's Assigned makes no sense; their versions differ");
        };
        let Some(rank) = self.streams.get(&stream).and_then(|below| below.rank.try_into().ok())
        else {
            return Vec::new();
        };
        let number = terms.number;
        let mut effects = match self.jobs.get(&number) {
            Some(job) if job.epoch == assigned.epoch => Vec::new(),
            Some(_) => self.close(number),
            None => Vec::new(),
        };
        if !self.jobs.contains_key(&number) {
            effects.extend(self.open_job(stream, &assigned, &terms));
        }
        let fanout = self.fanout(number);
        let Some(below) = self.streams.get_mut(&stream) else { return effects };
        below.member = Some(assigned.member(below.rank));
        let (joins, is_combiner) = (below.joins(), below.combiner.is_some());
        let way = match fanout {
            _ if is_combiner => Way::Combiner,
            Fanout::Unicast => Way::Copy,
            Fanout::Auto | Fanout::Multicast => Way::Group,
        };
        let Some(job) = self.jobs.get_mut(&number) else { return effects };
        let member = job.ranks.entry(rank);
        let member = member.or_insert(Member {
            secret: assigned.control_secret,
            way,
            taker: None,
            is_served: false,
            stream: Some(stream),
        });
        if let Some(earlier) = member.stream.replace(stream).filter(|earlier| *earlier != stream) {
            // The rank has found that broken before this daemon has.
            self.streams.remove(&earlier);
            effects.extend([Effect::End(earlier), Effect::HangUp(earlier)]);
        }
        let secret = assigned.hello_secret;
        effects.extend(job.shards.iter().map(|shard| Effect::Admit(*shard, rank, secret)));
        // A rank that comes back has it already.
        if joins || is_combiner {
            effects.push(Effect::Tell(stream, Event::Assigned(self.rewrite(number, assigned))));
        }
        effects
    }

    fn open_job(
        &mut self,
        stream: StreamId,
        assigned: &control::Assigned,
        terms: &Terms,
    ) -> Vec<Effect> {
        let Some(address) = self.address_of(stream) else { return Vec::new() };
        let spec = |(number, index): (u16, u32)| JobSpec {
            number,
            epoch: assigned.epoch,
            secrets: vec![0; assigned.world_size as usize],
            keys: Vec::new(),
            key: Key::NONE,
            slots: index * assigned.slots..(index + 1) * assigned.slots,
            address,
            group: group(address, number),
            parent: Some(terms.parent),
        };
        let numbers = terms.shards.iter().map(|number| (*number, u32::from(*number)));
        let effects = numbers.map(spec).map(Effect::Open).collect();
        self.jobs.insert(
            terms.number,
            Job {
                epoch: assigned.epoch,
                shards: terms.shards.clone(),
                address,
                is_durable: assigned.durable,
                has_started: false,
                was_asked_for: false,
                ranks: BTreeMap::new(),
            },
        );
        effects
    }

    /// The address that the ranks of a stream's job send to: as at a root, an IPv6 address if any
    /// rank used one.
    fn address_of(&self, stream: StreamId) -> Option<IpAddr> {
        let own = self.streams.get(&stream)?;
        let is_same = |other: &&Below| !own.name.is_empty() && other.name == own.name;
        let mut others = self.streams.values().filter(is_same).map(|other| other.local);
        Some(others.find(IpAddr::is_ipv6).unwrap_or(own.local))
    }

    /// How RESULTs to all reach the ranks of a job that the group reaches.
    fn fanout(&self, number: u16) -> Fanout {
        match self.jobs.get(&number).map(|job| job.address) {
            Some(IpAddr::V4(_)) => self.limits.fanout,
            _ => Fanout::Unicast,
        }
    }

    /// The Assigned for a rank below, with this combiner's addresses and limits.
    fn rewrite(&self, number: u16, assigned: control::Assigned) -> control::Assigned {
        let Some(job) = self.jobs.get(&number) else { return assigned };
        let has_group = self.fanout(number) != Fanout::Unicast;
        let of = |number: u32| match has_group {
            true => {
                let (address, port) = group(job.address, number as u16);
                (address.to_string(), port.into())
            }
            false => (String::new(), 0),
        };
        let of_root = Capabilities::from_bits_truncate(assigned.capabilities);
        let own = self.limits.features(JobShape {
            has_combiners: true,
            is_ipv6: job.address.is_ipv6(),
            ..JobShape::default()
        });
        let (group_address, group_port) = of(assigned.job);
        let further = assigned.further_shards.iter().map(|shard| {
            let (group_address, group_port) = of(shard.job);
            control::Shard { job: shard.job, group_address, group_port }
        });
        control::Assigned {
            data_address: job.address.to_string(),
            data_port: self.limits.port.into(),
            group_address,
            group_port,
            further_shards: further.collect(),
            max_lanes: assigned.max_lanes.min(self.limits.max_lanes.into()),
            durable: true,
            capabilities: own.below_combiner(of_root).bits(),
            ..assigned
        }
    }

    /// All ranks of the job are ready, or this one has come back to it.
    pub(super) fn start(&mut self, stream: StreamId) -> Vec<Effect> {
        let number = self.streams.get(&stream).and_then(|below| below.member);
        let Some(number) = number.map(|member| member.job as u16) else { return Vec::new() };
        let joins = self.streams.get(&stream).is_some_and(Below::joins);
        let Some(job) = self.jobs.get_mut(&number) else { return Vec::new() };
        if !joins {
            // The rank may have to say HELLO again.
            return job.look(number, &[]);
        }
        if std::mem::replace(&mut job.has_started, true) {
            return Vec::new();
        }
        job.ranks.values_mut().for_each(|member| member.is_served = true);
        job.starts()
    }

    /// The stream of a rank is gone. Closes the job if it was the last, unless ranks may come back.
    pub(super) fn forget_member(
        &mut self,
        stream: StreamId,
        below: &Below,
        may_come_back: bool,
    ) -> Vec<Effect> {
        let Some(id) = below.member else { return Vec::new() };
        let number = id.job as u16;
        let Some(job) = self.jobs.get_mut(&number).filter(|job| job.epoch == id.epoch) else {
            return Vec::new();
        };
        if let Some(member) = job.ranks.get_mut(&(id.rank as u16))
            && member.stream == Some(stream)
        {
            member.stream = None;
        }
        if job.has_streams() {
            return Vec::new();
        }
        match may_come_back {
            true => {
                vec![Effect::Schedule(2 * RESUME_GRACE, Timer::Forget(number, job.epoch))]
            }
            false => self.close(number),
        }
    }

    pub(super) fn close(&mut self, number: u16) -> Vec<Effect> {
        let job = self.jobs.remove(&number);
        let shards = job.map(|job| job.shards).unwrap_or_default();
        shards.into_iter().map(Effect::Close).collect()
    }

    pub(super) fn member(&self, id: MemberId) -> Option<&Member> {
        let job = self.jobs.get(&u16::try_from(id.job).ok()?)?;
        let member = job.ranks.get(&u16::try_from(id.rank).ok()?)?;
        (job.epoch == id.epoch && member.secret == id.secret).then_some(member)
    }

    pub(super) fn member_mut(&mut self, id: MemberId) -> Option<&mut Member> {
        self.member(id)?;
        self.jobs.get_mut(&(id.job as u16))?.ranks.get_mut(&(id.rank as u16))
    }
}

/// The contents of an Assigned, if they make sense.
struct Terms {
    number: u16,
    shards: Vec<u16>,
    parent: SocketAddr,
}

impl Terms {
    fn read(assigned: &control::Assigned) -> Option<Self> {
        let further = assigned.further_shards.iter().map(|shard| shard.job);
        let shards = std::iter::once(assigned.job).chain(further).map(u16::try_from);
        let shards = shards.collect::<Result<Vec<_>, _>>().ok()?;
        let port = u16::try_from(assigned.data_port).ok()?;
        let parent = SocketAddr::new(assigned.data_address.parse().ok()?, port);
        let makes_sense = (1..=u32::from(u16::MAX)).contains(&assigned.world_size)
            && (1..=u32::from(u16::MAX)).contains(&assigned.slots);
        makes_sense.then_some(Self { number: shards[0], shards, parent })
    }
}
