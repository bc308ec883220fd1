//! The simulated aggregator's data plane: the real one's tables in memory, on links that fail.

use std::collections::{BTreeMap, HashMap, HashSet};

use switchml_protocol::bpf_types::fanout::{Receivers, Way};
use switchml_protocol::bpf_types::job::{ABORTED, Binding, JobEntry, OPEN, VACANT};
use switchml_protocol::bpf_types::maps::{MAX_JOBS, MAX_SHARDS};
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::node::egress::{self, Copies, Hop};
use switchml_protocol::node::ingress::Origin;
use switchml_protocol::node::{Medium, Served, Target};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::packet::Packet;
use switchml_protocol::ranks::Ranks;
use switchml_protocol::root::admission::{Members, Tables};
use switchml_protocol::root::slot::{Slot, contribute};
use switchml_protocol::wire::header::{Header, Kind, Op, flags};
use switchml_protocol::wire::share::Share;
use switchml_protocol::{
    DATA_PORT, LANES_PER_BLOCK, MAX_RANKS, RANKS_PER_GROUP, U16, U32, VERSION,
};
use switchml_userspace_core::data_plane::{Error, JobSpec, Limits, Saved};
use switchml_userspace_core::jobs::{Epochs, Job};
use switchml_userspace_core::memory_tables::{MemoryTables, answer, done_of};
use tracing::{debug, trace};
use zerocopy::FromBytes;

use crate::net::{Above, Clock, Net, Place, Violation, ensure};
use crate::scenario::{Scenario, Time};
use crate::tally::Fault;

/// See the module.
pub struct DataPlane {
    /// The aggregator that it is of.
    own: Above,
    tables: MemoryTables,
    /// Jobs that are open, by number.
    specs: HashMap<u16, JobSpec>,
    limits: Limits,
    /// Slots that some session used.
    used_slots: HashSet<u32>,
    /// Rounds that slots are in when a job of these workers starts.
    origins: Vec<(Vec<usize>, u32)>,
    open_fails: u32,
    /// Jobs that have started, by number: where their RESULTs to all go, and the places of ranks
    /// that have joined the group.
    started: HashMap<u16, (Receivers, Vec<Binding>)>,
    /// Jobs that are saved for the next daemon, by number.
    saved: BTreeMap<u16, Job>,
    epochs: Option<Epochs>,
    /// The number of contributions that were accepted.
    contributions: u64,
    /// When contributions were accepted: by epoch and job number, slot, round, rank.
    arrivals: HashMap<((u32, u16), u16, u32, u16), Time>,
    scratch: Vec<u8>,
}

impl DataPlane {
    /// Whether the data plane verifies maxima, and gives them with a check word.
    pub fn checks_maxima(&self) -> bool {
        self.limits.capabilities.contains(Capabilities::CHECKED_MAXIMA)
    }

    /// The data plane of an aggregator, without jobs.
    pub fn new(scenario: &Scenario, aggregator: usize) -> Self {
        let plan = scenario.aggregator(aggregator);
        let limits = Limits {
            shards: MAX_SHARDS as u16,
            slots_per_shard: plan.slots,
            max_lanes: plan.max_lanes,
            max_ranks: MAX_RANKS as u16,
            max_jobs: MAX_JOBS as u16,
            capabilities: plan.capabilities,
            ipv4_only: Capabilities::empty(),
            port: DATA_PORT,
            fanout: scenario.fanout,
            durable: plan.durable,
        };
        let origins = scenario.jobs.iter().map(|job| (job.workers.clone(), job.origin));
        Self {
            own: Above::Aggregator(aggregator),
            tables: MemoryTables::new(),
            specs: HashMap::new(),
            limits,
            used_slots: HashSet::new(),
            origins: origins.collect(),
            open_fails: scenario.open_fails,
            started: HashMap::new(),
            saved: BTreeMap::new(),
            epochs: None,
            contributions: 0,
            arrivals: HashMap::new(),
            scratch: Vec::new(),
        }
    }

