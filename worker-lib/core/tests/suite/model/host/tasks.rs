//! What ranks of a host do: the real code, a step at a time.

use std::borrow::Cow;

use switchml_protocol::wire::header::{Header, flags};
use switchml_protocol::{EVERYONE, U32};
use switchml_worker_core::local_results::LocalResults;
use switchml_worker_core::local_sum::{LocalSums, Outlet};
use switchml_worker_core::wire::Wire;
use zerocopy::IntoBytes;

use super::super::packets;
use super::super::plan::Contribution;
use super::super::promises::Violation;
use super::super::worker::Worker;
use super::memory::{Cable, Desk, Seen, Spot, is_cut};
use super::network::Host;

/// A rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rank {
    pub worker: Worker,
    /// The local results, if the rank shares memory.
    pub results: Option<LocalResults<Desk>>,
    pub task: Option<Task>,
    pub is_dead: bool,
}

/// What a rank is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// It sends as many new chunks as it may.
    Send,
    /// It sends a chunk again.
    Resend(usize),
    /// It gets an answer.
    Hear(usize),
    /// It gets the right RESULT of a chunk, to all, from a stranger.
    HearForged(usize),
    /// It reads the next result in shared memory.
    Read,
}

/// A task under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    pub what: What,
    /// What its accesses have given so far.
    pub log: Vec<Seen>,
    /// What it reads now.
    pub reads: Vec<Spot>,
}

impl Task {
    pub fn new(what: What) -> Self {
        Self { what, log: Vec::new(), reads: Vec::new() }
    }
}

impl Rank {
    pub fn new(host: &Host, rank: u16) -> Self {
        let place = usize::from(rank);
        let shares = place < host.bounds.sharing;
        let results = || LocalResults::new(Desk(place), host.bounds.sharing, place == 0);
        let worker = Worker::new(&host.plan, 0, rank);
        Self { worker, results: shares.then(results), task: None, is_dead: false }
    }

    /// Does the task, or a part of it.
    pub fn work(&mut self, host: &Host, what: What) -> Result<(), Violation> {
        match what {
            What::Send => {
                let may_send = |worker: &mut Worker| worker.may_send(&host.plan);
                let next = |worker: &mut Worker| may_send(worker).then(|| worker.send(&host.plan));
                let sent: Vec<_> = std::iter::from_fn(|| next(&mut self.worker)).collect();
                self.put(host, &sent, 0);
                Ok(())
            }
            What::Resend(chunk) => {
                self.put(host, &[Contribution::in_full(chunk)], flags::RETRANSMIT);
                Ok(())
            }
            What::Hear(answer) => self.hear(host, &host.packet(answer).bytes),
            What::HearForged(chunk) => self.hear(host, &host.plan.result(0, chunk)),
            What::Read => self.read(host),
        }
    }

    /// Sends contributions as a superpacket.
    fn put(&mut self, host: &Host, sent: &[Contribution], more: u8) {
        let rank = self.worker.view.rank;
        let sums =
            || LocalSums::new(Desk(rank.into()), rank.into(), host.bounds.sharing, usize::MAX);
        let mut sums = self.results.is_some().then(sums);
        let mut outlet = Outlet { wire: Cable, local_sums: sums.as_mut() };
        for contribution in sent {
            let datagram = host.plan.datagram(0, rank, *contribution);
            let datagram = packets::rewritten(datagram, host.plan.setup.ranks, |header| {
                header.flags |= more;
            });
            let header = packets::header(&datagram);
            let Ok(()) = outlet.put(&header, |packet| packet.copy_from_slice(&datagram));
        }
        let Ok(()) = outlet.flush();
    }

    /// Like `DataPath::receive_and`.
    fn hear(&mut self, host: &Host, datagram: &[u8]) -> Result<(), Violation> {
        let before = self.worker.view.got;
        self.worker.hear(&host.plan, datagram)?;
        if self.worker.view.got != before
            && let Some(results) = &mut self.results
        {
            let (header, payload) = packets::split(datagram);
            let header = Header { rank: EVERYONE.into(), aux: U32::ZERO, ..header };
            results.post(&header, payload.as_bytes());
        }
        Ok(())
    }

    /// Like `Driver::read`.
    fn read(&mut self, host: &Host) -> Result<(), Violation> {
        let Self { worker, results, .. } = self;
        let awaits = |slot, round| worker.engine.awaits(slot, round);
        let packet = results.as_mut().and_then(|results| results.read(awaits));
        match packet.map(Cow::into_owned) {
            Some(packet) if !is_cut() => self.hear(host, &packet),
            _ => Ok(()),
        }
    }
}
