//! Opening the data path: finds the largest chunk that passes both ways.

use std::time::Duration;

use switchml_protocol::wire::header::{HEADER_LEN, Header, Kind, flags};
use switchml_protocol::{LANES_PER_BLOCK, MAX_LANES, U16, U32, VERSION};
use zerocopy::FromBytes;

use crate::engine::Identity;
use crate::packet::{has_right_tag, write_hello};

/// Waits for an answer at a size that may be too large for the path (rule 11.5). Two losses in a
/// row are rare, and cost only a smaller chunk.
const TRIES: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
];
/// Waits for empty HELLOs, which show whether the path is open at all.
const PATIENT_TRIES: [Duration; 6] = [
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(600),
    Duration::from_millis(1000),
];
/// Wait for one more HELLO at the size that was found, to measure the round trip.
const SAMPLE_TRIES: [Duration; 1] = [Duration::from_millis(20)];
/// HELLOs that must come back before the path counts as measured. The first also waits for the
/// neighbour lookup, and any may wait for a busy processor. That makes the path look longer than it
/// is, and the window grow beyond what its queues hold.
const SAMPLES: u32 = 5;

/// Waits for HELLOs that come by the job's group. A network that blocks the group delays the start
/// by their sum.
const GROUP_TRIES: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
    Duration::from_millis(160),
];
/// Number of HELLOs of a try, of the size that was found: more than one, so that they travel as a
/// superpacket if data does. Some routers forward multicast, but no superpackets.
const GROUP_BURST: u32 = 2;

/// The properties of the path that HELLOs have found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenPath {
    /// Lanes of the largest packet that passes both ways.
    pub lanes: u16,
    /// Whether larger packets do not pass, though the interface and the aggregator accept them.
    pub is_narrow: bool,
    /// The shortest round trip of a HELLO.
    pub rtt: Duration,
    /// Whether HELLOs came by the job's group; `None` if the group was not tested.
    pub hears_group: Option<bool>,
}

/// Why the path does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathFailure {
    /// Not even an empty HELLO came back.
    Closed,
    /// An empty HELLO came back, but not one of a single block (rule 11.6).
    TooSmall,
}

/// The next step of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloStep {
    /// Send this HELLO, which [`Hello::fill`] writes.
    Send(Header),
    /// Wait for a packet, at most until this time.
    Wait(u64),
    /// The path is open.
    Open(OpenPath),
    /// The path does not work.
    Failed(PathFailure),
}

/// Says HELLO to the aggregator at the largest size that the interface and the aggregator take,
/// then at smaller ones until one comes back, and some more at the size that was found, to measure
/// the round trip. Each carries its number in the field `round`, which the aggregator ignores.
/// Times are monotonic, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Hello {
    identity: Identity,
    secret: u32,
    /// Packets of this many blocks pass; `None` before one has passed.
    passing: Option<usize>,
    /// Packets of this many blocks do not pass.
    failing: usize,
    /// Blocks of the largest packet that interface and aggregator accept.
    largest: usize,
    /// Blocks of the HELLO that is being tried.
    blocks: usize,
    tries: std::slice::Iter<'static, Duration>,
    /// Deadline for the answer to the last HELLO.
    until: Option<u64>,
    /// Time at which each HELLO was sent, by its number.
    sent: Vec<u64>,
    /// HELLOs that came back.
    answers: u32,
    /// The shortest round trip.
    rtt: u64,
    group: Option<GroupTest>,
}

/// The test whether the job's group reaches the rank.
#[derive(Clone, Debug)]
struct GroupTest {
    tries: std::slice::Iter<'static, Duration>,
    /// Number of the first HELLO, once one was sent; the others follow.
    first: u32,
    /// HELLOs of this try that are still to be sent, and the wait after them.
    left: u32,
    wait: Duration,
    /// HELLOs that came back, as a bitmap by their place.
    heard: u32,
}

impl GroupTest {
    fn new() -> Self {
        let tries = GROUP_TRIES.iter();
        Self { tries, first: 0, left: 0, wait: Duration::ZERO, heard: 0 }
    }

