//! Bytes from anywhere: nothing panics, and nothing that is not admitted touches a slot.

use proptest::prelude::*;
use switchml_protocol::bpf_types::job::{Binding, JobEntry};
use switchml_protocol::node::frame::{self, Ipv4};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::wire::header::{Kind, decode};
use switchml_protocol::wire::ip::Ip;
use zerocopy::FromBytes;

type Envelope = frame::Envelope<Ipv4>;

use switchml_test_support::packet::{ALL_OPS, Packet, TAGGED};
use switchml_test_support::switch::{Switch, binding, contribution};

/// A switch with something in its slots: one begun, one complete, one untouched.
fn used_switch() -> Switch {
    let switch = Switch::ready(3, 3);
    for (rank, slot) in [(0, 0), (0, 1), (1, 1), (2, 1)] {
        switch.receive_from_home(&contribution(rank, slot, 0, vec![1; 32]));
    }
    switch
}

/// A good contribution of rank 1 with a few bytes of its header changed, and maybe another payload.
fn packet_like() -> impl Strategy<Value = Vec<u8>> {
    let patches = prop::collection::vec((0usize..32, any::<u8>()), 0..6);
    let random = prop_oneof![Just(128usize), Just(256), 0..300usize]
        .prop_flat_map(|len| prop::collection::vec(any::<u8>(), len).prop_map(Some));
    (patches, prop_oneof![Just(None), random]).prop_map(|(patches, payload)| {
        let mut bytes = contribution(1, 0, 0, vec![1; 32]).to_bytes();
        for (at, byte) in patches {
            bytes[at] = byte;
        }
        if let Some(payload) = payload {
            bytes.splice(32.., payload);
        }
        bytes
    })
}

/// Bytes that begin like the frame of a packet.
fn frame_like() -> impl Strategy<Value = Vec<u8>> {
    let plain: [u8; 14] = [0x45, 0, 0, 100, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0];
    (prop::collection::vec(any::<u8>(), Envelope::LEN..200), any::<bool>()).prop_map(
        move |(mut bytes, like)| {
            if like {
                bytes[12..14].copy_from_slice(&[0x08, 0x00]);
                bytes[14..28].copy_from_slice(&plain);
            }
            bytes
        },
    )
}

proptest! {
    #[test]
    fn no_bytes_make_decode_panic(
        bytes in prop_oneof![prop::collection::vec(any::<u8>(), 0..400), packet_like()],
    ) {
        if let Ok((header, kind, _, lanes)) = decode(&bytes) {
            // Bytes behind the header of a FILLER mean nothing, nor do bytes behind the lanes of a
            // control reply.
            let count = if kind == Kind::Filler { 0 } else { usize::from(header.payload_lanes()) };
            let tag_len = if header.flags & TAGGED != 0 && kind != Kind::Filler { 8 } else { 0 };
            let end = 32 + 4 * count + tag_len;
            let may_be_longer = matches!(kind, Kind::Filler | Kind::Pending | Kind::Reject);
            prop_assert!(bytes.len() == end || may_be_longer && bytes.len() > end);
            // All else that decodes is what was sent, to the last byte.
            let packet = Packet::from_bytes(&bytes[..end]);
            let lanes: Vec<_> = lanes.iter().map(|lane| lane.get()).collect();
            prop_assert_eq!(packet.payload, lanes);
        }
    }

    #[test]
    fn no_frame_makes_the_envelope_panic(
        bytes in frame_like(),
        ifindex in any::<u32>(),
        lanes in 0u16..=768,
    ) {
        let mut envelope = Envelope::read_from_prefix(&bytes).unwrap().0;
        let _ = envelope.is_udp();
        let _ = envelope.binding(ifindex, 0);
        if let Ok(payload_len) = envelope.payload_len(bytes.len()) {
            prop_assert!(Envelope::LEN + 32 + payload_len <= bytes.len());
        }
        let mut to_group = envelope;
        to_group.send_to(&JobEntry::default().group_at(1), [10, 0, 0, 1].into(), lanes, 0);
        envelope.turn_back(lanes, 0);
        for answer in [envelope, to_group] {
            prop_assert_ne!(answer.payload_len(usize::MAX), Err(Outcome::BadIpChecksum));
        }
    }

    #[test]
    fn strangers_touch_no_slot(
        mut bytes in packet_like(),
        rank in 0u16..3,
        change in 0usize..5,
        by in 1u8..=255,
    ) {
        let switch = used_switch();
        let before = switch.slots.borrow().clone();
        let home = binding(rank);
        let from = [
            Binding { ifindex: home.ifindex ^ u32::from(by), ..home },
            Binding { ip: Ip(home.ip.0.map(|byte| byte ^ by)), ..home },
            Binding { mac: home.mac.map(|byte| byte ^ by), ..home },
            Binding { port: (home.port.get() ^ u16::from(by) << 8).into(), ..home },
            Binding { vlan: home.vlan ^ u16::from(by), ..home },
        ];
        let outcome = switch.receive_bytes(&from[change], &mut bytes);
        prop_assert_eq!(outcome.action(), Action::Drop);
        prop_assert!(before == *switch.slots.borrow(), "{:?}", outcome);
    }

    #[test]
    fn a_members_rubbish_is_no_contribution(mut bytes in packet_like(), rank in 0u16..3) {
        let switch = used_switch();
        let before = switch.slots.borrow().clone();
        let sent = Packet::from_bytes(&bytes[..bytes.len() / 4 * 4]);
        let outcome = switch.receive_bytes(&binding(rank), &mut bytes);
        let admitted = matches!(
            outcome,
            Outcome::Started | Outcome::Added | Outcome::Completed | Outcome::Mismatch
        );
        prop_assert!(admitted || before == *switch.slots.borrow(), "{:?}", outcome);
        // Rubbish does not fit its check word, which leaves out the rank: that is bound to its
        // place.
        let good = contribution(1, 0, 0, vec![1; 32]);
        let (rank, flags, aux) = (good.rank, good.flags, good.aux);
        let as_good = Packet { rank, flags, aux, ..sent.clone() } == good;
        prop_assert!(!admitted || as_good, "{:?}", sent);
    }
}

#[test]
fn a_flipped_bit_on_the_way_never_changes_a_sum() {
    let harmless = |bit: usize| bit / 8 == 17 || (28..32).contains(&(bit / 8)); // flags and aux
    let lanes: Vec<u32> = (0..64).map(|lane| lane * 0x0101_0101).collect();
    // The packet goes to a round that it would start, one that it would be added to, one that it
    // would complete, and one that has it already.
    for (op, slot) in ALL_OPS.into_iter().flat_map(|op| (0..4).map(move |slot| (op, slot))) {
        let packet = |rank| Packet { op, ..contribution(rank, slot, 0, lanes.clone()) }.sealed();
        let in_already: &[u16] = [&[][..], &[0], &[0, 2], &[0, 1]][usize::from(slot)];
        let switch = Switch::ready(3, 4);
        for rank in in_already {
            switch.receive_from_home(&packet(*rank));
        }
        let before = switch.slots.borrow().clone();
        for bit in (0..8 * (32 + 4 * 64)).filter(|bit| !harmless(*bit)) {
            let served = switch.receive(&binding(1), &packet(1).with_bit_flipped(bit));
            assert_eq!(served.outcome.action(), Action::Drop, "op {op:#x}, slot {slot}, bit {bit}");
            assert!(
                before == *switch.slots.borrow(),
                "op {op:#x}, slot {slot}, bit {bit}: {:?}",
                served.outcome
            );
        }
    }
}
