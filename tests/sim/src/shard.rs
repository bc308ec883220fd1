//! A shard of a rank in a job that has started: its data path and its socket, which the product
//! gives a data thread.

use std::borrow::Cow;
use std::rc::Rc;
use std::time::Duration;

use switchml_protocol::bpf_types::job::{JobEntry, OPEN};
use switchml_protocol::wire::header::{Header, Kind};
use switchml_protocol::wire::share::Share;
use switchml_worker_core::data_path::{DataPath, Others};
use switchml_worker_core::engine::{Config, Engine, Failure, Identity, Limits};
use switchml_worker_core::local_results::LocalResults;
use switchml_worker_core::local_slots::LocalSlots;
use switchml_worker_core::local_sum::{LocalSums, Outlet};
use switchml_worker_core::packet::len_of;
use switchml_worker_core::wire::{TurnError, Wire};
use zerocopy::FromBytes;

use crate::data_plane::slot_before;
use crate::hosts::{Doom, Memory, Shared};
use crate::net::{Clock, Event, Net, Violation, ensure};
use crate::oracle::Standing;
use crate::scenario::{JobPlan, MS, Time};
use crate::surroundings::Surroundings;
use crate::tally::Fault;

/// See the module.
pub struct Shard {
    /// The worker's number.
    worker: usize,
    /// The stripe that it is of.
    pub stripe: usize,
    /// The aggregator, and the UDP port of the way there.
    aggregator: usize,
    port: u16,
    /// Whether the aggregator is lost, and no other goes on yet.
    pub is_lost: bool,
    identity: Identity,
    /// When the rank's process dies.
    doom: Doom,
    /// The local sums, and the memory of the host's ranks, if there are others.
    local_sums: Option<LocalSums<Memory>>,
    shared: Option<Shared>,
    /// Results that it posts for the host's other ranks, or reads, if it does.
    local_results: Option<LocalResults<Memory>>,
    /// The slots that serve it in place of the aggregator, if all ranks of the job share memory.
    local_slots: Option<LocalSlots<Memory>>,
    /// The data path.
    pub data_path: DataPath,
    /// The time of the last progress: a result, or the first chunk after a pause.
    progress_at: Time,
    results: u64,
    /// When an intact answer to the oldest chunk has come without a result since then.
    answered_at: Option<Time>,
    /// Since when the rank would not be told of ranks that died.
    unwatched_since: Option<Time>,
    /// When the rank was last told that other ranks are waited for, in an intact packet or one with
    /// bytes appended.
    told_at: Time,
}

/// A shard's way to an aggregator.
pub struct Way {
    /// The aggregator.
    pub aggregator: usize,
    /// The shard's UDP port.
    pub port: u16,
    /// How the engine uses it.
    pub config: Config,
    /// What a HELLO took there and back.
    pub rtt: Duration,
}

/// The rank's cable, which loses packets one by one: of a superpacket some may arrive.
struct Cable<'a> {
    net: &'a mut Net,
    worker: usize,
    /// The aggregator, and the UDP port.
    to: (usize, u16),
    doom: &'a Doom,
    /// The memory of the host's ranks.
    shared: Option<&'a Shared>,
    /// Packets of this turn.
    packets: u32,
    /// Packets of the superpacket, and how many of them are lost.
    together: u32,
    lost: u32,
    /// The last sum of the superpacket: job number, slot, round and ranks.
    sum: Option<((u16, u16, u32), u32)>,
}

impl Wire for Cable<'_> {
    type Error = Violation;

    fn put(&mut self, header: &Header, fill: impl FnOnce(&mut [u8])) -> Result<(), Violation> {
        self.packets += 1;
        ensure!(self.packets <= 1 << 16, "worker {} sends without end", self.worker);
        let mut packet = vec![0xEE; len_of(header)];
        fill(&mut packet);
        if !self.doom.lives() {
            return Ok(());
        }
        self.leave_host(&packet)?;
        let (aggregator, port) = self.to;
        let arrives = self.net.to_aggregator(aggregator, (self.worker, port), &packet);
        self.together += 1;
        self.lost += u32::from(!arrives);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Violation> {
        if 0 < self.lost && self.lost < self.together {
            self.net.tally.fault(Fault::TornBundle);
        }
        (self.together, self.lost, self.sum) = (0, 0, None);
        Ok(())
    }
}

