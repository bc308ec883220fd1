//! One job: its members, and the events for them.

use std::{collections::BTreeSet, net::IpAddr, ops::Range, time::Duration};

use serde::{Deserialize, Serialize};
use switchml_control as control;
use switchml_control::join_event::Event;
use switchml_control::{name_before_move, public_name};
use switchml_protocol::bpf_types::fanout::Way;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::features::{Features, JobShape};
use switchml_protocol::wire::auth::Key;

use super::mismatch::Mismatch;
use super::paths::Paths;
use super::rack::Rack;
use super::stripe::{Link, Stripe};
use super::{Effect, MemberId, StreamId, Threads};
use crate::limits::{Fanout, Limits};

/// Most ranks of a job that is saved. Each takes half a KiB of every entry of the journal, used or
/// not.
const MAX_SAVED_RANKS: usize = 64;

/// Most ranks whose places are told behind the error that blames them.
const MAX_PLACES_IN_WORDS: usize = 4;

/// Upper bound of a saved job's bytes of JSON, whatever its name and its reasons are.
pub const MAX_SAVED_LEN: usize = 40 << 10;

/// The state of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum State {
    /// Ranks are missing.
    Waiting,
    /// All ranks have joined, and open their data paths.
    Assigned,
    /// All ranks are ready, and contribute chunks of this many lanes.
    Started { lanes: u16 },
    /// A rank failed. Why, the ranks at fault, and whether another aggregator may go on (rule
    /// 36.8).
    Aborted {
        reason: String,
        ranks: Vec<u32>,
        #[serde(default)]
        stops: bool,
    },
}

impl State {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting for other ranks",
            Self::Assigned => "waiting for ranks to be ready",
            Self::Started { .. } => "started already",
            Self::Aborted { .. } => "aborted",
        }
    }
}

/// Whether a rank is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Presence {
    /// The rank's stream of events is open.
    Here(StreamId),
    /// The daemon was restarted, and has not heard of the rank yet.
    Awaited,
    /// The rank, which had this stream, was lost with its combiner. It may come back.
    Cut(StreamId),
    /// The rank has left, or is taken for dead.
    Gone,
}

/// A rank that joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member {
    pub(super) presence: Presence,
    /// Source address of the rank's control connection; behind a combiner, as the combiner sees it.
    pub(super) peer: IpAddr,
    /// Name of the rank's host; empty if the rank did not tell.
    #[serde(default)]
    pub(super) host_name: String,
    /// Whether the rank is behind a combiner.
    pub(super) is_behind: bool,
    /// The rank's combiners, for people: each daemon learns them again.
    #[serde(skip)]
    pub(super) rack: Rack,
    /// How the rank was lost, while its presence is [`Presence::Cut`].
    #[serde(skip)]
    pub(super) why_cut: String,
    /// The address by which the rank reached the daemon.
    pub(super) local: IpAddr,
    /// The secret in the rank's HELLO, which travels unencrypted.
    pub(super) hello_secret: u32,
    /// The secret in the rank's requests.
    pub(super) control_secret: u64,
    /// Key for the tags of the rank's packets and of answers to it alone. Once the job is open,
    /// only the rank and the data plane need it.
    #[serde(skip)]
    pub(super) key: Key,
    /// Set until the job is assigned.
    #[serde(skip)]
    pub(super) threads: Threads,
    /// What it was assigned is not told again, so the next daemon need not know it.
    #[serde(skip)]
    pub(super) link: Link,
    /// Most lanes that the rank's path carries, once the rank is ready.
    pub(super) ready: Option<u16>,
    /// Whether RESULTs to all reach the rank by the job's group, once it is ready; else it gets
    /// copies.
    pub(super) by_group: bool,
    /// The rank whose copies of RESULTs to all it reads, if it does.
    #[serde(default)]
    pub(super) taker: Option<u32>,
    /// Indices of the interfaces by which the rank's frames come in, once it is ready; each once.
    pub(super) ports: BTreeSet<u32>,
    /// Whether the rank has reported, since the job started, that it gets no RESULTs by multicast.
    /// It reports that to each daemon.
    #[serde(skip)]
    pub(super) has_no_multicast: bool,
    /// What the rank has told of its packets.
    #[serde(skip)]
    pub(super) paths: Paths,
}

impl Member {
    pub(super) fn is_gone(&self) -> bool {
        self.presence == Presence::Gone
    }

    /// Whether the rank gets copies of RESULTs to all, and why.
    fn copies(&self, fanout: Fanout) -> control::Copies {
        match fanout {
            _ if self.ready.is_none() || self.by_group || self.is_behind => {
                control::Copies::Unspecified
            }
            Fanout::Unicast => control::Copies::Forced,
            _ if self.has_no_multicast => control::Copies::GroupLost,
            _ => control::Copies::GroupUnheard,
        }
    }

