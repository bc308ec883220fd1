//! The data plane in a switch that runs a program of `p4/`, independent of the switch and its
//! protocol.
//!
//! After each change, the tables hold the entries that [`entries`](crate::entries) computes from
//! the open jobs. Only differences are written, and each written entry is remembered. So if the
//! switch refuses in between, the next change corrects everything.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::thread;

use switchml_control::rank_list;
use switchml_protocol::bpf_types::fanout::Way;
use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::bpf_types::maps::Event;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::{DATA_PORT, LANES_PER_BLOCK, U16};
use switchml_userspace_core::data_plane::{
    DataPlane, Error, EventSink, Fanout, JobSpec, Limits, ServesJobs,
};
use switchml_userspace_core::drop_rate::DropRate;
use switchml_userspace_core::oldest_round::{Alike, Progress};
use switchml_userspace_core::slots::share;
use tracing::error;

use crate::combiner::{JOB_NUMBERS, MAX_SLOTS};
use crate::entries::{Contents, MAX_JOBS, MAX_RANKS, OpenJob, ROUNDS};
use crate::losses;
use crate::program::ProgramKind;
use crate::switch::{Entry, Learned, Switch, SwitchError};
use crate::unfinished::{progress_of, unfinished};

/// Lanes of a part of a packet: a register holds two of the 64 of a set.
const LANES_PER_PART: u16 = 2 * LANES_PER_BLOCK as u16;

/// The role of a switch.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    /// The aggregator, with a program that has these capabilities.
    Root(Capabilities),
    /// A combiner.
    Combiner(NextHop),
}

impl Role {
    /// The kind of program that the switch must run.
    pub const fn program(self) -> ProgramKind {
        match self {
            Self::Root(_) => ProgramKind::Root,
            Self::Combiner(_) => ProgramKind::Combiner,
        }
    }
}

/// The way of frames to a combiner's parent.
#[derive(Clone, Copy, Debug)]
pub struct NextHop {
    /// The switch's port.
    pub port: u16,
    /// MAC of the parent, or of the router on the way.
    pub mac: [u8; 6],
}

/// A data plane in P4.
pub struct P4DataPlane {
    shared: Arc<Shared>,
}

struct Shared {
    switch: Box<dyn Switch>,
    role: Role,
    state: Mutex<State>,
    /// Held during a look at slots, which takes several readings. So of all that look, one at most
    /// is ahead of the entries of new ranks.
    looking: Mutex<()>,
    events: EventSink,
}

#[derive(Default)]
struct State {
    jobs: BTreeMap<u16, OpenJob>,
    drop_rate: DropRate,
    /// The contents of the switch.
    written: Contents,
}

impl P4DataPlane {
    /// Serves a switch that was cleared; `learned` are the HELLOs that it reports, until the data
    /// plane is dropped.
    pub fn start(
        switch: Box<dyn Switch>,
        role: Role,
        learned: Receiver<Learned>,
        events: EventSink,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            switch,
            role,
            state: Mutex::default(),
            looking: Mutex::default(),
            events,
        });
        shared.write(&mut shared.state()).map_err(io::Error::other)?;
        let learner = Arc::downgrade(&shared);
        thread::Builder::new()
            .name("bindings".to_owned())
            .spawn(move || learn_bindings(&learner, &learned))?;
        Ok(Self { shared })
    }

    /// Loses this share of the packets that reach the data plane, for tests.
    pub fn set_drop_rate(&self, drop_rate: DropRate) -> Result<(), SwitchError> {
        let mut state = self.shared.state();
        state.drop_rate = drop_rate;
        self.shared.write(&mut state)
    }

    /// Changes an open job, and the tables with it. If the switch refuses, the job stays unchanged.
    fn change(
        &self,
        number: u16,
        verb: &str,
        change: impl FnOnce(&mut OpenJob),
    ) -> Result<(), Error> {
        let mut state = self.shared.state();
        let Some(job) = state.jobs.get_mut(&number) else { return Ok(()) };
        let before = job.clone();
        change(job);
        let written = self.shared.write(&mut state);
        if written.is_err() {
            state.jobs.insert(number, before);
        }
        written.map_err(refused(number, verb))
    }
}

