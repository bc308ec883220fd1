//! What an aggregator must answer: sections 7 and 8 of the specification over an unbounded history.
//!
//! No sets, no shadow copies, no bitmaps, no wrap-around: every round that ever began is kept, with
//! every rank's packet, under its true number. Slow, and meant to be seen to be right.

use std::collections::BTreeMap;
use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::outcome::Outcome;

use crate::packet::{
    ALL_OPS, CE, CHECKED, CONTRIBUTION, DONE, EMPTY, EVERYONE, HELLO, MAX, PARTIAL, PENDING,
    Packet, REJECT, RESULT, ROOM, TAGGED, add_words, check_word, combine, surplus,
};
use crate::switch::{EPOCH, JOB, Served, key, secret};

#[derive(Clone)]
pub struct Reference {
    ranks: u16,
    slots: u16,
    epoch: u32,
    aborted: bool,
    /// Whether the job's packets have tags.
    pub has_tags: bool,
    homes: BTreeMap<u16, Binding>,
    /// All rounds, by slot and true round number.
    rounds: BTreeMap<(u16, i64), Round>,
}

/// One round: the packets that count, by their lowest rank.
#[derive(Clone)]
pub struct Round {
    first: Packet,
    packets: BTreeMap<u16, Packet>,
    dissenter: Option<u16>,
}

impl Round {
    /// The ranks that are in.
    fn ranks(&self) -> Vec<u16> {
        self.packets.values().flat_map(Packet::ranks).collect()
    }
}

impl Reference {
    pub fn new(ranks: u16, slots: u16) -> Self {
        Self {
            ranks,
            slots,
            epoch: EPOCH,
            aborted: false,
            has_tags: false,
            homes: BTreeMap::new(),
            rounds: BTreeMap::new(),
        }
    }

    /// A new session: everything before is forgotten.
    pub fn set_epoch(&mut self, epoch: u32) {
        let has_tags = self.has_tags;
        *self = Self { epoch, has_tags, ..Self::new(self.ranks, self.slots) };
    }

    pub fn abort(&mut self) {
        self.aborted = true;
    }

    pub fn settle(&mut self, rank: u16, home: Binding) {
        self.homes.insert(rank, home);
    }

    /// The newest round of a slot, and whether it is complete.
    pub fn newest(&self, slot: u16) -> Option<(i64, bool)> {
        let (&(_, number), round) = self.rounds.range((slot, 0)..=(slot, i64::MAX)).next_back()?;
        Some((number, self.is_complete(round)))
    }

    /// Ranks that the newest round of a slot lacks.
    pub fn missing(&self, slot: u16) -> Vec<u16> {
        let newest = self.newest(slot).map(|(number, _)| &self.rounds[&(slot, number)]);
        (0..self.ranks)
            .filter(|rank| newest.is_none_or(|round| !round.ranks().contains(rank)))
            .collect()
    }

    /// Renumbers the rounds of all slots, so that a trace begins near the wrap-around.
    pub fn shift_rounds(&mut self, by: i64) {
        let renumber = |((slot, number), mut round): ((u16, i64), Round)| {
            let number = number + by;
            for packet in round.packets.values_mut().chain([&mut round.first]) {
                packet.round = number.rem_euclid(1 << 32) as u32;
                packet.check = check_word(packet, packet.ranks().len() as u64);
            }
            ((slot, number), round)
        };
        self.rounds = std::mem::take(&mut self.rounds).into_iter().map(renumber).collect();
    }

    fn is_complete(&self, round: &Round) -> bool {
        round.ranks().len() == usize::from(self.ranks) && round.dissenter.is_none()
    }

    pub fn receive(&mut self, from: &Binding, packet: &Packet) -> Served {
        let mut served = self.judge(from, packet);
        // A HELLO comes back as it is.
        if self.has_tags && served.outcome != Outcome::Hello {
            served.answer = served.answer.map(|answer| signed(&answer, key(answer.rank)));
        }
        served
    }

    fn judge(&mut self, from: &Binding, packet: &Packet) -> Served {
        if let Some(outcome) = malformed(packet) {
            return dropped(outcome);
        }
        if packet.job != JOB {
            return dropped(Outcome::UnknownJob);
        }
        if packet.epoch != self.epoch {
            return dropped(Outcome::WrongEpoch);
        }
        let ranks = packet.ranks();
        let is_group = packet.kind != PARTIAL || packet.rank.is_multiple_of(32);
        if !is_group || ranks.is_empty() || ranks.iter().any(|rank| *rank >= self.ranks) {
            return dropped(Outcome::BadRank);
        }
        if !self.has_right_tag(packet) {
            return dropped(Outcome::BadTag);
        }
        if packet.kind == HELLO {
            return self.hello(from, packet);
        }
        for rank in ranks {
            match self.homes.get(&rank) {
                None => return dropped(Outcome::NoHello),
                Some(home) if !is_from(packet, from, home) => return dropped(Outcome::WrongPlace),
                Some(_) => {}
            }
        }
        if packet.slot >= self.slots {
            return dropped(Outcome::BadSlot);
        }
        if packet.flags & CHECKED == 0
            || packet.check != check_word(packet, packet.ranks().len() as u64)
        {
            return dropped(Outcome::BadCheck);
        }
        match packet.kind {
            PARTIAL => self.partial(packet),
            _ if packet.flags & EMPTY != 0 => self.zeros(packet),
            _ => self.contribution(packet),
        }
    }

