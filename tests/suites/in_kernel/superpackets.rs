//! Superpackets: where packets are cut into them means nothing, and one may hold segments of every
//! fate.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::root::slot::LockedSlot;
use switchml_rack::needs_racks;

use switchml_test_support::frame::{CHECKED, Envelope, FILLER, IFINDEX, JOB, Packet, RESULT};
use switchml_test_support::kernel::tc::TcProgram;
use switchml_test_support::kernel::{FIRST_SLOT, Kernel, SLOTS, job, member};

const RANKS: u16 = 3;
const LANES: usize = 32;
/// Bytes of a segment, and of the headers before the first one.
const SEGMENT: usize = 32 + 4 * LANES;
const ENVELOPE: usize = 42;
/// Segments that fit into the kernel's test run, which takes one page.
const MOST: usize = 20;
const TC_ACT_SHOT: u32 = 2;
const TC_ACT_REDIRECT: u32 = 7;
const EVERYONE: [u8; 2] = [0xFF, 0xFF];

/// Packets of one rank as one superpacket; the last may be shorter.
fn superpacket(packets: &[Packet]) -> Vec<u8> {
    let envelope = packets[0].request();
    envelope.bytes(&packets.iter().flat_map(Packet::bytes).collect::<Vec<_>>())
}

fn run(tc: &TcProgram, packets: &[Packet]) -> Option<Vec<Vec<u8>>> {
    let run = tc.run_superpacket(&superpacket(packets), SEGMENT);
    match run.verdict {
        TC_ACT_SHOT => None,
        TC_ACT_REDIRECT => {
            Some(run.frame[ENVELOPE..].chunks(SEGMENT).map(<[u8]>::to_vec).collect())
        }
        verdict => panic!("verdict {verdict}"),
    }
}

fn contribution(rank: u16, slot: u16, round: u32, random: &mut StdRng) -> Packet {
    let values: Vec<u32> = (0..LANES).map(|_| random.random()).collect();
    Packet::contribution(rank, slot, round, &values)
}

/// A packet of that rank: mostly the next of a slot, else an earlier one, or one that something is
/// wrong with. `next` has each rank's next round of each slot.
fn packet(rank: u16, next: &mut [Vec<u32>], random: &mut StdRng) -> Packet {
    let slot = random.random_range(0..SLOTS as usize);
    let round = next[usize::from(rank)][slot];
    let legal = contribution(rank, slot as u16, round, random);
    match random.random_range(0..20) {
        0 => Packet { check: Some(1), ..legal },
        1 => Packet { epoch: legal.epoch + 1, ..legal },
        2 => Packet { version: 9, ..legal },
        3 => Packet { slot: 999, ..legal },
        4 => contribution(rank, slot as u16, round + 3, random),
        // Never another job: there, only segments behind a RESULT are treated differently.
        5 => Packet { flags: 0, ..legal },
        6 if round > 3 => contribution(rank, slot as u16, round - 4, random),
        7..10 if round > 0 => contribution(rank, slot as u16, round - 1, random),
        // A rank is never ahead of another by more than one round.
        _ if next.iter().any(|rounds| rounds[slot] < round) => {
            contribution(rank, slot as u16, round - 1, random)
        }
        _ => {
            next[usize::from(rank)][slot] += 1;
            legal
        }
    }
}

