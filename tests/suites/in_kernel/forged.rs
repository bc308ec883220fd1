//! Packets that somebody other than their rank sends, forged or replayed: they change no slot. With
//! tags, this holds even if they come from the rank's own place.

use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::root::slot::Slot;
use switchml_protocol::wire::header::{HEADER_LEN, flags};
use switchml_rack::needs_racks;

use switchml_test_support::frame::{
    CHECKED, EMPTY, EVERYONE, Envelope, GROUP_IP, HELLO, Packet, key, tagged,
};
use switchml_test_support::kernel::{FIRST_SLOT, Kernel, SLOTS};

const FLAGS: usize = 17;
const RANKS: u16 = 3;

/// A job with something in its slots: in slot 0 rank 0, in slot 1 all of round 0, and round 1 of
/// rank 0.
fn used(has_keys: bool) -> Kernel {
    let mut kernel = Kernel::of_root();
    if has_keys {
        kernel.open_tagged_job(RANKS.into());
    } else {
        kernel.open_job(RANKS.into());
    }
    for (rank, slot, round) in [(0, 0, 0), (0, 1, 0), (1, 1, 0), (2, 1, 0), (0, 1, 1)] {
        send(&kernel, &sent(&contribution(rank, slot, round), has_keys), rank);
    }
    kernel
}

fn contribution(rank: u16, slot: u16, round: u32) -> Packet {
    Packet::contribution(rank, slot, round, &[1 + u32::from(rank); 64])
}

/// The packet's bytes as its rank sends them.
fn sent(packet: &Packet, has_keys: bool) -> Vec<u8> {
    if has_keys { tagged(&packet.bytes(), key(packet.rank)) } else { packet.bytes() }
}

/// The frame of these bytes from the place of a rank.
fn from(rank: u16, packet: &[u8]) -> Vec<u8> {
    contribution(rank, 0, 0).request().bytes(packet)
}

/// Sends bytes from the place of a rank. Returns the outcome, which is the same in XDP and at tc.
#[track_caller]
fn send(kernel: &Kernel, packet: &[u8], rank: u16) -> Outcome {
    send_frame(kernel, &from(rank, packet))
}

#[track_caller]
fn send_frame(kernel: &Kernel, frame: &[u8]) -> Outcome {
    let before = [kernel.counters(), kernel.tc().counters()];
    kernel.run(frame);
    let after = [kernel.counters(), kernel.tc().counters()];
    let [xdp, tc] = [0, 1].map(|hook| {
        let moved = |outcome: &&Outcome| {
            let at = **outcome as usize;
            after[hook][at] != before[hook][at]
        };
        Outcome::ALL.iter().copied().filter(|outcome| moved(&outcome)).collect::<Vec<_>>()
    });
    assert_eq!(xdp, tc);
    assert_eq!(xdp.len(), 1, "{xdp:?}");
    xdp[0]
}

/// The job's slots, in XDP and at tc.
fn slots(kernel: &Kernel) -> Vec<[Slot; 2]> {
    let indices = FIRST_SLOT..FIRST_SLOT + SLOTS;
    indices.map(|index| [kernel.slot(index).slot, kernel.tc().slot(index).slot]).collect()
}