    /// Rule 7.14.
    fn has_right_tag(&self, packet: &Packet) -> bool {
        match packet.tag {
            None => !self.has_tags,
            tag => {
                let right = signed(packet, key(packet.rank)).tag;
                self.has_tags && packet.kind != PARTIAL && tag == right
            }
        }
    }

    /// Rule 8.13: as if the zeros were there, unless that has an answer.
    fn zeros(&mut self, packet: &Packet) -> Served {
        let before = self.clone();
        let zeros = vec![0; usize::from(packet.lanes)];
        let served = self.contribution(&Packet { payload: zeros, ..packet.clone() });
        if served.answer.is_none() {
            return served;
        }
        *self = before;
        let answer = Packet { kind: ROOM, ..packet.clone() };
        Served { outcome: Outcome::Room, answer: Some(answer) }
    }

    /// Rules 8.14 and 8.15.
    fn partial(&mut self, packet: &Packet) -> Served {
        let before = self.clone();
        let served = self.contribution(packet);
        let outcome = match served.outcome {
            Outcome::Started | Outcome::Added | Outcome::Completed | Outcome::Stale => {
                return served;
            }
            Outcome::Replayed | Outcome::Pending => {
                let round = &before.rounds[&(packet.slot, before.true_round(packet))];
                let known = round.ranks();
                let all = packet.ranks().iter().all(|rank| known.contains(rank));
                if all { Outcome::Duplicate } else { Outcome::Overlap }
            }
            _ => Outcome::Conflict,
        };
        *self = before;
        dropped(outcome)
    }

    fn hello(&mut self, from: &Binding, packet: &Packet) -> Served {
        if packet.aux != secret(packet.rank) {
            return dropped(Outcome::WrongSecret);
        }
        if self.homes.entry(packet.rank).or_insert(*from) != from {
            return dropped(Outcome::WrongPlace);
        }
        Served { outcome: Outcome::Hello, answer: Some(packet.clone()) }
    }

    /// The true number of the packet's round: the one nearest to the newest of its parity.
    fn true_round(&self, packet: &Packet) -> i64 {
        let same_parity = |number: i64| number % 2 == i64::from(packet.round % 2);
        let of_slot = self
            .rounds
            .keys()
            .filter(|(slot, number)| *slot == packet.slot && same_parity(*number));
        match of_slot.map(|(_, number)| *number).max() {
            None => i64::from(packet.round),
            Some(newest) => {
                let forward = (i64::from(packet.round) - newest).rem_euclid(1 << 32);
                if forward < 1 << 31 { newest + forward } else { newest + forward - (1 << 32) }
            }
        }
    }

    fn contribution(&mut self, packet: &Packet) -> Served {
        if self.aborted {
            return control_reply(Outcome::Aborted, packet, REJECT, &[3, 0]);
        }
        let (slot, number) = (packet.slot, self.true_round(packet));
        // Rule 8.9: the next round but one has taken its place.
        let superseded = |(other, newer): &(u16, i64)| {
            *other == slot && *newer > number && (newer - number) % 2 == 0
        };
        if self.rounds.keys().any(superseded) {
            return dropped(Outcome::Stale);
        }
        if self.rounds.contains_key(&(slot, number)) {
            return self.join(number, packet);
        }
        let newest = self.newest(slot);
        let may_start = match newest {
            None => number == 0,
            Some((newest, complete)) => complete && number == newest + 1,
        };
        if !may_start {
            let newest = newest.map_or(0, |(number, _)| number.rem_euclid(1 << 32) as u32);
            return control_reply(Outcome::WrongRound, packet, REJECT, &[2, newest]);
        }
        let packets = BTreeMap::from([(packet.ranks()[0], packet.clone())]);
        let round = Round { first: packet.clone(), packets, dissenter: None };
        let served = self.after_adding(&round, Outcome::Started);
        self.rounds.insert((slot, number), round);
        served
    }

