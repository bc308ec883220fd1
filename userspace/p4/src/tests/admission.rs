//! Passes packets through the tables, in the order of `p4/include/aggregator.p4`, and compares the
//! outcomes with those of `protocol::root`.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use switchml_protocol::bpf_types::job::{ABORTED, Binding};
use switchml_protocol::node::ingress::Origin;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::wire::header::{Header, Kind, Op, flags};
use switchml_protocol::{DATA_PORT, U16, U32, VERSION};
use zerocopy::{FromBytes, IntoBytes};

use super::{EPOCH, SLOTS, binding, job, jobs};
use crate::entries::{Contents, OpenJob};
use crate::switch::{Entry, Match};
use switchml_userspace_core::memory_tables::MemoryTables;

/// A frame to the aggregator, as the parser leaves it.
#[derive(Clone, Debug)]
struct Frame {
    header: Header,
    binding: Binding,
    is_hello: bool,
}

impl Frame {
    fn fields(&self) -> HashMap<&'static str, u64> {
        let Frame { header, binding, is_hello } = self;
        let aggregator = u32::from_be_bytes([10, 0, 0, 254]);
        HashMap::from([
            ("is_contribution", (!is_hello).into()),
            ("is_hello", (*is_hello).into()),
            ("bad_ip_checksum", 0),
            ("is_udp", 1),
            ("outcome", 0),
            ("flags", header.flags.into()),
            ("job", header.job.get().into()),
            ("epoch", header.epoch.get().into()),
            ("rank", header.rank.get().into()),
            ("slot", header.slot.get().into()),
            ("parity", (header.round.get() & 1).into()),
            ("secret", header.aux.get().into()),
            ("port", binding.ifindex.into()),
            ("mac", binding.mac.iter().fold(0, |mac, byte| mac << 8 | u64::from(*byte))),
            ("address", u32::from_be_bytes(binding.ip.low()).into()),
            ("aggregator", aggregator.into()),
            ("udp_port", binding.port.get().into()),
        ])
    }
}

/// The entry that a table takes.
fn look_up<'a>(
    entries: &'a [Entry],
    table: &str,
    fields: &HashMap<&'static str, u64>,
) -> Option<&'a Entry> {
    let is_hit = |entry: &&Entry| {
        entry.table == table
            && !entry.key.is_empty()
            && entry.key.iter().all(|(name, matched)| match *matched {
                Match::Exact(value) => fields[name] == value,
                Match::Ternary { value, mask } => fields[name] & mask == value,
            })
    };
    entries.iter().filter(is_hit).min_by_key(|entry| entry.priority)
}

/// The outcome of the frame by the tables, and the set's index if it is admitted.
fn admit(entries: &[Entry], frame: &Frame) -> (Outcome, Option<u64>) {
    let mut fields = frame.fields();
    if let Some(entry) = look_up(entries, "members", &fields) {
        return match (entry.action, &entry.data[..]) {
            ("admit", [(_, base), ..]) => (Outcome::Started, Some(base + fields["slot"])),
            _ if frame.header.is_all_zeros() => (Outcome::Room, None),
            _ => (Outcome::Aborted, None),
        };
    }
    fields.insert("udp_port", DATA_PORT.into());
    assert!(
        look_up(entries, "aggregators", &fields).is_some(),
        "it is addressed to the aggregator"
    );
    let fields = frame.fields();
    if frame.is_hello {
        if look_up(entries, "bindings", &fields).is_some() {
            return (Outcome::Hello, None);
        }
        match look_up(entries, "newcomers", &fields).map(|entry| entry.action) {
            // Learned now, so the next one is reflected.
            Some("learn") => return (Outcome::Hello, None),
            Some(_) => return (Outcome::WrongPlace, None),
            None => {}
        }
    }
    let outcome = look_up(entries, "refusals", &fields)
        .map_or(Outcome::UnknownJob as u64, |entry| entry.data[0].1);
    (Outcome::ALL[outcome as usize], None)
}

/// The outcome of the frame by the reference. The packet's values do not matter here.
fn reference(open: &BTreeMap<u16, OpenJob>, frame: &Frame) -> Outcome {
    let tables = MemoryTables::new();
    for job in open.values() {
        tables.open(&job.spec);
        for (&rank, binding) in &job.bindings {
            switchml_protocol::root::admission::Members::learn(
                &tables,
                job.spec.number,
                rank,
                job.spec.epoch,
                binding,
            );
        }
        if job.is_aborted {
            tables.set_state(job.spec.number, ABORTED);
        }
    }
    let mut header = frame.header;
    let lanes = if frame.is_hello { 32 } else { header.payload_lanes() };
    header.check = U32::new(header.check_of(lanes.into(), 1));
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend(vec![[0, 0, 0, 1]; lanes.into()].concat());
    assert!(Header::ref_from_prefix(&bytes).is_ok());
    let origin = Origin { binding: frame.binding, congested: false };
    tables.serve(&(), &mut bytes, &origin).outcome
}

