//! Opening the data path: finds the largest chunk that passes both ways.

use std::time::Duration;

use switchml_protocol::header::{HEADER_LEN, Header, Kind};
use switchml_protocol::{LANES_PER_BLOCK, MAX_LANES, U16, U32, VERSION};
use zerocopy::FromBytes;

use crate::engine::Identity;

/// Waits for an answer at a size that may be too large for the path. Two losses in a row are rare,
/// and cost only a smaller chunk.
const TRIES: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
];
/// Waits at the smallest size: whether the path is open at all.
const PATIENT_TRIES: [Duration; 6] = [
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(600),
    Duration::from_millis(1000),
];
/// Wait for one HELLO more at the size that was found, which only measures.
const SAMPLE_TRIES: [Duration; 1] = [Duration::from_millis(20)];
/// HELLOs that come back before the path counts as measured: the first one also waits for
/// neighbours to be looked up, and any may wait for a busy processor, which makes the path look
/// longer than it is, and the window grow beyond what its queues hold.
const SAMPLES: u32 = 5;

/// What HELLO found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenPath {
    /// Lanes of the largest packet that passes both ways.
    pub lanes: u16,
    /// Whether larger ones do not, though the interface and the aggregator take them.
    pub is_narrow: bool,
    /// The shortest round trip of a HELLO.
    pub rtt: Duration,
}

/// Why there is no data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathFailure {
    /// Not even an empty HELLO came back.
    Closed,
    /// An empty HELLO came back, but not one of a single block.
    TooSmall,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloStep {
    /// Send this header with [`Header::lanes`] lanes of zeros.
    Send(Header),
    /// Wait for a packet, at most until this time.
    Wait(u64),
    /// The path is open.
    Open(OpenPath),
    /// It is not.
    Failed(PathFailure),
}

/// Says HELLO to the aggregator at the largest size that the interface and the aggregator take,
/// then at smaller ones until one comes back, and some more at the size that was found, for the
/// round trip's sake. Each carries its number as its round, which the aggregator does not look at.
/// Times are monotonic, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Hello {
    identity: Identity,
    secret: u32,
    /// Packets of so many blocks pass; `None` before one has.
    passing: Option<usize>,
    /// Packets of so many blocks do not.
    failing: usize,
    /// The largest that interface and aggregator take, in blocks.
    largest: usize,
    /// Blocks of the HELLO that is tried.
    blocks: usize,
    tries: std::slice::Iter<'static, Duration>,
    /// Until when the answer to the last HELLO is waited for.
    until: Option<u64>,
    /// When each HELLO was sent, by its number.
    sent: Vec<u64>,
    /// HELLOs that came back.
    answers: u32,
    /// The shortest round trip.
    rtt: u64,
}

impl Hello {
    /// How long an answer to an empty HELLO is waited for, over all tries.
    pub fn longest_wait() -> Duration {
        PATIENT_TRIES.iter().sum()
    }

    /// A rank's first words: `largest_packet` is what the interface takes in bytes, `max_lanes`
    /// what the aggregator does.
    pub fn new(identity: Identity, secret: u32, largest_packet: usize, max_lanes: u16) -> Self {
        let of_interface = largest_packet.saturating_sub(HEADER_LEN) / 4;
        let largest = of_interface.min(usize::from(max_lanes)).min(MAX_LANES) / LANES_PER_BLOCK;
        let tries: &[Duration] = if largest > 0 { &TRIES } else { &PATIENT_TRIES };
        Self {
            identity,
            secret,
            passing: None,
            failing: largest + 1,
            largest,
            blocks: largest,
            tries: tries.iter(),
            until: None,
            sent: Vec::new(),
            answers: 0,
            rtt: u64::MAX,
        }
    }

    /// What to do now. After [`HelloStep::Send`], ask again.
    pub fn step(&mut self, now: u64) -> HelloStep {
        loop {
            let found = self.found();
            if found == Some(0) {
                return HelloStep::Failed(PathFailure::TooSmall);
            }
            if let Some(until) = self.until.filter(|until| now < *until) {
                return HelloStep::Wait(until);
            }
            if let Some(wait) = self.tries.next() {
                let header = self.header(self.sent.len() as u32);
                self.sent.push(now);
                self.until = Some(now + wait.as_nanos() as u64);
                return HelloStep::Send(header);
            }
            if let Some(blocks) = found {
                let lanes = (blocks * LANES_PER_BLOCK) as u16;
                let rtt = Duration::from_nanos(self.rtt);
                return HelloStep::Open(OpenPath { lanes, is_narrow: blocks < self.largest, rtt });
            }
            if self.blocks == 0 {
                return HelloStep::Failed(PathFailure::Closed);
            }
            self.does_not_pass();
        }
    }

    /// Takes in a packet that came from the aggregator's address.
    pub fn receive(&mut self, now: u64, packet: &[u8]) {
        let Ok((answer, _)) = Header::ref_from_prefix(packet) else { return };
        let number = answer.round.get();
        let Some(sent_at) = self.sent.get(number as usize) else { return };
        let expected = self.header(number);
        // The same HELLO, but that its flags may tell of congestion.
        if (Header { flags: expected.flags, ..*answer }) == expected {
            self.rtt = self.rtt.min(now.saturating_sub(*sent_at));
            self.answers += 1;
            self.passing = Some(self.blocks);
            self.search();
        }
    }

    /// The system refuses to send a packet of this size, or nothing of this size has come back.
    pub fn does_not_pass(&mut self) {
        if self.blocks == 0 {
            // Nothing is smaller.
            self.tries = [].iter();
            return;
        }
        self.failing = self.blocks;
        self.search();
    }

    /// The largest size that passes, in blocks, once it is known.
    fn found(&self) -> Option<usize> {
        self.passing.filter(|passing| self.failing - passing <= 1)
    }

    /// Goes on to the next size: after the largest an empty HELLO, then halving; or to the next
    /// sample of the size that was found.
    fn search(&mut self) {
        let (blocks, tries): (_, &[Duration]) = match (self.passing, self.found()) {
            (None, _) => (0, &PATIENT_TRIES),
            (Some(passing), None) => (passing.midpoint(self.failing), &TRIES),
            (_, Some(found)) if self.answers < SAMPLES => (found, &SAMPLE_TRIES),
            (_, Some(found)) => (found, &[]),
        };
        self.blocks = blocks;
        self.tries = tries.iter();
        self.until = None;
    }

    fn header(&self, number: u32) -> Header {
        Header {
            version: VERSION,
            kind: Kind::Hello as u8,
            job: U16::new(self.identity.job),
            epoch: U32::new(self.identity.epoch),
            rank: U16::new(self.identity.rank),
            slot: U16::ZERO,
            round: U32::new(number),
            op: 0,
            flags: 0,
            lanes: U16::new((self.blocks * LANES_PER_BLOCK) as u16),
            fingerprint: U32::ZERO,
            check: U32::ZERO,
            aux: U32::new(self.secret),
        }
    }
}

#[cfg(test)]
mod tests;