    /// Replaces the data plane by a new one without jobs.
    pub fn start_anew(&mut self) {
        self.tables = MemoryTables::new();
        self.specs.clear();
        self.used_slots.clear();
        self.started.clear();
        self.saved.clear();
        self.epochs = None;
    }

    /// Keeps a job for the next daemon.
    pub fn save(&mut self, job: &Job) {
        self.saved.insert(job.number, job.clone());
    }

    /// Keeps for the next daemon which epochs are used.
    pub fn keep_epochs(&mut self, epochs: &Epochs) {
        self.epochs = Some(epochs.clone());
    }

    /// Gives the next daemon what an earlier one has saved, if anything, and closes the other jobs.
    pub fn take_over(&mut self) -> Option<Saved> {
        let of_saved: HashSet<_> =
            self.saved.values().flat_map(|job| job.shards.iter().copied()).collect();
        let mut others: Vec<_> =
            self.specs.keys().copied().filter(|job| !of_saved.contains(job)).collect();
        others.sort_unstable();
        others.into_iter().for_each(|job| self.close(job));
        Some(Saved { jobs: self.saved.values().cloned().collect(), epochs: self.epochs.clone()? })
    }

    /// Jobs do not fail to open from now on.
    pub fn heal(&mut self) {
        self.open_fails = 0;
    }

    /// The number of contributions that were accepted so far.
    pub fn contributions(&self) -> u64 {
        self.contributions
    }

    /// The limits of the data plane.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// When a rank's contribution to a round was accepted, if it was.
    pub fn arrival(&self, session: (u32, u16), slot: u16, round: u32, rank: u16) -> Option<Time> {
        self.arrivals.get(&(session, slot, round, rank)).copied()
    }

    /// Where a rank's HELLO came from.
    pub fn binding(&self, job: u16, rank: u16) -> Option<Binding> {
        self.tables.home(job, rank)
    }

    /// Opens a job, if nothing goes wrong.
    pub fn open(&mut self, net: &mut Net, spec: &JobSpec) -> Result<(), Error> {
        if net.rng.chance(self.open_fails) {
            net.tally.fault(Fault::OpenFailure);
            let what = format!("open job {}", spec.number);
            return Err(Error::Refused { what, why: "no luck".to_owned() });
        }
        debug!("{} open {spec:?}", Clock(net.now));
        if !spec.slots.clone().all(|slot| self.used_slots.insert(slot)) {
            net.tally.fault(Fault::SameSlots);
        }
        if !self.specs.is_empty() {
            net.tally.fault(Fault::SharedPool);
        }
        self.tables.open(spec);
        self.specs.insert(spec.number, spec.clone());
        Ok(())
    }

    /// Aborts a job.
    pub fn abort(&mut self, job: u16) {
        self.tables.set_state(job, ABORTED);
    }

    /// Closes a job.
    pub fn close(&mut self, job: u16) {
        self.tables.set_state(job, VACANT);
        self.specs.remove(&job);
        self.started.remove(&job);
        self.saved.remove(&job);
    }