impl Cable<'_> {
    /// Checks a packet, among those of the host's other ranks: a rank that sends again takes along
    /// what others have there, and not its own values as well.
    fn leave_host(&mut self, packet: &[u8]) -> Result<(), Violation> {
        let Ok((header, _)) = Header::ref_from_prefix(packet) else { return Ok(()) };
        let Some(shared) = self.shared.filter(|_| header.kind != Kind::Hello as u8) else {
            return Ok(());
        };
        let chunk = (header.job.get(), header.slot.get(), header.round.get());
        let (_, ranks) = Share::of(header).in_group();
        let is_sum = header.kind == Kind::Partial as u8;
        let before = self.sum.filter(|(of, _)| *of == chunk).map_or(0, |(_, ranks)| ranks);
        ensure!(before & ranks == 0, "worker {} sends values of {chunk:?} twice", self.worker);
        if is_sum {
            self.net.tally.local_sums += 1;
            self.sum = Some((chunk, ranks));
        }
        shared.borrow_mut().leave(header)
    }
}

impl Shard {
    /// The shard of a stripe of a worker's rank, in a job that starts with chunks of `lanes` lanes.
    pub fn new(
        (worker, stripe): (usize, usize),
        Way { aggregator, port, config, rtt }: Way,
        lanes: u16,
        doom: &Doom,
        plan: &JobPlan,
        now: Time,
    ) -> Self {
        let mut engine =
            Engine::starting_at(config, u64::from(plan.origin) * u64::from(config.slots));
        engine.sample_rtt(0, rtt.as_nanos() as u64);
        Self {
            worker,
            stripe,
            aggregator,
            port,
            is_lost: false,
            identity: config.identity,
            doom: doom.clone(),
            local_sums: None,
            shared: None,
            local_results: None,
            local_slots: None,
            data_path: DataPath::new(engine, lanes, plan.batch),
            progress_at: now,
            results: 0,
            answered_at: None,
            unwatched_since: None,
            told_at: 0,
        }
    }

    /// Has the rank add up with the others of its host, from round `origin` on: it is at `place` in
    /// the memory that they share. A superpacket carries `batch` packets.
    pub fn add_up(
        &mut self,
        shared: &Shared,
        (shard, place): (usize, usize),
        batch: u32,
        origin: u32,
    ) {
        let ranks = shared.borrow().ranks.len();
        shared.borrow_mut().begin_at(origin);
        let (shared, doom) = (Rc::clone(shared), self.doom.clone());
        let memory = Memory { shared: Rc::clone(&shared), shard, place, doom };
        self.local_sums = Some(LocalSums::new(memory, place, ranks, batch as usize));
        self.shared = Some(shared);
    }

    /// Has the rank, at `place` in the memory that it shares, post results for others, or read
    /// those of the first one if it `reads`.
    pub fn share_results(&mut self, shared: &Shared, (shard, place): (usize, usize), reads: bool) {
        let (ranks, has_readers) = {
            let shared = shared.borrow();
            (shared.ranks.len(), !shared.readers.is_empty())
        };
        if reads || place == 0 && has_readers {
            let (shared, doom) = (Rc::clone(shared), self.doom.clone());
            let memory = Memory { shared, shard, place, doom };
            self.local_results = Some(LocalResults::new(memory, ranks, !reads));
        }
    }

    /// Has the rank, at `place` in the memory that all ranks of the job share, use so many slots
    /// there, which are in round `origin` when the job starts.
    pub fn share_slots(
        &mut self,
        shared: &Shared,
        (shard, place): (usize, usize),
        slots: u16,
        origin: u32,
    ) {
        let Identity { epoch, ranks, .. } = self.identity;
        let job = JobEntry {
            state: OPEN,
            epoch,
            ranks: ranks.into(),
            slots: slots.into(),
            ..JobEntry::default()
        };
        if origin > 0 {
            shared.borrow_mut().fresh = slot_before(origin, &job);
        }
        let ranks = shared.borrow().ranks.clone();
        let (shared, doom) = (Rc::clone(shared), self.doom.clone());
        let memory = Memory { shared: Rc::clone(&shared), shard, place, doom };
        self.local_slots = Some(LocalSlots::new(memory, epoch, slots, ranks));
        self.shared = Some(shared);
    }

