//! One random trace, legal, hostile and malformed, through the kernel and through the protocol
//! crate on the host: packet by packet the same actions, bytes, slots, members, counters and
//! events.
//!
//! `TRACE_SEED` and `TRACE_PACKETS` in the environment make it another trace, or a longer one; a
//! failure names the seed.

mod senders;

use rand::RngExt;
use rand::seq::IndexedRandom;
use std::cell::RefCell;
use std::env;
use switchml_protocol::bpf_types::job::{ABORTED, Binding, JobEntry, MemberEntry, OPEN};
use switchml_protocol::node::frame::TAG_LEN;
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::root::slot::LockedSlot;
use switchml_protocol::root::slot::Slot;
use switchml_protocol::wire::auth::Key;
use switchml_protocol::wire::header::Header;
use switchml_protocol::wire::share::Share;
use switchml_rack::{Mode, in_both_modes};
use zerocopy::FromBytes;

use crate::libbpf::Libbpf;
use senders::Senders;
use switchml_test_support::frame::{
    EPOCH, EVERYONE, IFINDEX, JOB, key, over_ipv6, tagged_frame, v6,
};
use switchml_test_support::host::Host;
use switchml_test_support::kernel::{POOL, binding, job, member};

in_both_modes! {
    kernel_and_host_agree_on_a_random_trace,
}

const SEED: u64 = 0x5EED;
const PACKETS: u64 = 100_000;
/// Poisoned slots stay so until the epoch ends.
const PACKETS_PER_EPOCH: u64 = 250;

fn setting(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number"))
    })
}

/// The kernel, the host, and who sends to both.
struct Trace {
    kernel: Libbpf,
    host: Host,
    senders: Senders,
    epoch: u32,
    /// Whether this epoch's frames are over IPv6.
    is_v6: bool,
    /// Whether this epoch's packets have tags.
    has_keys: bool,
}

impl Trace {
    fn new(mode: Mode, seed: u64) -> Self {
        let host = Host {
            at_tc: mode == Mode::Auto,
            job: JobEntry::default(),
            members: RefCell::new(vec![]),
            slots: RefCell::new(vec![Slot::default(); POOL as usize]),
            busy: false,
            has_group: true,
            counters: [0; Outcome::COUNT],
            events: RefCell::default(),
        };
        Self {
            kernel: Libbpf::new(mode),
            host,
            senders: Senders::new(seed),
            epoch: EPOCH,
            is_v6: false,
            has_keys: false,
        }
    }