fn header(
    (job, epoch, rank): (u16, u32, u16),
    (slot, round): (u16, u32),
    flags: u8,
    is_hello: bool,
    secret: u32,
) -> Header {
    Header {
        version: VERSION,
        kind: if is_hello { Kind::Hello } else { Kind::Contribution } as u8,
        job: U16::new(job),
        epoch: U32::new(epoch),
        rank: U16::new(rank),
        slot: U16::new(slot),
        round: U32::new(round),
        op: Op::Sum as u8,
        flags,
        lanes: U16::new(32),
        fingerprint: U32::new(7),
        check: U32::new(0),
        aux: U32::new(secret),
    }
}

/// Jobs of all kinds: two that run, one whose second half has said HELLO, one that was aborted, and
/// one of one rank.
fn open_jobs() -> BTreeMap<u16, OpenJob> {
    let mut half = job(2, 6, true);
    half.bindings.retain(|rank, _| *rank >= 3);
    let mut aborted = job(3, 2, true);
    aborted.is_aborted = true;
    jobs([job(0, 3, true), job(1, 32, true), half, aborted, job(4, 1, true)])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn admission_is_that_of_the_protocol(
        (number, rank, round) in (0u16..6, 0u16..40, 0u32..2),
        slot in prop_oneof![4 => 0..SLOTS as u16, 1 => any::<u16>()],
        (own_epoch, checked) in (prop::bool::weighted(0.9), prop::bool::weighted(0.9)),
        empty in any::<bool>(),
        (own_binding, own_secret) in (prop::bool::weighted(0.8), prop::bool::weighted(0.8)),
        (is_hello, other, field) in (any::<bool>(), 0u16..40, 0usize..4),
    ) {
        let open = open_jobs();
        let contents = Contents::of(&[1, 2], &open);
        let epoch = if own_epoch { EPOCH + u32::from(number) } else { EPOCH - 1 };
        let flags = if checked { flags::CHECKED } else { flags::CE };
        let flags = if empty { flags | flags::EMPTY } else { flags };
        let secret = 1000 * u32::from(number) + u32::from(if own_secret { rank } else { other });
        let mut from = binding(rank);
        if !own_binding {
            // The source differs in one field only.
            let elsewhere = binding(other + 40);
            match field {
                0 => from.ifindex = elsewhere.ifindex,
                1 => from.mac = elsewhere.mac,
                2 => from.ip = elsewhere.ip,
                _ => from.port = elsewhere.port,
            }
        }
        let header = header((number, epoch, rank), (slot, round), flags, is_hello, secret);
        let frame = Frame { header, binding: from, is_hello };
        let wrongs = [!own_binding, u32::from(slot) >= SLOTS, !checked];
        let wrongs = wrongs.into_iter().filter(|wrong| *wrong).count();
        let (outcome, index) = admit(&contents.entries, &frame);
        let expected = match reference(&open, &frame) {
            // An unused slot takes only round 0: the tables do not check rounds.
            Outcome::WrongRound => Outcome::Started,
            Outcome::Room if round == 1 && number < 3 => Outcome::Started,
            // A round of one.
            Outcome::Completed => Outcome::Started,
            outcome => outcome,
        };
        if is_hello || wrongs < 2 {
            prop_assert_eq!(outcome, expected, "{:?}", frame);
        } else {
            // Wrong in several ways: refused, for one of them.
            let is_admitted = |outcome| outcome == Outcome::Started;
            prop_assert_eq!(is_admitted(outcome), is_admitted(expected), "{:?}", frame);
            prop_assert!(index.is_none());
        }
    }
}

/// Every member's sets, for both parities: none is anybody else's, in this job or another, and each
/// holds the right round.
#[test]
fn sets_are_disjoint_and_start_right() {
    let open = jobs([job(0, 3, true), job(1, 2, true), job(5, 2, true)]);
    let contents = Contents::of(&[1, 2], &open);
    let mut rounds = HashMap::new();
    for job in open.values() {
        for (sets, round) in crate::entries::first_rounds(&job.spec) {
            for set in sets {
                assert_eq!(
                    rounds.insert(u64::from(set), round),
                    None,
                    "set {set} of job {}",
                    job.spec.number
                );
            }
        }
    }
    let mut users: HashMap<u64, (u16, u16, u32)> = HashMap::new();
    for job in open.values() {
        for (rank, slot, round) in
            [(0, 0, 0), (0, 15, 0), (1, 0, 1), (1, 15, 1), (1, 7, 0), (0, 7, 1)]
        {
            let header = header(
                (job.spec.number, job.spec.epoch, rank),
                (slot, round),
                flags::CHECKED,
                false,
                0,
            );
            let frame = Frame { header, binding: binding(rank), is_hello: false };
            let (outcome, index) = admit(&contents.entries, &frame);
            let index = index.expect("admitted");
            assert_eq!(outcome, Outcome::Started);
            assert_eq!(users.insert(index, (job.spec.number, slot, round)), None);
            assert_eq!(
                rounds[&index],
                round.wrapping_sub(2),
                "round {round} starts on what the set holds"
            );
        }
    }
}
