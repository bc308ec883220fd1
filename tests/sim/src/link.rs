//! A link in one direction, and what it does to packets.

use crate::rng::Rng;
use crate::scenario::{LinkPlan, MS, SLOTS, Time};
use crate::tally::{Fault, Tally};

/// A packet that comes out of a link.
pub struct Delivery {
    /// When it arrives.
    pub at: Time,
    /// The packet's bytes.
    pub packet: Vec<u8>,
    /// Whether the packet was marked on the way.
    pub congested: bool,
    /// Whether the packet is undamaged.
    pub intact: bool,
}

/// See the module.
pub struct Link {
    plan: LinkPlan,
    /// When the queue is empty.
    free_at: Time,
    down_until: Time,
    /// Until when packets take longer, and by how much.
    slow: (Time, Time),
    /// The latest arrival of the packets sent so far.
    last_arrival: Time,
}

impl Link {
    /// A link without packets.
    pub fn new(plan: LinkPlan) -> Self {
        Self { plan, free_at: 0, down_until: 0, slow: (0, 0), last_arrival: 0 }
    }

    /// Largest packet that passes.
    pub fn largest_packet(&self) -> usize {
        self.plan.largest_packet
    }

    /// Loses everything for a while.
    pub fn go_down(&mut self, until: Time) {
        self.down_until = self.down_until.max(until);
    }

    /// Takes so much longer for a while.
    pub fn slow_down(&mut self, until: Time, by: Time) {
        self.slow = (until, by);
    }

    /// Removes all faults; its rate and its queue stay, which are no faults.
    pub fn heal(&mut self) {
        self.plan = LinkPlan {
            jitter: 0,
            loss: 0,
            duplication: 0,
            corruption: 0,
            cutting: 0,
            lateness: 0,
            // A rate of at least 1 Gb/s, and room for a window of the largest packets.
            byte_time: self.plan.byte_time.min(8_000),
            queue: self
                .plan
                .queue
                .max(u64::from(SLOTS[SLOTS.len() - 1]) * self.plan.largest_packet as u64),
            ..self.plan
        };
        (self.down_until, self.slow) = (0, (0, 0));
    }

    /// Takes a packet at `now`; calls `out` with each copy that arrives. A damaged packet is not
    /// damaged again: if it passes combiners that do not verify it, two flips may cancel each other
    /// in its check word (section 27).
    pub fn send(
        &mut self,
        now: Time,
        (packet, intact): (&[u8], bool),
        rng: &mut Rng,
        tally: &mut Tally,
        mut out: impl FnMut(Delivery),
    ) {
        let plan = self.plan;
        if packet.len() > plan.largest_packet {
            return tally.fault(Fault::Oversize);
        }
        let waiting = self.free_at.saturating_sub(now) * 1_000 / plan.byte_time.max(1);
        if waiting + packet.len() as u64 > plan.queue && plan.byte_time > 0 {
            return tally.fault(Fault::QueueFull);
        }
        let congested = plan.marks && plan.byte_time > 0 && waiting > plan.queue / 2;
        if congested {
            tally.fault(Fault::Congestion);
        }
        self.free_at = self.free_at.max(now) + packet.len() as u64 * plan.byte_time / 1_000;
        if now < self.down_until || rng.chance(plan.loss) {
            return tally.fault(Fault::Loss);
        }
        let copies = if rng.chance(plan.duplication) { 2 } else { 1 };
        if copies > 1 {
            tally.fault(Fault::Duplication);
        }
        for _ in 0..copies {
            let mut packet = packet.to_vec();
            let flipped =
                intact && rng.chance(plan.corruption) && flip_bits(&mut packet, rng, tally);
            let cut = intact && rng.chance(plan.cutting) && cut(&mut packet, rng, tally);
            let at = self.arrival(now, rng, tally);
            out(Delivery { at, packet, congested, intact: !flipped && !cut });
        }
    }

    fn arrival(&mut self, now: Time, rng: &mut Rng, tally: &mut Tally) -> Time {
        let mut at = self.free_at + self.plan.delay + rng.below(self.plan.jitter + 1);
        let (until, by) = self.slow;
        if now < until {
            at += by;
        }
        if rng.chance(self.plan.lateness) {
            tally.fault(Fault::Late);
            at += rng.magnitude(MS, self.plan.latest);
        }
        if at < self.last_arrival {
            tally.fault(Fault::Reordering);
        }
        self.last_arrival = self.last_arrival.max(at);
        at
    }
}

/// Flips one bit, or several within an aligned 32-bit word: errors that the check word always
/// finds, or all but one in 2^32.
fn flip_bits(packet: &mut [u8], rng: &mut Rng, tally: &mut Tally) -> bool {
    let (words, _) = packet.as_chunks_mut::<4>();
    if words.is_empty() {
        return false;
    }
    tally.fault(Fault::BitFlips);
    // Every second time in the header, where each bit means something else.
    let header = words.len().min(8) as u64;
    let place = if rng.one_in(2) { rng.below(header) } else { rng.below(words.len() as u64) };
    let flips =
        if rng.one_in(2) { 1 << rng.below(32) } else { rng.range(1, u64::from(u32::MAX)) as u32 };
    let word = &mut words[place as usize];
    *word = (u32::from_be_bytes(*word) ^ flips).to_be_bytes();
    true
}

/// Shortens a packet, or lengthens it.
fn cut(packet: &mut Vec<u8>, rng: &mut Rng, tally: &mut Tally) -> bool {
    tally.fault(Fault::Cut);
    let len = packet.len() as u64;
    let len = if rng.one_in(2) { rng.below(len + 1) } else { len + rng.range(1, 200) };
    let changes = len as usize != packet.len();
    packet.resize(len as usize, rng.any() as u8);
    changes
}