    /// Rules 8.3 to 8.6.
    fn join(&mut self, number: i64, packet: &Packet) -> Served {
        let round = self.rounds.get_mut(&(packet.slot, number)).expect("a round that began");
        let call = |packet: &Packet| (packet.op, packet.lanes, packet.fingerprint);
        if round.dissenter.is_none() && call(packet) != call(&round.first) {
            round.dissenter = Some(packet.rank);
        }
        if let Some(dissenter) = round.dissenter {
            let detail = u32::from(*round.first.ranks().last().expect("a rank")) * 65536
                + u32::from(dissenter);
            return control_reply(Outcome::Mismatch, packet, REJECT, &[1, detail]);
        }
        let known = round.ranks();
        let is_new = packet.ranks().iter().all(|rank| !known.contains(rank));
        if is_new {
            round.packets.insert(packet.ranks()[0], packet.clone());
        }
        let round = round.clone();
        if is_new {
            return self.after_adding(&round, Outcome::Added);
        }
        if self.is_complete(&round) {
            let answer = Packet { rank: packet.rank, aux: packet.aux, ..self.result(&round) };
            return Served { outcome: Outcome::Replayed, answer: Some(answer) };
        }
        let mut lanes = vec![0; if self.ranks > 64 { 32 } else { 2 }];
        for rank in round.ranks() {
            lanes[usize::from(rank / 32) ^ 1] |= 1 << (rank % 32);
        }
        control_reply(Outcome::Pending, packet, PENDING, &lanes)
    }

    fn after_adding(&self, round: &Round, incomplete: Outcome) -> Served {
        if self.is_complete(round) {
            Served { outcome: Outcome::Completed, answer: Some(self.result(round)) }
        } else {
            dropped(incomplete)
        }
    }

    /// The RESULT for all.
    fn result(&self, round: &Round) -> Packet {
        let packets: Vec<&Packet> = round.packets.values().collect();
        let op = round.first.op;
        let payloads: Vec<&[u32]> = packets.iter().map(|packet| &packet.payload[..]).collect();
        let congested = packets.iter().any(|packet| packet.flags & CE != 0);
        let mut result = Packet {
            kind: RESULT,
            rank: EVERYONE,
            flags: CHECKED | if congested { CE } else { 0 },
            check: add_words(packets.iter().map(|packet| plain_check(packet))),
            aux: 0,
            payload: combine(op, &payloads),
            ..round.first.clone()
        };
        let check_of_values = check_word(&result, u64::from(self.ranks));
        if op == MAX {
            result.check = check_of_values;
        } else {
            assert_eq!(result.check, check_of_values, "check words add up");
        }
        result
    }
}

/// Refuses a packet for reasons that do not depend on the job.
fn malformed(packet: &Packet) -> Option<Outcome> {
    if packet.version != 1 {
        return Some(Outcome::BadVersion);
    }
    if !(1..=5).contains(&packet.kind) && ![ROOM, PARTIAL, DONE].contains(&packet.kind) {
        return Some(Outcome::BadKind);
    }
    let empty = packet.kind == CONTRIBUTION && packet.flags & EMPTY != 0;
    let has_audience = (64..192).contains(&packet.op);
    if !ALL_OPS.contains(&packet.op) && !has_audience || empty && packet.op == MAX {
        return Some(Outcome::BadOp);
    }
    let lanes_fit = match packet.kind {
        CONTRIBUTION | RESULT | ROOM | PARTIAL => {
            (32..=768).step_by(32).any(|lanes| lanes == packet.lanes)
        }
        HELLO => (0..=768).step_by(32).any(|lanes| lanes == packet.lanes),
        PENDING => [2, 32].contains(&packet.lanes),
        DONE => packet.lanes <= 768,
        _ => packet.lanes == 2,
    };
    if !lanes_fit {
        return Some(Outcome::BadLanes);
    }
    let lanes = if empty || packet.kind == ROOM { 0 } else { packet.lanes };
    let has_room = packet.tag.is_some() == (packet.flags & TAGGED != 0);
    if packet.payload.len() != usize::from(lanes) || !has_room {
        return Some(Outcome::BadLength);
    }
    if ![CONTRIBUTION, HELLO, PARTIAL].contains(&packet.kind) {
        return Some(Outcome::BadKind);
    }
    None
}

/// Rules 28.1 and 28.2: the packet with its tag by this key.
pub fn signed(packet: &Packet, key: [u8; 16]) -> Packet {
    let packet = Packet { flags: packet.flags | TAGGED, ..packet.clone() };
    let covered = Packet { flags: packet.flags & !CE, ..packet.clone() };
    let mut hasher = SipHasher24::new_with_key(&key);
    hasher.write(&covered.to_bytes()[..32]);
    Packet { tag: Some(hasher.finish()), ..packet }
}

/// Rule 7.9.
fn is_from(packet: &Packet, from: &Binding, home: &Binding) -> bool {
    match packet.kind {
        PARTIAL => *from == Binding { port: from.port, ..*home },
        _ => from == home,
    }
}

/// A packet's check word as its contributions' have it.
fn plain_check(packet: &Packet) -> u32 {
    surplus(packet).into_iter().fold(packet.check, u32::wrapping_sub)
}

fn dropped(outcome: Outcome) -> Served {
    Served { outcome, answer: None }
}

/// An answer to the sender with these lanes.
fn control_reply(outcome: Outcome, packet: &Packet, kind: u8, words: &[u32]) -> Served {
    let answer =
        Packet { kind, op: 0, flags: 0, payload: words.to_vec(), ..packet.clone() }.sealed();
    Served { outcome, answer: Some(answer) }
}