    /// Whether all HELLOs of one try came back.
    fn hears(&self) -> bool {
        let burst = (1 << GROUP_BURST) - 1;
        (0..GROUP_TRIES.len() as u32)
            .any(|number| self.heard >> (number * GROUP_BURST) & burst == burst)
    }
}

impl Hello {
    /// The total wait for answers to empty HELLOs, over all tries.
    pub fn longest_wait() -> Duration {
        PATIENT_TRIES.iter().sum()
    }

    /// The HELLOs of a rank: `largest_packet` is the interface's limit in bytes, `max_lanes` the
    /// aggregator's limit.
    pub fn new(identity: Identity, secret: u32, largest_packet: usize, max_lanes: u16) -> Self {
        let of_interface = largest_packet.saturating_sub(HEADER_LEN + identity.tag_len()) / 4;
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
            group: None,
        }
    }

    /// Also tests whether the job's group reaches the rank.
    pub fn ask_group(mut self) -> Self {
        self.group = Some(GroupTest::new());
        self
    }

    /// The next step. After [`HelloStep::Send`], call this again.
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
                if let Some(header) = self.next_to_group(now) {
                    return HelloStep::Send(header);
                }
                let hears_group = self.group.as_ref().map(GroupTest::hears);
                let lanes = (blocks * LANES_PER_BLOCK) as u16;
                let rtt = Duration::from_nanos(self.rtt);
                return HelloStep::Open(OpenPath {
                    lanes,
                    is_narrow: blocks < self.largest,
                    rtt,
                    hears_group,
                });
            }
            if self.blocks == 0 {
                return HelloStep::Failed(PathFailure::Closed);
            }
            self.does_not_pass();
        }
    }

    /// The next HELLO whose answer should come by the job's group, if one is left to be sent.
    fn next_to_group(&mut self, now: u64) -> Option<Header> {
        let number = self.sent.len() as u32;
        let group = self.group.as_mut().filter(|group| !group.hears())?;
        if group.left == 0 {
            group.wait = *group.tries.next()?;
            group.left = GROUP_BURST;
            if group.first == 0 {
                group.first = number;
            }
        }
        group.left -= 1;
        if group.left == 0 {
            self.until = Some(now + group.wait.as_nanos() as u64);
        }
        self.sent.push(now);
        let header = self.header(number);
        Some(Header { flags: header.flags | flags::GROUP, ..header })
    }

    /// Processes the answer to a HELLO that came by the job's group.
    fn hear_group(&mut self, answer: &Header) {
        let expected =
            Header { flags: answer.flags, aux: U32::ZERO, ..self.header(answer.round.get()) };
        let Some(group) = self.group.as_mut().filter(|group| group.first > 0) else { return };
        let place = answer.round.get().checked_sub(group.first);
        let most = GROUP_BURST * GROUP_TRIES.len() as u32;
        if let Some(place) = place.filter(|place| *place < most && *answer == expected) {
            group.heard |= 1 << place;
            if group.hears() {
                self.until = None;
            }
        }
    }

    /// Writes a HELLO, of [`len_of`](crate::packet::len_of) bytes.
    pub fn fill(&self, hello: &Header, packet: &mut [u8]) {
        write_hello(&self.identity.keys.own, hello, packet);
    }

    /// Takes in a packet that came from the aggregator's address (rule 11.3).
    pub fn receive(&mut self, now: u64, packet: &[u8]) {
        let Ok((answer, _)) = Header::ref_from_prefix(packet) else { return };
        // Rule 28.5.
        let hello = Header { aux: U32::new(self.secret), ..*answer };
        if !has_right_tag(&self.identity.keys.own, &hello, packet) {
            return;
        }
        if answer.is_for_group() {
            return self.hear_group(answer);
        }
        let number = answer.round.get();
        let Some(sent_at) = self.sent.get(number as usize) else { return };
        let expected = self.header(number);
        // The answer is the HELLO itself, except that its flags may report congestion.
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
            // There is no smaller size.
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

    /// Rule 11.2.
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
            flags: self.identity.flags(),
            lanes: U16::new((self.blocks * LANES_PER_BLOCK) as u16),
            fingerprint: U32::ZERO,
            check: U32::ZERO,
            aux: U32::new(self.secret),
        }
    }
}

#[cfg(test)]
mod tests;