    /// The aggregator is lost.
    pub fn lose(&mut self) {
        self.is_lost = true;
        self.data_path.lose();
    }

    /// Goes on at another aggregator, like `Driver::is_connected`. False if it has kept nothing for
    /// that.
    pub fn resume(&mut self, way: Way, batch: u32, now: Time) -> bool {
        let Way { aggregator, port, config, rtt } = way;
        (self.aggregator, self.port, self.identity) = (aggregator, port, config.identity);
        self.is_lost = false;
        // What was under way in shared memory is lost with the aggregator.
        (self.local_sums, self.local_results, self.shared) = (None, None, None);
        (self.progress_at, self.told_at, self.answered_at) = (now, now, None);
        self.unwatched_since = None;
        self.data_path.resume(config, rtt.as_nanos() as u64, batch)
    }

    /// A datagram has arrived.
    pub fn receive(
        &mut self,
        world: &mut Surroundings<'_>,
        packet: &[u8],
        congested: bool,
        intact: bool,
    ) -> Result<(), Failure> {
        let now = world.net.now;
        let before = self.data_path.engine().stats().clone();
        let oldest = self.data_path.engine().oldest();
        let Self { data_path, local_results, .. } = self;
        let mut has_posted = false;
        let post = |header: &Header, payload: &[u8]| {
            let mut results = local_results.iter_mut();
            has_posted |= results.any(|results| results.post(header, payload));
        };
        data_path.receive_and(now, packet, congested, post)?;
        if has_posted {
            self.ring(world);
        }
        let after = self.data_path.engine().stats();
        for ((total, before), after) in
            world.net.tally.ignored.iter_mut().zip(before.ignored).zip(after.ignored)
        {
            *total += after - before;
        }
        if after.pending > before.pending {
            self.told_at = now;
        }
        let counts = after.results == before.results && after.ignored == before.ignored;
        if intact && counts && answers(packet, oldest, &self.identity) {
            self.answered_at = Some(now);
        }
        Ok(())
    }

    /// Wakes the ranks that wait for what it has posted.
    fn ring(&self, world: &mut Surroundings<'_>) {
        let readers = self.shared.iter().flat_map(|shared| shared.borrow().readers.clone());
        for reader in readers {
            world.net.tally.read_along += 1;
            world.net.schedule(world.net.now, Event::Bell(reader));
        }
    }

    /// Wakes the other ranks of the job, for which it has shown results.
    fn ring_all(&self, world: &mut Surroundings<'_>) {
        let all = self.shared.iter().flat_map(|shared| shared.borrow().workers.clone());
        for other in all.filter(|worker| *worker != self.worker) {
            world.net.tally.in_memory += 1;
            world.net.schedule(world.net.now, Event::Bell(other));
        }
    }

    /// Reads what another rank of the host has posted, like `Driver::read`.
    fn read(&mut self, world: &mut Surroundings<'_>) -> Result<(), Failure> {
        while let Some(slots) = &mut self.local_slots {
            let engine = self.data_path.engine();
            let packet = slots.read(|slot, round| engine.awaits(slot, round));
            let Some(packet) = packet.map(Cow::into_owned) else { break };
            self.receive(world, &packet, false, true)?;
        }
        while let Some(results) = &mut self.local_results {
            let engine = self.data_path.engine();
            let packet = results.read(|slot, round| engine.awaits(slot, round));
            let Some(packet) = packet.map(Cow::into_owned) else { break };
            self.receive(world, &packet, false, true)?;
        }
        Ok(())
    }

    /// Takes a turn, like `Driver::drive`. The rank was frozen until `stalled`.
    pub fn turn(
        &mut self,
        world: &mut Surroundings<'_>,
        others: Others,
        stalled: Time,
    ) -> Result<Result<(), Failure>, Violation> {
        if let Err(failure) = self.read(world) {
            return Ok(Err(failure));
        }
        let now = world.net.now;
        let outstanding = self.data_path.engine().outstanding();
        let unwatched_since = self.unwatched_since.unwrap_or(now);
        self.unwatched_since = (!others.are_watched).then_some(unwatched_since);
        match self.send(world, others) {
            Ok(_) => {}
            Err(TurnError::DataPath(failure)) => return Ok(Err(failure)),
            Err(TurnError::Wire(violation)) => return Err(violation),
        }
        for stats in self.data_path.done() {
            world.net.tally.ahead += stats.speculative;
            world.net.tally.ahead_in_vain += stats.misspeculated;
            world.net.tally.empty += stats.empty;
            world.net.tally.rooms += stats.rooms;
        }
        self.data_path.give_back();
        self.note_progress(now, outstanding);
        self.check_waits(now, stalled, world)?;
        ensure!(
            self.data_path.is_idle() || self.data_path.deadline().is_some(),
            "rank {} has calls in flight, and waits for nothing",
            self.identity.rank
        );
        Ok(Ok(()))
    }