#[test]
fn a_packet_without_the_right_tag_changes_no_slot() {
    needs_racks!();
    let kernel = used(true);
    let before = slots(&kernel);
    // Contributions to a round that it would start, to one that it would join, to one that would
    // return a result, and to one with zeros; and a HELLO.
    let hello = Packet { flags: 0, check: Some(0), ..Packet::hello(1, 32) };
    let zeros =
        Packet { flags: CHECKED | EMPTY, lanes: Some(64), values: vec![], ..contribution(1, 2, 0) };
    let packets =
        [contribution(1, 2, 0), contribution(1, 0, 0), contribution(1, 1, 0), hello, zeros];
    for packet in packets {
        let plain = packet.bytes();
        assert_eq!(send(&kernel, &plain, 1), Outcome::BadTag, "without");
        for other in [0, 2, EVERYONE] {
            let forged = tagged(&plain, key(other));
            assert_eq!(send(&kernel, &forged, 1), Outcome::BadTag, "by the key of {other}");
        }
        let right = tagged(&plain, key(1));
        for bit in 0..64 {
            let mut forged = right.clone();
            forged[plain.len() + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(send(&kernel, &forged, 1), Outcome::BadTag, "bit {bit} of the tag");
        }
        for bit in (0..8 * HEADER_LEN).filter(|bit| !is_ce(*bit)) {
            let mut forged = right.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            let outcome = send(&kernel, &forged, 1);
            assert_eq!(outcome.action(), Action::Drop, "bit {bit} of the header: {outcome:?}");
        }
        assert!(slots(&kernel) == before, "kind {}", packet.kind);
    }
    // The right packet counts.
    assert_eq!(send(&kernel, &sent(&contribution(1, 0, 0), true), 1), Outcome::Added);
}

fn is_ce(bit: usize) -> bool {
    bit / 8 == FLAGS && 1 << (bit % 8) == flags::CE
}

/// Lanes that somebody on the path has changed, together with the check word.
#[test]
fn other_values_are_nothing_without_the_key() {
    needs_racks!();
    for (has_keys, expected) in [(false, Outcome::Added), (true, Outcome::BadTag)] {
        let kernel = used(has_keys);
        let before = slots(&kernel);
        let right = sent(&contribution(1, 0, 0), has_keys);
        let other = Packet { values: vec![7; 64], ..contribution(1, 0, 0) }.bytes();
        let mut forged = right.clone();
        forged[..other.len()].copy_from_slice(&other);
        forged[FLAGS] = right[FLAGS];
        assert_eq!(send(&kernel, &forged, 1), expected);
        assert_eq!(slots(&kernel) == before, has_keys, "without tags it counts");
    }
}

#[test]
fn packets_that_are_played_again_change_no_slot() {
    needs_racks!();
    for has_keys in [false, true] {
        let kernel = used(has_keys);
        let (slots_before, members) = (slots(&kernel), member_places(&kernel));
        let hello = Packet { flags: 0, check: Some(0), ..Packet::hello(0, 32) };
        assert_eq!(hello.kind, HELLO);
        let old = |packet: Packet| Packet { epoch: packet.epoch - 1, ..packet };
        for (packet, expected) in [
            (contribution(0, 0, 0), Outcome::Pending),
            (contribution(0, 1, 0), Outcome::Replayed),
            (contribution(2, 1, 0), Outcome::Replayed),
            (contribution(0, 1, 1), Outcome::Pending),
            (hello.clone(), Outcome::Hello),
            (old(contribution(0, 0, 0)), Outcome::WrongEpoch),
            (old(hello), Outcome::WrongEpoch),
        ] {
            let bytes = sent(&packet, has_keys);
            assert_eq!(send(&kernel, &bytes, packet.rank), expected, "{packet:?}");
            // From another place the packet gets no answer.
            let elsewhere = send(&kernel, &bytes, 1);
            let is_old = expected == Outcome::WrongEpoch;
            let counted = if is_old { Outcome::WrongEpoch } else { Outcome::WrongPlace };
            assert_eq!(elsewhere, counted, "{packet:?} from elsewhere");
            assert!(slots(&kernel) == slots_before, "{packet:?}");
            assert_eq!(member_places(&kernel), members);
        }
        // Two rounds later it is over.
        for (rank, round) in [(1, 1), (2, 1), (0, 2)] {
            send(&kernel, &sent(&contribution(rank, 1, round), has_keys), rank);
        }
        let before = slots(&kernel);
        let late = sent(&contribution(2, 1, 0), has_keys);
        assert_eq!(send(&kernel, &late, 2), Outcome::Stale);
        assert!(slots(&kernel) == before);
    }
}

fn member_places(kernel: &Kernel) -> Vec<switchml_protocol::bpf_types::job::Binding> {
    (0..RANKS).map(|rank| kernel.member(switchml_test_support::frame::JOB, rank).binding).collect()
}

/// An answer that comes back to the aggregator is not a packet for it.
#[test]
fn results_that_are_played_again_are_dropped() {
    needs_racks!();
    for has_keys in [false, true] {
        let kernel = used(has_keys);
        let before = slots(&kernel);
        let result = contribution(1, 1, 0).result_for_all(CHECKED, 3, &[6; 64]);
        let bytes = sent(&result, has_keys);
        assert_eq!(send(&kernel, &bytes, 1), Outcome::BadKind);
        let to_group = Envelope { destination: GROUP_IP, ..result.request() };
        let outcome = send_frame(&kernel, &to_group.bytes(&bytes));
        assert_eq!(outcome.action(), Action::Pass, "{outcome:?}");
        assert!(slots(&kernel) == before);
    }
}