    /// All ranks are ready. Where the scenario wants a later round than 0, the slots become as if
    /// the rounds before were done.
    pub fn start(&mut self, net: &mut Net, number: u16, ways: &[(u16, Way)]) {
        let Some(spec) = self.specs.get(&number) else { return };
        let Some((job, members)) = self.tables.audience(number) else { return };
        let by_group = ways.iter().filter(|(_, way)| *way == Way::Group);
        let by_group: Vec<_> =
            by_group.filter_map(|(rank, _)| self.tables.home(number, *rank)).collect();
        let ways = ways.iter().filter_map(|&(rank, way)| {
            let home = members.get(usize::from(way.home(rank)))?;
            Some((rank, *home, way))
        });
        let receivers = Receivers::new(&job, number, ways).expect("a job of no more places");
        if receivers.differ != 0 && !by_group.is_empty() {
            net.tally.fault(Fault::MixedFanout);
        }
        if self.started.insert(number, (receivers, by_group)).is_some() {
            // A daemon that has taken over makes sure.
            return;
        }
        let Some(binding) = members.first() else { return };
        let Place::Worker(worker) = Place::of(binding) else { return };
        let origin = self
            .origins
            .iter()
            .find(|(workers, _)| workers.contains(&worker))
            .map_or(0, |(_, origin)| *origin);
        if origin == 0 {
            return;
        }
        net.tally.fault(Fault::Wrap);
        let slot = slot_before(origin, &spec.entry(OPEN));
        for index in spec.slots.clone() {
            self.tables.with_slot(index, |entry| {
                entry.clone_from(&slot);
                Outcome::Completed
            });
        }
    }

    /// Serves a datagram from `binding`. `header_intact`: whether at most its lanes and check word
    /// are damaged.
    pub fn serve(
        &mut self,
        net: &mut Net,
        binding: &Binding,
        packet: &[u8],
        congested: bool,
        header_intact: bool,
    ) -> Result<(), Violation> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.extend_from_slice(packet);
        if !self.checks_maxima() && header_intact && overlook(&mut scratch) {
            net.tally.fault(Fault::Overlooked);
        }
        let origin = Origin { binding: *binding, congested };
        let Served { outcome, target } = self.tables.serve(&*self, &mut scratch, &origin);
        net.tally.outcomes[outcome as usize] += 1;
        let from = Place::of(binding);
        trace!("{} {outcome:?} from {from:?}", Clock(net.now));
        ensure!(outcome != Outcome::WrongRound, "REJECT(ROUND): {packet:02x?} from {from:?}");
        let is_damaged = net.tally.is_damaged() || from == Place::Stranger;
        ensure!(outcome != Outcome::BadCheck || is_damaged, "wrong check word: {packet:02x?}");
        if matches!(outcome, Outcome::Started | Outcome::Added | Outcome::Completed)
            && let Ok((header, _)) = Header::ref_from_prefix(packet)
        {
            self.contributions += 1;
            let (first, ranks) = Share::of(header).in_group();
            let session = (header.epoch.get(), header.job.get());
            let (slot, round) = (header.slot.get(), header.round.get());
            for rank in (0..RANKS_PER_GROUP).filter(|rank| ranks >> rank & 1 == 1) {
                self.arrivals.insert((session, slot, round, first + rank), net.now);
            }
        }
        let is_answered = !matches!(target, Target::Nobody | Target::Host);
        ensure!(
            !is_answered || from != Place::Stranger,
            "{outcome:?} for a stranger: {packet:02x?}"
        );
        if let Some(answer) = answer(&scratch) {
            let mut answer = answer.to_vec();
            if !self.checks_maxima() {
                uncheck(&mut answer);
            }
            self.send(net, binding, target, &answer)?;
        }
        self.scratch = scratch;
        Ok(())
    }

    /// Sends what became of a packet from `binding`.
    fn send(
        &self,
        net: &mut Net,
        binding: &Binding,
        target: Target,
        answer: &[u8],
    ) -> Result<(), Violation> {
        let Ok((header, _)) = Header::ref_from_prefix(answer) else { return Ok(()) };
        let (number, rank) = (header.job.get(), header.rank.get());
        let mut hop = Hop::default();
        match egress::route(&self.tables, target, (number, rank), binding.ifindex, &mut hop) {
            None | Some(Copies::None) => {}
            Some(Copies::Back) => net.to_place(self.own, binding, answer, true),
            // To the group: all ranks listen until they know whether it reaches them.
            Some(Copies::One) => {
                for rank in Ranks::ALL.iter() {
                    let member = self.tables.home(number, rank);
                    if let Some(member) = member.filter(|member| member.ifindex == hop.to.ifindex) {
                        self.send_by_group(net, &member, answer);
                    }
                }
            }
            Some(Copies::Each) => return self.send_to_all(net, number, answer),
        }
        Ok(())
    }

    fn send_to_all(&self, net: &mut Net, number: u16, answer: &[u8]) -> Result<(), Violation> {
        let started = self.started.get(&number).zip(self.tables.job(number));
        let Some(((receivers, by_group), job)) = started else {
            return Err(Violation(format!("a RESULT of job {number}, which has not started")));
        };
        ensure!(receivers.epoch == job.epoch, "receivers of an earlier session of job {number}");
        let done = done_of([answer].into_iter());
        for (place, ranks) in receivers.used().zip(receivers.ranks) {
            let answer = match &done {
                Some((done, packet)) if done.is_for(ranks) => packet,
                _ => answer,
            };
            if *place == job.group_at(place.ifindex) {
                let behind = by_group.iter().filter(|member| member.ifindex == place.ifindex);
                behind.for_each(|member| self.send_by_group(net, member, answer));
            } else {
                net.to_place(self.own, place, answer, true);
            }
        }
        Ok(())
    }

    /// Sends to a member of a group.
    fn send_by_group(&self, net: &mut Net, member: &Binding, answer: &[u8]) {
        if let Place::Worker(worker) = Place::of(member) {
            net.to_member(self.own, (worker, member.port.get()), answer);
        }
    }
}

