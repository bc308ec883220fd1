//! A switch that runs a program of `p4/`, as a subject: the daemon's own data plane fills its
//! tables, on whichever switch.

use crate::in_kernel::{PORTS, by_name};
use crate::spec::{FIRST_SLOT, OpenJobs, spec};
use std::time::{Duration, Instant};
use switchml_p4::data_plane::P4DataPlane;
use switchml_protocol::outcome::Outcome;
use switchml_rack::vectors::{
    Age, Answer, Copies, Counters, Job, Member, Offer, Subject, packet_in,
};
use switchml_test_support::frame::{EVERYONE, Envelope, HELLO, Packet};
use switchml_test_support::message;
use switchml_userspace_core::data_plane::{DataPlane, Limits, ServesJobs};

/// Longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A switch's ports, and what a test does with the switch that the data plane does not.
pub trait Ports {
    /// Features that the switch offers.
    fn features(&self) -> &'static [&'static str];

    /// Parts that a packet may have, and from one to the next the distance of their sets.
    fn parts(&self) -> (u32, u32);

    /// Sends frames into a port, one right behind the other. Returns the frames that leave, with
    /// their ports.
    fn exchange(
        &mut self,
        data_plane: &P4DataPlane,
        port: u16,
        frames: &[Vec<u8>],
    ) -> Result<Vec<Left>, String>;

    /// A frame that left untouched, as it shows at the ports.
    fn as_received(&self, frame: &[u8]) -> Vec<u8> {
        frame.to_vec()
    }

    /// Makes a combiner's cells older than its patience.
    fn forget(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Frames of [`Self::exchange`]'s own that were counted as not of the protocol.
    fn own_frames(&self) -> u64 {
        0
    }

    /// The round that a set holds.
    fn round(&mut self, set: u32) -> Result<u32, String>;

    /// Makes a set hold another round.
    fn set_round(&mut self, set: u32, round: u32) -> Result<(), String>;
}

/// A frame that left, and its port.
pub type Left = (u16, Vec<u8>);

/// A switch in the hands of a data plane.
pub struct P4Switch<P> {
    // Fields are dropped in this order.
    pub data_plane: P4DataPlane,
    pub ports: P,
    /// Jobs that were opened since the last reset, and their first slots.
    jobs: OpenJobs,
}

impl<P: Ports> P4Switch<P> {
    /// A switch without jobs.
    pub fn new(data_plane: P4DataPlane, ports: P) -> Self {
        Self { data_plane, ports, jobs: OpenJobs::new() }
    }

    /// Sends frames into a port, one right behind the other. Returns the frames that leave, with
    /// their ports.
    pub fn exchange(&mut self, port: u16, frames: &[Vec<u8>]) -> Result<Vec<Left>, String> {
        self.ports.exchange(&self.data_plane, port, frames)
    }

    /// Sends a rank's HELLO from its binding until the switch has learned that.
    fn greet(&mut self, job: &Job, member: &Member) -> Result<(), String> {
        let frame = [hello(job, member)];
        // A combiner's parent gets it.
        let comes_to = job.parent.map_or(member.port, |parent| parent.port);
        let begin = Instant::now();
        loop {
            let left = self.exchange(member.port, &frame)?;
            if left.iter().any(|(port, answer)| *port == comes_to && packet_in(answer)[1] == HELLO)
            {
                return Ok(());
            }
            if begin.elapsed() > PATIENCE {
                return Err(format!(
                    "the HELLO of rank {} did not come back within {PATIENCE:?}",
                    member.rank
                ));
            }
        }
    }