    /// The rank and where it is, for people.
    pub(super) fn in_words(&self, rank: u32) -> String {
        format!("rank {rank} ({})", self.place())
    }

    /// Where the rank is, for people: `10.0.0.2, rack tor1 at 10.0.0.254, host node7`.
    pub(super) fn place(&self) -> String {
        let mut place = self.peer.to_string();
        for (what, name) in [("rack", &self.rack.name), ("host", &self.host_name)] {
            if !name.is_empty() {
                place += &format!(", {what} {name}");
            }
        }
        place
    }

    /// The rank's stream of events, while there is one.
    pub(super) fn stream(&self) -> Option<StreamId> {
        match self.presence {
            Presence::Here(stream) => Some(stream),
            Presence::Awaited | Presence::Cut(_) | Presence::Gone => None,
        }
    }

    /// How the rank gets RESULTs to all.
    const fn way(&self) -> Way {
        match self.is_behind {
            true => Way::Combiner,
            false if self.by_group => Way::Group,
            false => Way::Copy,
        }
    }
}

/// A job, as the table knows it, and as a durable data plane keeps it for the next daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The job's number; meaningless until the job is assigned.
    pub number: u16,
    pub(super) name: String,
    /// The job's epoch; 0 until the job is assigned.
    pub epoch: u32,
    /// Slots of each shard.
    pub(super) slots_per_shard: u32,
    /// Numbers in the data plane, one for each data thread of a rank. The first is the job's own.
    pub shards: Vec<u16>,
    pub(super) state: State,
    /// The reports of ranks that made different calls, while they come in.
    #[serde(skip)]
    pub(super) mismatch: Option<Mismatch>,
    /// The tenant of its ranks' job tokens; empty if no tokens are asked for.
    #[serde(default)]
    pub(super) tenant: String,
    #[serde(default)]
    pub(super) stripe: Stripe,
    /// The part of calls that this aggregator takes, in parts of 10,000, once a rank has told.
    #[serde(default)]
    pub(super) share: Option<u32>,
    /// What ranks name the job with at another aggregator (rule 36.9).
    #[serde(default)]
    pub(super) move_secret: u64,
    /// Key for the tags of RESULTs to all; see [`Member::key`].
    #[serde(skip)]
    pub(super) key: Key,
    /// The host of the job's first rank, while the job waits.
    #[serde(skip)]
    pub(super) begun_from: Option<IpAddr>,
    /// The job's other aggregators, and the lost one in whose place this one goes on, as its first
    /// rank has told, for people.
    #[serde(skip)]
    pub(super) others: Vec<String>,
    #[serde(skip)]
    pub(super) in_place_of: String,
    /// The members by rank; as many as the world size.
    pub(super) members: Vec<Option<Member>>,
}

impl Job {
    /// Number of its ranks.
    pub fn world_size(&self) -> usize {
        self.members.len()
    }

    /// Lanes of a full chunk while the job runs; otherwise 0.
    pub fn lanes(&self) -> u16 {
        match self.state {
            State::Started { lanes } => lanes,
            State::Waiting | State::Assigned | State::Aborted { .. } => 0,
        }
    }