impl Medium for DataPlane {
    fn has_groups(&self) -> bool {
        self.limits.capabilities.contains(Capabilities::GROUP_HELLOS)
    }
}

/// Accepts the lanes of a contribution to a maximum as they are, by fitting its check word. Returns
/// whether they were damaged.
fn overlook(packet: &mut [u8]) -> bool {
    let Ok((header, payload)) = Header::mut_from_prefix(packet) else { return false };
    let Ok(lanes) = <[U32]>::ref_from_bytes(payload) else { return false };
    if header.kind != Kind::Contribution as u8 || header.op != Op::Max as u8 {
        return false;
    }
    let sum = lanes.iter().fold(0u32, |sum, lane| sum.wrapping_add(lane.get()));
    let check = header.check_of(sum, 1);
    let differs = header.check.get() != check;
    header.check.set(check);
    differs
}

/// Removes the check word from the RESULT of a maximum.
fn uncheck(answer: &mut [u8]) {
    if let Ok((header, _)) = Header::mut_from_prefix(answer)
        && header.kind == Kind::Result as u8
        && header.op == Op::Max as u8
    {
        header.flags &= !flags::CHECKED;
        header.check.set(0);
    }
}

/// A slot that has completed the two rounds before `origin`: rounds 0 and 1 are played, then
/// renumbered.
pub fn slot_before(origin: u32, job: &JobEntry) -> Slot {
    let mut slot = Slot::default();
    for (round, rank) in (0..2).flat_map(|round| (0..job.ranks).map(move |rank| (round, rank))) {
        let mut header = Header {
            version: VERSION,
            kind: Kind::Contribution as u8,
            job: U16::ZERO,
            epoch: U32::new(job.epoch),
            rank: U16::new(rank as u16),
            slot: U16::ZERO,
            round: U32::new(round),
            op: Op::Sum as u8,
            flags: flags::CHECKED,
            lanes: U16::new(LANES_PER_BLOCK as u16),
            fingerprint: U32::ZERO,
            check: U32::ZERO,
            aux: U32::ZERO,
        };
        header.check.set(header.check_of(0, 1));
        let payload = &mut [U32::ZERO; LANES_PER_BLOCK][..];
        let mut packet = Packet::new(&mut header, payload, size_of_val(payload));
        contribute(job, &mut slot, Op::Sum, &mut packet);
    }
    for (set, parity) in slot.sets.iter_mut().zip(0..) {
        set.head.round = origin.wrapping_sub(2 - ((parity ^ origin) & 1));
    }
    slot
}