    /// Waits until the place of a HELLO that had the right secret is known: the data plane learns
    /// it later.
    fn await_place(&self, frame: &[u8]) -> Result<(), String> {
        let packet = packet_in(frame);
        let number = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        let (job, rank) = (number(2), number(8));
        let begin = Instant::now();
        while self.data_plane.binding(job, rank).map_err(|error| error.to_string())?.is_none() {
            if begin.elapsed() > PATIENCE {
                return Err(format!(
                    "the place of rank {rank} was not learned within {PATIENCE:?}"
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// The ports through which a frame is passed on that is not for the aggregator: its
    /// destination's port, or otherwise all other ports.
    fn stations_of(&self, frame: &[u8], own: u16) -> Vec<u16> {
        let mut members = self.jobs.values().flat_map(|(job, _)| &job.members);
        match members.find(|member| frame.starts_with(&member.mac)) {
            Some(member) => vec![member.port],
            None => (1..=PORTS as u16).filter(|port| *port != own).collect(),
        }
    }

    /// The job of a RESULT to all, if some of its ranks have queue pairs.
    fn mixed_job(&self, answer: &[u8]) -> Option<u16> {
        let packet = packet_in(answer);
        let is_to_all = packet.get(8..10)? == EVERYONE.to_be_bytes();
        let number = u16::from_be_bytes([packet[2], packet[3]]);
        let (job, _) = self.jobs.get(&number).filter(|_| is_to_all)?;
        job.members.iter().any(|member| member.queue_pair.is_some()).then_some(number)
    }

    /// The frames of such a RESULT: the group's by each port with sockets, and each queue pair's.
    fn copies(&self, number: u16, left: &[Left]) -> Result<Answer, String> {
        let members = &self.jobs[&number].0.members;
        let mut copies = Copies::default();
        let mut by = Vec::new();
        for (port, frame) in left {
            if frame[0] & 1 == 0 {
                // A message names its receiver's queue pair, whose numbers differ in all jobs.
                let named =
                    frame.get(47..50).map(|it| u32::from_be_bytes([0, it[0], it[1], it[2]]));
                let member = members.iter().find(|it| it.queue_pair == named && it.port == *port);
                let member = member.ok_or_else(|| format!("at port {port} left {frame:02x?}"))?;
                if copies.ranks.insert(member.rank, frame.clone()).is_some() {
                    return Err(format!("rank {} got two", member.rank));
                }
                continue;
            }
            by.push(*port);
            if copies.group.get_or_insert_with(|| frame.clone()) != frame {
                return Err(format!("frames to the group that differ: {left:02x?}"));
            }
        }
        by.sort_unstable();
        let with_sockets = members.iter().filter(|member| member.queue_pair.is_none());
        let mut expected: Vec<_> = with_sockets.map(|member| member.port).collect();
        expected.sort_unstable();
        expected.dedup();
        if by == expected {
            Ok(Answer::Ranks(number, copies))
        } else {
            Err(format!("an answer to the group at ports {by:?}, not {expected:?}"))
        }
    }

    fn newcomers(&self) -> Result<u64, String> {
        raw_counters(&self.data_plane).map(|counters| counters[Outcome::NoHello as usize])
    }
}

/// Packets by outcome.
pub fn raw_counters(data_plane: &P4DataPlane) -> Result<[u64; Outcome::COUNT], String> {
    data_plane.counters().map_err(|error| error.to_string())
}

fn hello(job: &Job, member: &Member) -> Vec<u8> {
    let packet = Packet::contribution(member.rank, 0, 0, &[]);
    let packet =
        Packet { kind: HELLO, job: job.number, epoch: job.epoch, aux: member.secret, ..packet };
    let (from, (to, _)) = (member.over_v4(), job.over_v4());
    let envelope = Envelope {
        mac_destination: job.mac,
        mac_source: member.mac,
        source: from.ip().octets(),
        destination: to.ip().octets(),
        source_port: from.port(),
        destination_port: to.port(),
        ..Envelope::FROM_AGGREGATOR
    };
    match member.queue_pair {
        None => envelope.bytes(&packet.bytes()),
        Some(number) => {
            let envelope = Envelope { destination_port: message::PORT, ..envelope };
            message::message(&envelope, number, to.port().into(), 0, &packet.bytes())
        }
    }
}

impl<P: Ports> Subject for P4Switch<P> {
    fn offer(&self) -> Offer {
        let Limits { max_lanes, max_ranks, max_jobs, .. } = self.data_plane.limits();
        let slots = self.data_plane.limits().slots();
        let features = self.ports.features().iter().map(ToString::to_string).collect();
        Offer {
            strict: false,
            lanes: max_lanes,
            ranks: max_ranks,
            jobs: max_jobs,
            slots: slots - FIRST_SLOT,
            features,
        }
    }

    fn reset(&mut self) -> Result<(), String> {
        std::mem::take(&mut self.jobs).into_keys().try_for_each(|job| self.close(job))?;
        self.ports.forget()
    }

    fn open(&mut self, job: &Job) -> Result<(), String> {
        let spec = spec(&self.jobs, job);
        self.data_plane.open(&spec).map_err(|error| error.to_string())?;
        if job.parent.is_some() {
            for member in &job.members {
                let admitted = self.data_plane.admit(job.number, member.rank, member.secret);
                admitted.map_err(|error| error.to_string())?;
            }
        }
        for member in job.members.iter().filter(|member| !member.newcomer) {
            self.greet(job, member)?;
        }
        self.data_plane.start(job.number, &[]).map_err(|error| error.to_string())?;
        self.jobs.insert(job.number, (job.clone(), spec.slots.start));
        Ok(())
    }

    fn abort(&mut self, job: u16) -> Result<(), String> {
        self.data_plane.abort(job).map_err(|error| error.to_string())
    }

    fn close(&mut self, job: u16) -> Result<(), String> {
        self.data_plane.close(job).map_err(|error| error.to_string())
    }

    fn age(&mut self, age: &Age) -> Result<(), String> {
        let (job, first_slot) = &self.jobs[&age.job];
        let even = 2 * first_slot + u32::from(age.slot);
        let (parts, stride) = self.ports.parts();
        let sets = [even, even + job.slots];
        for set in (0..parts).flat_map(|part| sets.map(|set| set + part * stride)) {
            let round = self.ports.round(set)?;
            self.ports.set_round(set, round.wrapping_add(age.by))?;
        }
        Ok(())
    }

    fn pause(&mut self) -> Result<(), String> {
        self.ports.forget()
    }

    fn send(&mut self, port: u16, frame: &[u8]) -> Result<Option<Answer>, String> {
        let before = self.newcomers()?;
        let left = self.exchange(port, &[frame.to_vec()])?;
        if packet_in(frame).get(1) == Some(&HELLO) && self.newcomers()? > before {
            self.await_place(frame)?;
        }
        let Some((first_port, answer)) = left.first() else { return Ok(None) };
        if let Some(number) = self.mixed_job(answer) {
            return self.copies(number, &left).map(Some);
        }
        if left.iter().any(|(_, other)| other != answer) {
            return Err(format!("answers that differ: {left:02x?}"));
        }
        let mut at: Vec<_> = left.iter().map(|(port, _)| *port).collect();
        at.sort_unstable();
        if *answer == self.ports.as_received(frame) {
            let expected = self.stations_of(frame, port);
            return if at == expected {
                Ok(Some(Answer::Passed(frame.to_vec())))
            } else {
                Err(format!(
                    "what came in at port {port} went on at ports {at:?}, not {expected:?}"
                ))
            };
        }
        if answer[0] & 1 == 0 {
            return if at.len() == 1 {
                Ok(Some(Answer::Port(*first_port, answer.clone())))
            } else {
                Err(format!("an answer to one at ports {at:?}"))
            };
        }
        let number = u16::from_be_bytes([answer[44], answer[45]]);
        let mut ports: Vec<_> =
            self.jobs[&number].0.members.iter().map(|member| member.port).collect();
        ports.sort_unstable();
        ports.dedup();
        if at == ports {
            Ok(Some(Answer::Group(number, answer.clone())))
        } else {
            Err(format!("an answer to all at ports {at:?}"))
        }
    }

    fn counters(&mut self) -> Result<Counters, String> {
        let mut counters = by_name(&raw_counters(&self.data_plane)?);
        *counters.get_mut("not_ours").expect("such an outcome") -= self.ports.own_frames();
        Ok(counters)
    }
}