/// The same packets one by one, and in superpackets cut at random, give the same slots, counters
/// and answers.
#[test]
fn any_cut_into_superpackets_is_legal() {
    needs_racks!();
    // Loading the programs takes longer than all else.
    let (mut singly, mut together) =
        (Kernel::with_job(RANKS.into()), Kernel::with_job(RANKS.into()));
    for seed in 0..30 {
        let mut random = StdRng::seed_from_u64(seed);
        for slot in FIRST_SLOT..FIRST_SLOT + SLOTS {
            singly.set_slot(slot, &LockedSlot::default());
            together.set_slot(slot, &LockedSlot::default());
        }
        let before = together.tc().counters();
        let mut next = vec![vec![0; SLOTS as usize]; usize::from(RANKS)];
        for turn in 0..60 {
            let rank = random.random_range(0..RANKS);
            let count = random.random_range(1..=MOST);
            let packets: Vec<_> =
                (0..count).map(|_| packet(rank, &mut next, &mut random)).collect();
            let answers: Vec<_> = packets
                .iter()
                .map(|packet| run(singly.tc(), std::slice::from_ref(packet)))
                .collect();
            let mut begin = 0;
            while begin < count {
                let end = random.random_range(begin + 1..=count);
                let bundle = run(together.tc(), &packets[begin..end]);
                compare(
                    &answers[begin..end],
                    bundle,
                    &format!("seed {seed}, turn {turn}, packets {begin}..{end}"),
                );
                begin = end;
            }
            assert_eq!(
                singly.tc().counters(),
                together.tc().counters(),
                "seed {seed}, turn {turn}"
            );
        }
        for slot in FIRST_SLOT..FIRST_SLOT + SLOTS {
            let (one, other) = (singly.tc().slot(slot), together.tc().slot(slot));
            assert_eq!(one.slot.sets[0].head, other.slot.sets[0].head, "seed {seed}, slot {slot}");
            assert!(one.slot == other.slot, "values of slot {slot}, seed {seed}");
        }
        let counters = together.tc().counters();
        for outcome in [
            Outcome::Completed,
            Outcome::Replayed,
            Outcome::Pending,
            Outcome::BadCheck,
            Outcome::WrongRound,
        ] {
            assert!(
                counters[outcome as usize] > before[outcome as usize],
                "{outcome:?} does not come up with seed {seed}"
            );
        }
    }
}

/// The program leaves the last answer of the superpacket: to the sender if there is one, otherwise
/// to the group. All other segments are FILLERs.
fn compare(singles: &[Option<Vec<Vec<u8>>>], bundle: Option<Vec<Vec<u8>>>, context: &str) {
    let answers: Vec<_> =
        singles.iter().map(|answer| answer.as_ref().map(|segments| &segments[0])).collect();
    let Some(segments) = bundle else {
        return assert!(answers.iter().all(Option::is_none), "no answer, {context}");
    };
    let is_for_all = |answer: &[u8]| answer[1] == RESULT && answer[8..10] == EVERYONE;
    let to_sender = answers.iter().flatten().any(|answer| !is_for_all(answer));
    for (segment, answer) in segments.iter().zip(&answers) {
        match answer {
            Some(answer) if is_for_all(answer) != to_sender => {
                assert_eq!(segment, *answer, "{context}")
            }
            _ => assert_eq!(segment[1], FILLER, "{context}"),
        }
    }
}

/// One superpacket with a segment of every fate, and a short one at its end.
#[test]
fn segments_of_every_fate_in_one_superpacket() {
    needs_racks!();
    let kernel = Kernel::with_job(2);
    let tc = kernel.tc();
    let of = |rank, slot, round| Packet::contribution(rank, slot, round, &[rank.into(); LANES]);
    for packet in [of(0, 0, 0), of(0, 1, 0), of(1, 1, 0), of(1, 4, 0)] {
        run(tc, &[packet]);
    }
    let before = tc.counters();
    let packets = [
        of(1, 0, 0),
        of(1, 1, 0),
        of(1, 2, 0),
        Packet { check: Some(7), ..of(1, 3, 0) },
        of(1, 4, 0),
        of(1, 5, 9),
        Packet { version: 2, ..of(1, 3, 0) },
        Packet::hello(1, 0),
    ];
    let segments = run(tc, &packets).expect("an answer");
    let after = tc.counters();
    let moved = Outcome::ALL
        .iter()
        .filter(|outcome| after[**outcome as usize] == before[**outcome as usize] + 1);
    assert_eq!(
        moved.map(|outcome| outcome.name()).collect::<Vec<_>>(),
        [
            "started",
            "completed",
            "replayed",
            "pending",
            "wrong_round",
            "hello",
            "bad_version",
            "bad_check"
        ]
    );
    // The RESULT for all has gone out; this is the answer to the sender.
    assert_eq!(
        segments.iter().map(|segment| segment[1]).collect::<Vec<_>>(),
        [6, 2, 6, 6, 3, 4, 6, 5]
    );
    assert_eq!(segments[1], of(1, 1, 0).result(CHECKED, 2, &[1; LANES]).bytes());
    assert!(segments[4].starts_with(&of(1, 4, 0).pending(0b10).bytes()));
    assert_eq!(segments[7], Packet::hello(1, 0).bytes());
}

