//! Any run of packets from a job's ranks, in order or not, legal or not: the slot machine answers
//! each like the reference of the protocol's tests, which keeps every round forever and adds up
//! wide integers.
#![no_main]

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use switchml_protocol::outcome::Outcome;

use switchml_test_support::packet::{ALL_OPS, CE, CHECKED, Packet, check_word};
use switchml_test_support::reference::{Reference, signed};
use switchml_test_support::switch::{EPOCH, FIRST_SLOT, Switch, binding, contribution, hello, key};

const MAX_STEPS: usize = 400;
/// A run may begin this many rounds before round numbers wrap around.
const BEFORE_WRAP: u32 = 4;

fuzz_target!(|input: &[u8]| {
    // An input that ends early ends the run.
    let _ = run(&mut Unstructured::new(input));
});

fn run(input: &mut Unstructured) -> Result<()> {
    let (ranks, slots) = (*input.choose(&[1, 2, 3, 4, 8])?, input.int_in_range(1..=2)?);
    let mut lockstep = Lockstep::new(ranks, slots, input.arbitrary()?);
    if input.arbitrary()? {
        lockstep.begin_before_wrap();
    }
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        lockstep.step(input)?;
    }
    Ok(())
}

/// The crate's aggregator, and the reference that must give the same answers.
struct Lockstep {
    switch: Switch,
    reference: Reference,
    ranks: u16,
    slots: u16,
    epoch: u32,
    sent: Vec<Packet>,
}

impl Lockstep {
    fn new(ranks: u16, slots: u16, has_tags: bool) -> Self {
        let switch = Switch::ready(ranks.into(), slots.into());
        let mut reference = Reference::new(ranks, slots);
        if has_tags {
            switch.give_keys();
            reference.has_tags = true;
        }
        (0..ranks).for_each(|rank| reference.settle(rank, binding(rank)));
        Self { switch, reference, ranks, slots, epoch: EPOCH, sent: vec![] }
    }

    /// Plays rounds 0 and 1, and gives them the numbers of rounds long after.
    fn begin_before_wrap(&mut self) {
        let first = 0u32.wrapping_sub(BEFORE_WRAP);
        for slot in 0..self.slots {
            for round in 0..2 {
                for rank in 0..self.ranks {
                    self.receive(&self.tagged(contribution(rank, slot, round, vec![1; 32])));
                }
            }
            let slots = &mut self.switch.slots.borrow_mut();
            for (set, round) in
                slots[FIRST_SLOT as usize + usize::from(slot)].sets.iter_mut().zip(first..)
            {
                let sum = contribution(0, slot, round, vec![self.ranks.into(); 32]);
                (set.head.round, set.head.check) = (round, check_word(&sum, self.ranks.into()));
            }
        }
        self.reference.shift_rounds(first.into());
    }

    fn step(&mut self, input: &mut Unstructured) -> Result<()> {
        match input.arbitrary::<u8>()? {
            0..=3 => self.new_epoch(),
            4 => {
                self.switch.abort();
                self.reference.abort();
            }
            5..=40 => {
                let Some(old) = self.sent.get(input.choose_index(self.sent.len().max(1))?) else {
                    return Ok(());
                };
                let again = old.clone();
                self.receive(&again);
            }
            41..=200 => {
                let packet = self.legal(input)?;
                self.send(self.tagged(packet));
            }
            _ => {
                let legal = self.legal(input)?;
                let packet = match input.int_in_range(0..=8)? {
                    // A tag that does not fit, or is missing or one too many.
                    0 => twist(self.tagged(legal), input)?,
                    1 if self.reference.has_tags => legal,
                    1 => signed(&legal, key(legal.rank)),
                    2 => signed(&legal, key(input.int_in_range(0..=9)?)),
                    _ => self.tagged(twist(legal, input)?),
                };
                self.send(packet);
            }
        }
        Ok(())
    }