impl ServesJobs for P4DataPlane {
    fn open(&self, job: &JobSpec) -> Result<(), Error> {
        let refused = refused(job.number, "open");
        let mut state = self.shared.state();
        let open = match (self.shared.role, job.parent) {
            (Role::Root(capabilities), None) => OpenJob {
                takes_roce: capabilities.contains(Capabilities::ROCE),
                ..OpenJob::new(job.clone())
            },
            (Role::Combiner(next_hop), Some(SocketAddr::V4(parent))) => {
                let uplink = Binding {
                    ifindex: next_hop.port.into(),
                    ip: parent.ip().octets().into(),
                    mac: next_hop.mac,
                    port: U16::new(parent.port()),
                    ..Binding::default()
                };
                below(job, uplink, &state.jobs).map_err(&refused)?
            }
            _ => return Err(refused(SwitchError("its program has another role".to_owned()))),
        };
        // Set the registers before any contribution is admitted.
        for (sets, round) in open.first_rounds() {
            for at in self.shared.of_parts(sets) {
                self.shared.switch.write_register(ROUNDS, at, round).map_err(&refused)?;
            }
        }
        state.jobs.insert(job.number, open);
        let written = self.shared.write(&mut state);
        if written.is_err() {
            state.jobs.remove(&job.number);
        }
        written.map_err(&refused)
    }

    fn admit(&self, job: u16, rank: u16, secret: u32) -> Result<(), Error> {
        let is_full = |job: &OpenJob| {
            !job.secrets.contains_key(&rank) && job.secrets.len() >= usize::from(MAX_RANKS)
        };
        if self.shared.state().jobs.get(&job).is_some_and(is_full) {
            let why = format!("there is room for only {MAX_RANKS} ranks below it");
            return Err(refused(job, "extend")(SwitchError(why)));
        }
        self.change(job, "extend", |job| {
            job.secrets.insert(rank, secret);
        })
    }

    fn start(&self, job: u16, _ways: &[(u16, Way)]) -> Result<(), Error> {
        self.shared.check_pipelines(job).map_err(refused(job, "start"))?;
        self.change(job, "start", |job| job.is_started = true)
    }

    fn abort(&self, job: u16) -> Result<(), Error> {
        self.change(job, "abort", |job| job.is_aborted = true)
    }

    fn close(&self, job: u16) -> Result<(), Error> {
        let mut state = self.shared.state();
        state.jobs.remove(&job);
        self.shared.write(&mut state).map_err(refused(job, "close"))
    }

    fn binding(&self, job: u16, rank: u16) -> Result<Option<Binding>, Error> {
        let state = self.shared.state();
        Ok(state.jobs.get(&job).and_then(|job| job.bindings.get(&rank).copied()))
    }
}