/// The envelope of an answer is as long as the superpacket. Its UDP checksum is the sum of the
/// pseudo-header alone, to be completed when the superpacket is split.
#[test]
fn a_superpackets_answer_is_as_long_and_leaves_the_checksum_open() {
    needs_racks!();
    let kernel = Kernel::with_job(1);
    let packets = [0, 1].map(|slot| Packet::contribution(0, slot, 0, &[3; LANES]));
    let answer = kernel.tc().run_superpacket(&superpacket(&packets), SEGMENT).frame;
    let results: Vec<u8> = packets
        .iter()
        .flat_map(|packet| packet.result_for_all(CHECKED, 1, &[3; LANES]).bytes())
        .collect();
    let envelope = Envelope { udp_checksum: 0, ..group_envelope(&packets[0]) };
    let mut expected = envelope.bytes(&results);
    let words = [&expected[26..34], &[0, 17], &expected[38..40]].concat();
    let sum: u32 = words.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let sum = (sum & 0xFFFF) + (sum >> 16);
    expected[40..42].copy_from_slice(&(sum as u16 + (sum >> 16) as u16).to_be_bytes());
    assert_eq!(answer, expected);
}

/// The envelope of [`Packet::to_group`].
fn group_envelope(packet: &Packet) -> Envelope {
    let frame = packet.to_group();
    let array = |from: usize| -> [u8; 6] { frame[from..from + 6].try_into().unwrap() };
    let address = |from: usize| -> [u8; 4] { frame[from..from + 4].try_into().unwrap() };
    let number = |from: usize| u16::from_be_bytes([frame[from], frame[from + 1]]);
    Envelope {
        mac_destination: array(0),
        mac_source: array(6),
        tos: frame[15],
        id: number(18),
        fragment: number(20),
        ttl: frame[22],
        source: address(26),
        destination: address(30),
        source_port: number(34),
        destination_port: number(36),
        udp_checksum: 0,
    }
}

/// The RESULTs of one superpacket go to one group.
#[test]
fn another_jobs_segments_behind_a_result_are_dropped() {
    needs_racks!();
    let mut kernel = Kernel::with_job(1);
    kernel.set_job(JOB + 1, &job(1));
    kernel.set_member(JOB + 1, 0, &member(0));
    kernel.set_group(JOB + 1, &[IFINDEX]);
    let of = |job, slot| Packet { job, ..Packet::contribution(0, slot, 0, &[5; LANES]) };
    let segments = run(kernel.tc(), &[of(JOB, 0), of(JOB + 1, 1), of(JOB, 2)]).expect("an answer");
    assert_eq!(
        segments.iter().map(|segment| segment[1]).collect::<Vec<_>>(),
        [RESULT, FILLER, RESULT]
    );
    let counters = kernel.tc().counters();
    assert_eq!(
        (counters[Outcome::MixedJobs as usize], counters[Outcome::Completed as usize]),
        (1, 2)
    );
    assert!(kernel.tc().slot(FIRST_SLOT + 1).slot.sets[0].head.count == 0, "nothing was touched");
}

/// The program looks up another job only before a RESULT.
#[test]
fn another_jobs_segments_are_told_by_their_number_alone() {
    needs_racks!();
    let kernel = Kernel::with_job(1);
    let of = |job, slot| Packet { job, ..Packet::contribution(0, slot, 0, &[5; LANES]) };
    let unknown = JOB + 1;
    run(kernel.tc(), &[of(unknown, 0), of(JOB, 0), of(unknown, 1)]).expect("an answer");
    let counters = kernel.tc().counters();
    let counted = [Outcome::UnknownJob, Outcome::Completed, Outcome::MixedJobs]
        .map(|outcome| counters[outcome as usize]);
    assert_eq!(counted, [1, 1, 1]);
}