    fn new_epoch(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.switch.set_epoch(self.epoch);
        self.reference.set_epoch(self.epoch);
        for rank in 0..self.ranks {
            let served = self.receive(&self.tagged(Packet { epoch: self.epoch, ..hello(rank) }));
            assert_eq!(served, Outcome::Hello);
        }
    }

    /// A contribution to the round that the slot is in, or to the next if that is complete, mostly
    /// of a rank that it lacks.
    fn legal(&self, input: &mut Unstructured) -> Result<Packet> {
        let slot = input.int_in_range(0..=self.slots - 1)?;
        let missing = self.reference.missing(slot);
        let (round, missing) = match self.reference.newest(slot) {
            None => (0, missing),
            Some((newest, true)) => (newest + 1, (0..self.ranks).collect()),
            Some((newest, false)) => (newest, missing),
        };
        let anyone: Vec<u16> = (0..self.ranks).collect();
        let ranks = if missing.is_empty() || input.ratio(1, 8)? { &anyone } else { &missing };
        let rank = *input.choose(ranks)?;
        let round = round.rem_euclid(1 << 32) as u32;
        let seed: u32 = input.arbitrary()?;
        // Operator and size belong to the round, so that its ranks agree.
        let lanes = 32 * (1 + round / 4 % 2);
        let payload =
            (0..lanes).map(|lane| seed.wrapping_mul(lane | 1).rotate_left(lane)).collect();
        let packet = contribution(rank, slot, round, payload);
        Ok(Packet { epoch: self.epoch, op: ALL_OPS[(round / 2 % 2) as usize], ..packet }.sealed())
    }

    /// The packet as its rank sends it.
    fn tagged(&self, packet: Packet) -> Packet {
        if self.reference.has_tags { signed(&packet, key(packet.rank)) } else { packet }
    }

    fn send(&mut self, packet: Packet) {
        self.receive(&packet);
        self.sent.push(packet);
    }

    /// Serves a packet from the home of the rank that it names.
    fn receive(&mut self, packet: &Packet) -> Outcome {
        use Outcome::{Added, Completed, Mismatch, Started};
        let home = binding(packet.rank);
        let expected = self.reference.receive(&home, packet);
        let touched = matches!(expected.outcome, Started | Added | Completed | Mismatch);
        let before = (!touched).then(|| self.switch.slots.borrow().clone());
        let served = self.switch.receive(&home, packet);
        assert_eq!(served, expected, "answer to {packet:?}");
        if let Some(before) = before {
            assert!(before == *self.switch.slots.borrow(), "{:?} touched a slot", served.outcome);
        }
        served.outcome
    }
}

/// A packet that breaks a rule, its check word made to fit, or just that made not to.
fn twist(mut packet: Packet, input: &mut Unstructured) -> Result<Packet> {
    match input.int_in_range(0..=13)? {
        0 => packet.round = packet.round.wrapping_add(input.int_in_range(-4i8..=4)? as u32),
        1 => packet.round = input.arbitrary()?,
        2 => packet.op = input.arbitrary()?,
        3 => packet.fingerprint = input.arbitrary()?,
        4 => packet.payload.resize(32 * input.int_in_range(0..=25)?, 7),
        5 => packet.slot = input.arbitrary()?,
        6 => packet.rank = input.int_in_range(0..=70)?,
        7 => packet.epoch = input.arbitrary()?,
        8 => packet.job = input.int_in_range(0..=6)?,
        9 => packet.kind = input.int_in_range(0..=6)?,
        10 => packet.version = input.arbitrary()?,
        11 => {
            // Without CHECKED, any check word is allowed.
            packet.flags = input.arbitrary::<u8>()? & !CHECKED;
            packet.check = input.arbitrary()?;
            return Ok(packet);
        }
        12 => {
            packet.check ^= input.arbitrary::<u32>()?;
            return Ok(packet);
        }
        _ => packet.flags |= CE,
    }
    Ok(packet.sealed())
}