impl DataPlane for P4DataPlane {
    fn name(&self) -> &'static str {
        self.shared.switch.name()
    }

    fn attachment(&self) -> String {
        let note = self.shared.state().drop_rate.note();
        format!("{}{note}", self.shared.switch.attachment())
    }

    fn limits(&self) -> Limits {
        let parts = self.shared.switch.parts();
        let slots = self.shared.switch.sets() / u32::from(parts) / 2;
        Limits {
            shards: MAX_JOBS,
            slots_per_shard: share(slots, MAX_JOBS),
            max_lanes: parts * LANES_PER_PART,
            max_ranks: MAX_RANKS,
            max_jobs: MAX_JOBS,
            capabilities: match self.shared.role {
                Role::Root(capabilities) => capabilities,
                // It is no parent of combiners: RESULTs to all go to the group alone, not to the
                // ports of rule 27.4.
                Role::Combiner(_) => Capabilities::empty(),
            },
            ipv4_only: Capabilities::empty(),
            port: DATA_PORT,
            fanout: Fanout::Multicast,
            durable: false,
        }
    }

    fn cells(&self) -> u32 {
        match self.shared.role {
            Role::Root(_) => 0,
            Role::Combiner(_) => self.shared.switch.sets(),
        }
    }

    fn counters(&self) -> Result<[u64; Outcome::COUNT], Error> {
        let why = |error: SwitchError| Error::Refused {
            what: "read the counters".to_owned(),
            why: error.0,
        };
        self.shared.switch.counters().map_err(why)
    }

    fn progress(&self, shard: u16) -> Result<Option<Progress>, Error> {
        let job = self.shared.state().jobs.get(&shard).cloned();
        let Some(job) = job.filter(|job| !job.is_aborted) else { return Ok(None) };
        let _alone = self.shared.looking();
        let found = progress_of(&*self.shared.switch, &job);
        found.map_err(refused(shard, "look at the slots of"))
    }

    fn unfinished(&self, shard: u16) -> Result<Option<Vec<Alike>>, Error> {
        // The switch is read without the lock, which new ranks need.
        let job = self.shared.state().jobs.get(&shard).cloned();
        let Some(job) = job else { return Ok(Some(Vec::new())) };
        let _alone = self.shared.looking();
        let found = unfinished(&*self.shared.switch, &job);
        found.map_err(refused(shard, "look at the slots of"))
    }

    fn is_waiting(&self) -> bool {
        // Who changes the switch's tables has the state meanwhile.
        matches!(self.shared.state.try_lock(), Err(TryLockError::WouldBlock))
    }

    fn stop(&self) {
        let mut state = self.shared.state();
        state.jobs.clear();
        if let Err(error) = self.shared.change_to(&mut state.written, Contents::default()) {
            error!("not all of the data plane is gone from the switch: {error}");
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each written entry is recorded at once, so a panic leaves a consistent state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn looking(&self) -> MutexGuard<'_, ()> {
        self.looking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These sets, of each part of a packet.
    fn of_parts(&self, sets: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let parts = u32::from(self.switch.parts());
        let stride = self.switch.sets() / parts;
        (0..parts).map(move |part| sets.start + part * stride..sets.end + part * stride)
    }

    /// Checks that all ranks of a job are at one pipeline: registers belong to a pipeline.
    fn check_pipelines(&self, number: u16) -> Result<(), SwitchError> {
        let state = self.state();
        let mut found: BTreeMap<_, Vec<u16>> = BTreeMap::new();
        for (rank, binding) in state.jobs.get(&number).into_iter().flat_map(|job| &job.bindings) {
            let port = binding.ifindex as u16;
            found.entry((self.switch.pipeline(port), port)).or_default().push(*rank);
        }
        let pipelines: HashSet<_> = found.keys().map(|(pipeline, _)| pipeline).collect();
        if pipelines.len() < 2 {
            return Ok(());
        }
        let found = found.iter().map(|((pipeline, port), ranks)| {
            format!("{} at port {port} of pipeline {pipeline}", rank_list(ranks))
        });
        let found = found.collect::<Vec<_>>().join(", ");
        Err(SwitchError(format!("all ranks must be at ports of one pipeline, but found {found}")))
    }

    /// Writes the contents that the jobs need to the switch.
    fn write(&self, state: &mut State) -> Result<(), SwitchError> {
        let mut wanted = Contents::of(self.switch.ports(), &state.jobs);
        wanted.entries.extend(losses::entries(state.drop_rate));
        self.change_to(&mut state.written, wanted)
    }

    /// Groups are made before the entries that name them, and removed after them. Entries are
    /// deleted before others are written, in reverse order, so that a job's contributions are no
    /// longer admitted when its other entries go.
    fn change_to(&self, written: &mut Contents, wanted: Contents) -> Result<(), SwitchError> {
        for (&node, ports) in &wanted.groups {
            if written.groups.get(&node) != Some(ports) {
                self.switch.set_node(node, ports)?;
                written.groups.insert(node, ports.clone());
            }
        }
        self.delete_all_but(&mut written.entries, &wanted.entries)?;
        self.enter(&mut written.entries, wanted.entries)?;
        while let Some((&node, _)) =
            written.groups.iter().find(|(node, _)| !wanted.groups.contains_key(node))
        {
            self.switch.set_node(node, &[])?;
            written.groups.remove(&node);
        }
        Ok(())
    }

    fn delete_all_but(
        &self,
        written: &mut Vec<Entry>,
        wanted: &[Entry],
    ) -> Result<(), SwitchError> {
        let wanted: HashSet<_> = wanted.iter().map(Entry::id).collect();
        for index in (0..written.len()).rev() {
            if !wanted.contains(&written[index].id()) {
                self.switch.delete(&written[index])?;
                written.remove(index);
            }
        }
        Ok(())
    }

    /// Modifies entries that exist with other actions, and inserts new ones.
    fn enter(&self, written: &mut Vec<Entry>, wanted: Vec<Entry>) -> Result<(), SwitchError> {
        let held: HashMap<_, _> =
            written.iter().enumerate().map(|(index, entry)| (entry.id(), index)).collect();
        let known: Vec<_> = wanted.iter().map(|entry| held.get(&entry.id()).copied()).collect();
        for (entry, index) in wanted.into_iter().zip(known) {
            match index {
                Some(index) if written[index] == entry => {}
                Some(index) => {
                    self.switch.modify(&entry)?;
                    written[index] = entry;
                }
                None => {
                    self.switch.insert(&entry)?;
                    written.push(entry);
                }
            }
        }
        Ok(())
    }

    /// Binds a rank to the place of its first HELLO; the rank sends it again, and is then answered.
    fn learn(&self, hello: &Learned) {
        let mut state = self.state();
        let job = state.jobs.get_mut(&hello.job).filter(|job| job.spec.epoch == hello.epoch);
        let Some(job) = job.filter(|job| job.secrets.contains_key(&hello.rank)) else { return };
        if job.bindings.contains_key(&hello.rank) {
            return;
        }
        job.bindings.insert(hello.rank, hello.binding);
        if let Err(error) = self.write(&mut state) {
            error!("job {}: rank {} cannot be admitted: {error}", hello.job, hello.rank);
            // The next HELLO tries again.
            if let Some(job) = state.jobs.get_mut(&hello.job) {
                job.bindings.remove(&hello.rank);
            }
            return;
        }
        // If the channel has no room, only the counters count the HELLO.
        (self.events)(event(hello));
    }
}

/// A job below a combiner, without any known ranks yet.
fn below(
    spec: &JobSpec,
    uplink: Binding,
    jobs: &BTreeMap<u16, OpenJob>,
) -> Result<OpenJob, SwitchError> {
    let is_free = |group: &u16| jobs.values().all(|job| job.group != *group);
    let slots = spec.slots.end - spec.slots.start;
    let group = (1..=MAX_JOBS).find(is_free);
    let why = match group {
        Some(group) if spec.number < JOB_NUMBERS && slots <= MAX_SLOTS => {
            return Ok(OpenJob {
                group,
                uplink: Some(uplink),
                secrets: BTreeMap::new(),
                ..OpenJob::new(spec.clone())
            });
        }
        Some(_) => {
            format!("there is room only for jobs below {JOB_NUMBERS}, of up to {MAX_SLOTS} slots")
        }
        None => format!("there is room for only {MAX_JOBS} jobs"),
    };
    Err(SwitchError(why))
}

/// Enters the bindings of ranks, until the switch or the data plane is gone.
fn learn_bindings(shared: &Weak<Shared>, learned: &Receiver<Learned>) {
    while let Ok(hello) = learned.recv() {
        let Some(shared) = shared.upgrade() else { return };
        shared.learn(&hello);
    }
}

fn event(hello: &Learned) -> Event {
    Event {
        binding: hello.binding,
        epoch: hello.epoch,
        round: 0,
        job: hello.job,
        rank: hello.rank,
        slot: 0,
        outcome: Outcome::Hello as u8,
        reserved: 0,
    }
}

fn refused(job: u16, verb: &str) -> impl Fn(SwitchError) -> Error {
    let what = format!("{verb} job {job} on the switch");
    move |error| Error::Refused { what: what.clone(), why: error.0 }
}