    /// Whether the job takes no more ranks: one of its own is gone.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.state, State::Aborted { .. })
            || self.joined().any(|(_, member)| member.is_gone())
    }

    /// Whether its ranks may go on at another aggregator if they lose this one.
    pub(super) fn may_move(&self) -> bool {
        self.stripe.aggregators > 1 || name_before_move(&self.name).is_some()
    }

    /// Whether the job is small enough to be saved, so that it can go on in a durable data plane
    /// when the daemon dies.
    pub(super) fn may_be_saved(&self) -> bool {
        self.world_size() <= MAX_SAVED_RANKS
    }

    /// Whether it does now. Ranks of a job that has not started need the daemon, and fail without
    /// it (rule 23.2).
    pub(super) fn is_durable(&self) -> bool {
        self.may_be_saved() && matches!(self.state, State::Started { .. } | State::Aborted { .. })
    }

    /// An effect in the data plane for each shard.
    pub(super) fn on_shards(&self, effect: impl Fn(u16) -> Effect) -> impl Iterator<Item = Effect> {
        self.shards.iter().map(move |shard| effect(*shard))
    }

    /// The shards, and the slots of each.
    pub(super) fn slots_of_shards(&self) -> impl Iterator<Item = (u16, Range<u32>)> {
        let slots = self.slots_per_shard;
        self.shards
            .iter()
            .map(move |shard| (*shard, u32::from(*shard) * slots..(u32::from(*shard) + 1) * slots))
    }

    /// Rule 22.6: whether that is a rank of this epoch that is there, with its own secret.
    pub(super) fn has_member(&self, id: MemberId) -> bool {
        let mut present = self.present();
        self.epoch == id.epoch
            && present.any(|(rank, member)| (rank, member.control_secret) == (id.rank, id.secret))
    }

    /// Rule 22.17: the address that the ranks send to, the one by which they reached the daemon. If
    /// they came by both kinds of IP, it is the IPv6 address of the first rank that used IPv6:
    /// clients try IPv4 first, so that rank has no IPv4 route to the daemon.
    pub(super) fn address(&self) -> Option<IpAddr> {
        let mut addresses = self.joined().map(|(_, member)| member.local);
        let first = addresses.next()?;
        match first {
            IpAddr::V4(_) => addresses.find(IpAddr::is_ipv6).or(Some(first)),
            IpAddr::V6(_) => Some(first),
        }
    }

    /// How RESULTs to all reach the ranks; `of_others` is the data plane's way for jobs over IPv4
    /// (rule 5.12).
    pub(super) fn fanout(&self, of_others: Fanout) -> Fanout {
        match self.address() {
            Some(IpAddr::V6(_)) => Fanout::Unicast,
            _ => of_others,
        }
    }

    pub(super) fn member(&self, rank: u32) -> Option<&Member> {
        self.members.get(rank as usize)?.as_ref()
    }

    pub(super) fn member_mut(&mut self, rank: u32) -> Option<&mut Member> {
        self.members.get_mut(rank as usize)?.as_mut()
    }

    pub(super) fn joined(&self) -> impl Iterator<Item = (u32, &Member)> {
        (0..).zip(&self.members).filter_map(|(rank, member)| Some((rank, member.as_ref()?)))
    }

    pub(super) fn present(&self) -> impl Iterator<Item = (u32, &Member)> {
        self.joined().filter(|(_, member)| !member.is_gone())
    }

    /// The ranks that a restarted daemon has not heard of yet.
    pub(super) fn awaited(&self) -> Vec<u32> {
        let awaited = self.joined().filter(|(_, member)| member.presence == Presence::Awaited);
        awaited.map(|(rank, _)| rank).collect()
    }

    /// The ranks and where they are, for people.
    pub(super) fn in_words(&self, ranks: &[u32]) -> String {
        let known = self.joined().filter(|(rank, _)| ranks.contains(rank));
        known.map(|(rank, member)| member.in_words(rank)).collect::<Vec<_>>().join(", ")
    }

    /// What follows the error of a rank that blames these, for people: where they are.
    pub(super) fn places(&self, blamed: &[u32]) -> String {
        let named = &blamed[..blamed.len().min(MAX_PLACES_IN_WORDS)];
        match (named, blamed.len() - named.len()) {
            ([], _) => String::new(),
            (_, 0) => format!("; {}", self.in_words(named)),
            (_, more) => format!("; {} and {more} more", self.in_words(named)),
        }
    }

    /// Which ranks get copies of results, and why, for people.
    pub(super) fn describe_fanout(&self, fanout: Fanout) -> String {
        let copied = self.joined().filter(|(_, member)| member.way() == Way::Copy);
        let ranks: Vec<_> = copied.map(|(rank, _)| rank.to_string()).collect();
        let mut ways = self.ways().into_iter();
        match (fanout, ranks.is_empty()) {
            (_, true) => String::new(),
            (Fanout::Unicast, _) if ways.any(|(_, way)| matches!(way, Way::With(_))) => {
                ", a copy of results for each host, or rank that shares no memory".to_owned()
            }
            (Fanout::Unicast, _) => ", each rank gets its own copies of results".to_owned(),
            (_, false) => format!(
                ", copies of results for ranks that multicast does not reach: {}",
                ranks.join(", ")
            ),
        }
    }

    /// How each rank gets RESULTs to all.
    pub(super) fn ways(&self) -> Vec<(u16, Way)> {
        // A rank of a job fits.
        self.joined().map(|(rank, member)| (rank as u16, self.way(rank, member))).collect()
    }

    /// Rule 38.3: a rank that needs copies reads those of another one, if that gets some itself.
    fn way(&self, rank: u32, member: &Member) -> Way {
        let gets_own = |taker: &u32| {
            let taker = self.member(*taker);
            taker.is_some_and(|other| other.way() == Way::Copy && other.taker.is_none())
        };
        match (member.way(), member.taker.filter(gets_own)) {
            // A rank of a job fits.
            (Way::Copy, Some(taker)) if taker != rank => Way::With(taker as u16),
            (way, _) => way,
        }
    }

    /// Whether any of its ranks is behind a combiner.
    pub(super) fn has_combiners(&self) -> bool {
        self.joined().any(|(_, member)| member.is_behind)
    }

    /// What its ranks use of what the data plane can do.
    pub(super) fn features(&self, limits: &Limits) -> Features {
        limits.features(JobShape {
            ranks: self.world_size() as u32,
            has_tags: !self.key.is_none(),
            has_combiners: self.has_combiners(),
            is_ipv6: self.address().is_some_and(|address| address.is_ipv6()),
        })
    }

    /// The protocol's options that its ranks do not use; none until all have joined.
    fn unused(&self, limits: &Limits) -> Vec<control::Unused> {
        if self.state == State::Waiting {
            return Vec::new();
        }
        let features = self.features(limits);
        let names = Capabilities::all().iter_names();
        let unused = names.filter_map(|(name, capability)| {
            let reason = features.why_not(capability)?.to_string();
            Some(control::Unused { capability: name.to_owned(), reason })
        });
        unused.collect()
    }

    pub(super) fn missing(&self) -> Vec<u32> {
        (0..)
            .zip(&self.members)
            .filter(|(_, member)| member.is_none())
            .map(|(rank, _)| rank)
            .collect()
    }

    /// The smallest number of lanes that any rank is ready for, once all are.
    pub(super) fn common_lanes(&self) -> Option<u16> {
        self.members.iter().map(|member| member.as_ref()?.ready).min()?
    }

    /// Whether every present rank has reported its calls.
    pub(super) fn all_have_reported(&self) -> bool {
        let mismatch = self.mismatch.as_ref();
        mismatch.is_some_and(|mismatch| {
            self.present().all(|(rank, _)| mismatch.has_report_of(rank as u16))
        })
    }

    /// Whether every present rank has reported all calls that matter.
    pub(super) fn all_have_said_enough(&self) -> bool {
        let mismatch = self.mismatch.as_ref();
        mismatch.is_some_and(|mismatch| {
            self.present().all(|(rank, _)| mismatch.has_call_of(rank as u16))
        })
    }

    /// Tells every rank that can hear it the same.
    pub(super) fn tell_all(&self, event: &Event) -> impl Iterator<Item = Effect> {
        let streams = self.joined().filter_map(|(_, member)| member.stream());
        streams.map(move |stream| Effect::Tell(stream, event.clone()))
    }

    /// Rule 23.3: what a rank that comes back has missed, or may have; nothing in a job that has
    /// not started.
    pub(super) fn news(&self) -> Vec<Event> {
        match &self.state {
            State::Waiting | State::Assigned => Vec::new(),
            State::Started { lanes } => {
                let left = self.joined().filter(|(_, member)| member.is_gone());
                let left = left.map(|(rank, _)| Event::Left(control::Left { rank }));
                std::iter::once(Event::Started(control::Started { lanes: (*lanes).into() }))
                    .chain(left)
                    .collect()
            }
            State::Aborted { reason, ranks, stops } => {
                let (reason, ranks, calls) = (reason.clone(), ranks.clone(), Vec::new());
                vec![Event::Aborted(control::Aborted { reason, ranks, calls, stops: *stops })]
            }
        }
    }

    /// The job as operators see it, with the ages of its ranks' streams.
    pub(super) fn describe(
        &self,
        limits: &Limits,
        age: impl Fn(StreamId) -> Duration,
    ) -> control::JobStatus {
        let fanout = self.fanout(limits.fanout);
        let (state, reason) = match &self.state {
            State::Waiting => (control::JobState::Waiting, ""),
            State::Assigned => (control::JobState::Assigned, ""),
            State::Started { .. } => (control::JobState::Started, ""),
            State::Aborted { reason, .. } => (control::JobState::Aborted, reason.as_str()),
        };
        let members = self.joined().map(|(rank, member)| control::MemberStatus {
            rank,
            address: member.peer.to_string(),
            ready: member.ready.is_some(),
            left: member.is_gone(),
            awaited: matches!(member.presence, Presence::Awaited | Presence::Cut(_)),
            no_multicast: member.has_no_multicast && member.by_group,
            copies: member.copies(fanout).into(),
            rack: member.rack.name.clone(),
            host_name: member.host_name.clone(),
            here_ms: member.stream().map_or(Duration::ZERO, &age).as_millis() as u64,
            path: member.paths.all(),
            ..Default::default()
        });
        control::JobStatus {
            name: public_name(&self.name),
            job: self.number.into(),
            world_size: self.world_size() as u32,
            state: state.into(),
            slots: self.slots_per_shard * self.shards.len() as u32,
            lanes: self.lanes().into(),
            members: members.collect(),
            shards: self.shards.iter().copied().map(u32::from).collect(),
            reason: reason.to_owned(),
            throughput: None,
            aggregators: self.stripe.aggregators,
            share: self.share,
            slow: String::new(),
            other_aggregators: self.others.clone(),
            in_place_of: self.in_place_of.clone(),
            unused: self.unused(limits),
        }
    }
}