    /// A new session, of another size and in other slots.
    fn begin_epoch(&mut self) {
        let random = &mut self.senders.random;
        let ranks = *[1, 2, 2, 3, 3, 3, 5, 8, 64, 100, 1024].choose(random).unwrap();
        let slots = random.random_range(1..=4);
        // Now and then the job's slots reach beyond the pool.
        let first_slot = random.random_range(0..POOL - 1);
        let state = if random.random_ratio(1, 20) { ABORTED } else { OPEN };
        self.has_keys = random.random_ratio(1, 5);
        let key_of = |rank| if self.has_keys { Key::from_bytes(key(rank)) } else { Key::NONE };
        let key = key_of(EVERYONE);
        self.host.job = JobEntry { epoch: self.epoch, state, first_slot, slots, key, ..job(ranks) };
        self.kernel.set_job(JOB, &self.host.job);
        // Some have to say HELLO first.
        let mut spoke_in = || if random.random_ratio(1, 12) { 0 } else { self.epoch };
        let mut members: Vec<_> = (0..ranks as u16)
            .map(|rank| MemberEntry { epoch: spoke_in(), key: key_of(rank), ..member(rank) })
            .collect();
        let is_tagged = !self.host.at_tc && random.random_ratio(1, 3);
        let tag = is_tagged.then(|| random.random::<u16>());
        let together = random.random();
        self.is_v6 = random.random_ratio(1, 3);
        for (rank, member) in (0..).zip(&mut members) {
            if together {
                member.binding = Binding { port: binding(rank).port, ..binding(0) };
            }
            if self.is_v6 {
                member.binding.ip = v6(member.binding.ip.low()).into();
            }
            // The other bits of the tag are priority.
            member.binding.vlan = tag.unwrap_or(0) & 0xFFF;
        }
        self.host.members = RefCell::new(members);
        for (rank, member) in (0..).zip(self.host.members.borrow().iter()) {
            self.kernel.set_member(JOB, rank, member);
        }
        self.host.has_group = !random.random_ratio(1, 10);
        if self.host.has_group {
            self.kernel.set_group(JOB, IFINDEX);
        } else {
            self.kernel.remove_group(JOB);
        }
        self.senders.begin(self.epoch, ranks as u16, slots as u16, tag, together);
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// The slots of the pool that are the job's.
    fn slots(&self) -> std::ops::Range<u32> {
        let JobEntry { first_slot, slots, .. } = self.host.job;
        first_slot..(first_slot + slots).min(POOL)
    }

    /// Lets one of the job's slots have lived for so long that its round numbers wrap around soon.
    fn age(&mut self) {
        let index = self.senders.random.random_range(self.slots());
        {
            let slot = &mut self.host.slots.borrow_mut()[index as usize];
            let heads = slot.sets.each_mut().map(|set| &mut set.head);
            if heads.iter().any(|head| head.epoch != self.host.job.epoch) {
                return;
            }
            // The shift is even, so that each round stays in its set.
            let shift = 0u32.wrapping_sub(6).wrapping_sub(heads[0].round);
            for head in heads {
                head.round = head.round.wrapping_add(shift);
            }
            self.senders.renumber((index - self.host.job.first_slot) as u16, shift);
        }
        self.write_slot(index, 0);
    }

    /// Makes another CPU hold the job's slots, or release them.
    fn set_busy(&mut self, busy: bool) {
        self.host.busy = busy;
        self.slots().for_each(|index| self.write_slot(index, busy.into()));
    }

    fn write_slot(&self, index: u32, lock: u32) {
        let slot = self.host.slots.borrow()[index as usize].clone();
        self.kernel.set_slot(index, &LockedSlot { lock, begun: 0, slot });
    }

    /// One frame through both.
    fn step(&mut self, context: &str) {
        let mut frame = self.senders.next();
        // Now and then as if it were of another job, or with another tag.
        let random = &mut self.senders.random;
        if self.has_keys != random.random_ratio(1, 50) {
            let is_right = random.random_ratio(49, 50);
            frame = tagged_frame(&frame, if is_right { 0 } else { random.random() });
        }
        if self.host.at_tc && frame.len() < switchml_test_support::kernel::tc::ENVELOPE_LEN {
            return;
        }
        if self.is_v6 {
            frame = over_ipv6(&frame);
        }
        let mut run = self.kernel.run(&frame);
        let mut expected = frame.clone();
        let outcome = self.host.run(&mut expected);
        if outcome == Outcome::SendFailed || self.is_v6 && outcome.action() == Action::Drop {
            // Nobody sees this frame. Over IPv6, XDP has already moved its beginning; the program
            // for tc has already used the field of the UDP checksum.
            run.frame.clone_from(&expected);
        }
        let context = || format!("{context}: {outcome:?} of {frame:02x?}");
        let verdict = match outcome.action() {
            Action::Drop => 1,
            Action::Pass => 2,
            Action::Reply | Action::Broadcast => 4,
            Action::Up | Action::Down => panic!("{outcome:?} at a root"),
        };
        assert_eq!(run.verdict, verdict, "verdict, {}", context());
        assert_eq!(run.frame, expected, "frame, {}", context());
        assert_eq!(self.kernel.counters(), self.host.counters, "counters, {}", context());
        assert_eq!(self.kernel.events(), self.host.events.take(), "events, {}", context());
        for index in self.slots() {
            let element = self.kernel.slot(index);
            assert_eq!(element.lock, u32::from(self.host.busy), "lock of {index}, {}", context());
            assert!(
                element.slot == self.host.slots.borrow()[index as usize],
                "slot {index}, {}",
                context()
            );
        }
        if outcome == Outcome::Hello {
            self.compare_members(&context());
        }
        if let Outcome::Started | Outcome::Added | Outcome::Completed | Outcome::SendFailed =
            outcome
        {
            let tag_len = if expected[12..14] == [0x81, 0x00] { TAG_LEN } else { 0 };
            let packet = &expected[headers_len(&expected, tag_len)..];
            let (header, _) = Header::ref_from_prefix(packet).unwrap();
            let (slot, round) = (header.slot.get(), header.round.get());
            match outcome {
                Outcome::Started | Outcome::Added => {
                    let share = Share::of(header);
                    let ranks = (0..32).filter_map(|index| share.rank(index));
                    ranks.for_each(|rank| self.senders.joined(slot, rank));
                }
                _ => self.senders.completed(slot, round),
            }
        }
    }

    fn compare_members(&self, context: &str) {
        for (rank, member) in (0..).zip(self.host.members.borrow().iter()) {
            assert_eq!(self.kernel.member(JOB, rank), *member, "member {rank}, {context}");
        }
    }

    /// Checks all slots and members: a packet must leave the others unchanged.
    fn compare_all(&self, context: &str) {
        for (index, slot) in (0..).zip(self.host.slots.borrow().iter()) {
            assert!(self.kernel.slot(index).slot == *slot, "slot {index}, {context}");
        }
        self.compare_members(context);
    }
}

/// Bytes before a packet.
fn headers_len(frame: &[u8], tag_len: usize) -> usize {
    tag_len + if frame[12 + tag_len..14 + tag_len] == [0x86, 0xDD] { 62 } else { 42 }
}

fn kernel_and_host_agree_on_a_random_trace(mode: Mode) {
    let (seed, packets) = (setting("TRACE_SEED", SEED), setting("TRACE_PACKETS", PACKETS));
    let mut trace = Trace::new(mode, seed);
    for number in 0..packets {
        let context = format!("TRACE_SEED={seed}, packet {number}");
        if number % PACKETS_PER_EPOCH == 0 {
            trace.compare_all(&context);
            trace.begin_epoch();
        }
        let (busy, aged) =
            (trace.senders.random.random_ratio(1, 300), trace.senders.random.random_ratio(1, 100));
        if busy {
            trace.set_busy(true);
        }
        trace.step(&context);
        if busy {
            trace.set_busy(false);
        }
        if aged {
            trace.age();
        }
    }
    trace.compare_all("the end");
    // The trace proves something only if it reaches every outcome.
    // Segments of several jobs occur in superpackets only, losses on purpose in `losses`.
    let elsewhere = |outcome: Outcome| {
        matches!(outcome, Outcome::MixedJobs | Outcome::LostForTests) || outcome.is_of_combiner()
    };
    for outcome in Outcome::ALL.iter().filter(|outcome| !elsewhere(**outcome)) {
        let count = trace.host.counters[*outcome as usize];
        println!("{count:8} {}", outcome.name());
        assert!(count >= packets / 1000, "TRACE_SEED={seed} has only {count} {}", outcome.name());
    }
}