    /// A turn of the data path, whose packets go to memory that serves them, or to the aggregator,
    /// like `Driver::turn`.
    fn send(
        &mut self,
        world: &mut Surroundings<'_>,
        others: Others,
    ) -> Result<usize, TurnError<Violation>> {
        let now = world.net.now;
        if let Some(slots) = &mut self.local_slots {
            let turn = self.data_path.turn(now, others, slots);
            // It does not sleep while there is something to read, like `LocalSlots::wait`.
            let (has_shown, has_news) = (slots.take_shown(), slots.has_news());
            if has_shown && !self.doom.is_over() {
                self.ring_all(world);
            }
            if has_news {
                world.net.schedule(now, Event::Bell(self.worker));
            }
            return turn.map_err(|error| match error {
                TurnError::DataPath(failure) => TurnError::DataPath(failure),
                TurnError::Wire(never) => match never {},
            });
        }
        let wire = Cable {
            net: &mut *world.net,
            worker: self.worker,
            to: (self.aggregator, self.port),
            doom: &self.doom,
            shared: self.shared.as_ref(),
            packets: 0,
            together: 0,
            lost: 0,
            sum: None,
        };
        let mut outlet = Outlet { wire, local_sums: self.local_sums.as_mut() };
        self.data_path.turn(now, others, &mut outlet)
    }

    /// The state of the rank, as this shard knows it.
    pub fn standing(&self, world: &Surroundings<'_>) -> Standing {
        Standing {
            rank: self.identity.rank,
            aggregator: self.aggregator,
            session: (self.identity.epoch, self.identity.job),
            oldest: self.data_path.engine().oldest(),
            answered_at: self.answered_at,
            now: world.net.now,
            deadline: world.scenario.limits.deadline.as_nanos() as Time,
        }
    }

    fn note_progress(&mut self, now: Time, outstanding_before: u32) {
        let engine = self.data_path.engine();
        if engine.stats().results > self.results
            || (outstanding_before == 0 && engine.outstanding() > 0)
        {
            self.results = engine.stats().results;
            self.progress_at = now;
            self.answered_at = None;
        }
    }

    /// Checks that the rank does not wait for the aggregator beyond the deadline, or for other
    /// ranks beyond the timeout. For a rank that was frozen until `stalled`, the deadline starts
    /// again then; while the other ranks are not watched, the deadline counts for them from then on
    /// (rule 14.3).
    fn check_waits(
        &self,
        now: Time,
        stalled: Time,
        world: &Surroundings<'_>,
    ) -> Result<(), Violation> {
        let Limits { deadline, timeout } = world.scenario.limits;
        let end = |from: Time, limit: Duration| from.saturating_add(limit.as_nanos() as Time);
        let since = self.progress_at.max(stalled.min(now));
        let silence = end(since.max(self.told_at), deadline);
        let alone = since.max(self.unwatched_since.unwrap_or_default());
        let wait = end(self.progress_at, timeout).max(end(alone, deadline));
        ensure!(
            self.data_path.engine().outstanding() == 0 || now < silence.min(wait) + MS,
            "rank {} waits since {}, told why at {}, beyond {:?}",
            self.identity.rank,
            Clock(self.progress_at),
            Clock(self.told_at),
            world.scenario.limits
        );
        Ok(())
    }
}

/// Whether an answer belongs to this chunk of this shard. A HELLO that comes back is no answer
/// (rule 14.1).
fn answers(packet: &[u8], chunk: Option<(u16, u32)>, identity: &Identity) -> bool {
    Header::ref_from_prefix(packet).is_ok_and(|(header, _)| {
        header.kind != Kind::Hello as u8
            && Some((header.slot.get(), header.round.get())) == chunk
            && (header.epoch.get(), header.job.get()) == (identity.epoch, identity.job)
    })
}
