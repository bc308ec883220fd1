//! Who is let in, and what is passed on or dropped. No packet here may touch a slot, and only a
//! member gets an answer.

use switchml_protocol::bpf_types::job::{Binding, JobEntry, MemberEntry};
use switchml_protocol::outcome::Outcome::{self, *};
use switchml_protocol::root::slot::Slot;
use switchml_rack::needs_racks;

use switchml_test_support::frame::{
    AGGREGATOR_IP, AGGREGATOR_MAC, AGGREGATOR_PORT, EPOCH, Envelope, IFINDEX, JOB, PENDING, Packet,
    REJECT, RESULT, fix_ip_checksum,
};
use switchml_test_support::kernel::table::Expect::{self, Drop, Pass, Reply};
use switchml_test_support::kernel::{FIRST_SLOT, Kernel, POOL, SLOTS, binding, job, member};

const ETHERTYPE: usize = 12;
const IP: usize = 14;
const UDP: usize = 34;
const HEADER: usize = 42;
const PAYLOAD: usize = 74;

fn contribution() -> Packet {
    Packet::contribution(1, 2, 0, &[5; 64])
}

/// Checks that no slot of the pool was touched.
#[track_caller]
fn expect_slots_untouched(kernel: &Kernel) {
    for index in 0..POOL {
        let element = kernel.slot(index);
        assert_eq!(element.lock, 0, "lock of slot {index}");
        assert_eq!(element.slot, Slot::default(), "slot {index}");
    }
}

/// An outcome, and a change that makes a right contribution end in it.
type Changed = (Outcome, fn(&mut Packet));

#[test]
fn malformed_packets_are_dropped_by_reason() {
    needs_racks!();
    let kernel = Kernel::with_job(3);
    let table: &[Changed] = &[
        (BadVersion, |p| p.version = 0),
        (BadVersion, |p| p.version = 2),
        (BadKind, |p| p.kind = 0),
        (BadKind, |p| p.kind = RESULT),
        (BadKind, |p| (p.kind, p.values) = (PENDING, vec![0; 2])),
        (BadKind, |p| (p.kind, p.values) = (REJECT, vec![0; 2])),
        (BadKind, |p| p.kind = 6),
        (BadKind, |p| p.kind = 255),
        (BadOp, |p| p.op = 0x02),
        (BadOp, |p| p.op = 0x0F),
        (BadOp, |p| p.op = 0x20),
        (BadLanes, |p| p.values.clear()),
        (BadLanes, |p| p.values.truncate(31)),
        (BadLanes, |p| p.values.truncate(33)),
        (BadLanes, |p| p.values = vec![0; 800]),
        (BadLanes, |p| p.lanes = Some(0xFFE0)),
        (BadLength, |p| p.lanes = Some(32)),
        (BadLength, |p| p.lanes = Some(96)),
        (BadLength, |p| p.lanes = Some(768)),
        (BadLength, |p| (p.lanes, p.values) = (Some(768), vec![0; 832])),
        (BadCheck, |p| p.flags = 0),
        (BadCheck, |p| p.check = Some(p.right_check() ^ 1)),
        (BadCheck, |p| p.check = Some(p.right_check().wrapping_add(0x8000_0000))),
    ];
    for (outcome, change) in table {
        let mut packet = contribution();
        change(&mut packet);
        kernel.expect(&packet, &Drop(*outcome));
    }
    expect_slots_untouched(&kernel);
}

/// Changes each field that goes into the check word, and each lane, without updating the check
/// word.
#[test]
fn the_check_word_guards_every_field_and_lane() {
    needs_racks!();
    let mut kernel = Kernel::with_job(3);
    kernel.set_job(JOB + 1, &job(3));
    kernel.set_member(JOB + 1, 1, &member(1));
    let check = Some(contribution().right_check());
    let table: &[fn(&mut Packet)] = &[
        |p| p.job += 1,
        |p| p.slot += 1,
        |p| p.round += 1,
        |p| p.op = 1,
        |p| p.fingerprint ^= 1 << 31,
    ];
    for change in table {
        let mut packet = Packet { check, ..contribution() };
        change(&mut packet);
        kernel.expect(&packet, &Drop(BadCheck));
    }
    for lane in 0..64 {
        let mut packet = Packet { check, ..contribution() };
        packet.values[lane] ^= 1 << (lane % 32);
        kernel.expect(&packet, &Drop(BadCheck));
    }
    expect_slots_untouched(&kernel);
}

#[test]
fn what_is_not_of_the_session_is_dropped() {
    needs_racks!();
    let mut kernel = Kernel::with_job(3);
    kernel.set_member(JOB, 2, &MemberEntry { epoch: EPOCH - 1, ..member(2) });
    // A job whose slots lie beyond the end of the pool.
    kernel.set_job(8, &JobEntry { first_slot: POOL - 1, ..job(2) });
    kernel.set_member(8, 1, &member(1));
    let table: &[Changed] = &[
        (UnknownJob, |p| p.job = 0),
        (UnknownJob, |p| p.job = 255),
        (UnknownJob, |p| p.job = 256),
        (UnknownJob, |p| p.job = 0xFFFF),
        (WrongEpoch, |p| p.epoch = EPOCH + 1),
        (WrongEpoch, |p| p.epoch = 0),
        (BadRank, |p| p.rank = 3),
        (BadRank, |p| p.rank = 64),
        (BadRank, |p| p.rank = 0xFFFF),
        (NoHello, |p| p.rank = 2),
        (BadSlot, |p| p.slot = SLOTS as u16),
        (BadSlot, |p| p.slot = 0xFFFF),
        (BadSlot, |p| (p.job, p.slot) = (8, 1)),
    ];
    for (outcome, change) in table {
        let mut packet = contribution();
        change(&mut packet);
        let sender = Packet { rank: 1, ..packet.clone() };
        let sender = if *outcome == NoHello { packet.request() } else { sender.request() };
        kernel.expect_frame(&sender.bytes(&packet.bytes()), 1, &Drop(*outcome));
    }
    expect_slots_untouched(&kernel);
}

#[test]
fn a_member_speaks_from_its_place_alone() {
    needs_racks!();
    let kernel = Kernel::with_job(3);
    let right = contribution().request();
    let table = [
        Envelope { source: [10, 0, 0, 3], ..right.clone() },
        Envelope { source_port: right.source_port + 1, ..right.clone() },
        Envelope { mac_source: [0x02, 0, 0, 0, 0, 3], ..right.clone() },
    ];
    for envelope in table {
        kernel.expect_frame(&envelope.bytes(&contribution().bytes()), 1, &Drop(WrongPlace));
    }
    expect_slots_untouched(&kernel);

    let mut kernel = kernel;
    kernel.set_member(
        JOB,
        1,
        &MemberEntry { binding: Binding { ifindex: IFINDEX + 1, ..binding(1) }, ..member(1) },
    );
    kernel.expect(&contribution(), &Drop(WrongPlace));
    expect_slots_untouched(&kernel);
}

#[test]
fn what_is_not_ours_is_passed_on_untouched() {
    needs_racks!();
    let kernel = Kernel::with_job(3);
    let pass = |outcome, change: fn(&mut Vec<u8>)| {
        let mut frame = contribution().frame();
        change(&mut frame);
        fix_ip_checksum(&mut frame[IP..]);
        kernel.expect_frame(&frame, 1, &Pass(outcome));
    };
    // ARP, IPv6 with hop-by-hop options, a tag of 802.1ad.
    pass(NotOurs, |f| f[ETHERTYPE..IP].copy_from_slice(&[0x08, 0x06]));
    pass(Ipv6, |f| {
        f[ETHERTYPE..IP].copy_from_slice(&[0x86, 0xDD]);
        f[IP + 6] = 0;
    });
    pass(Vlan, |f| f[ETHERTYPE..IP].copy_from_slice(&[0x88, 0xA8]));
    // Two tags, or an 802.1ad tag, in front of an otherwise right packet.
    for tags in [&[0x81, 0x00, 0x00, 0x05].repeat(2)[..], &[0x88, 0xA8, 0x00, 0x05]] {
        let mut frame = contribution().frame();
        frame.splice(ETHERTYPE..ETHERTYPE, tags.iter().copied());
        kernel.expect_frame(&frame, 1, &Pass(Vlan));
    }
    // TCP, ICMP.
    pass(NotOurs, |f| f[IP + 9] = 6);
    pass(NotOurs, |f| f[IP + 9] = 1);
    // Another host; another port.
    pass(NotOurs, |f| f[IP + 19] ^= 1);
    pass(NotOurs, |f| f[UDP + 3] ^= 1);
    // IP options, wherever they make the UDP header begin.
    pass(IpOptions, |f| f[IP] = 0x46);
    pass(IpOptions, |f| f[IP] = 0x4F);
    // First, middle and last fragment.
    pass(Fragment, |f| f[IP + 6] = 0x20);
    pass(Fragment, |f| f[IP + 6..IP + 8].copy_from_slice(&[0x20, 0xB9]));
    pass(Fragment, |f| f[IP + 6..IP + 8].copy_from_slice(&[0x00, 0xB9]));
    // Too short for the three headers.
    for length in [14, 20, 33, 41] {
        kernel.expect_frame(&contribution().frame()[..length], 1, &Pass(NotOurs));
    }
    expect_slots_untouched(&kernel);
}

/// A frame for another MAC, or for all hosts, is not for the aggregator even if its IP address is:
/// the answer would come from that MAC.
#[test]
fn another_macs_frames_are_passed_on() {
    needs_racks!();
    let mut kernel = Kernel::with_job(3);
    let hello = Packet::hello(1, 32);
    let others = [
        [0xFF; 6],
        [0x01, 0x00, 0x5E, 1, 2, 3],
        [0x03, 0, 0, 0, 0, 0xFE],
        [0x02, 0, 0, 0, 0, 0xFD],
        [0; 6],
    ];
    for mac_destination in others {
        for packet in [&contribution(), &hello] {
            let envelope = Envelope { mac_destination, ..packet.request() };
            kernel.expect_frame(&envelope.bytes(&packet.bytes()), 1, &Pass(NotOurs));
        }
        // A frame from the aggregator's address is forged, whatever its destination, unless the
        // host sends it to itself.
        let forged =
            Envelope { mac_destination, source: AGGREGATOR_IP, ..contribution().request() };
        let expected = if mac_destination == [0; 6] { Pass(NotOurs) } else { Drop(Spoofed) };
        kernel.expect_frame(&forged.bytes(&contribution().bytes()), 1, &expected);
    }
    expect_slots_untouched(&kernel);

    // The aggregator may have several MACs: the answer comes from the one that was asked.
    let second = [0x02, 0, 0, 0, 0, 0xFD];
    kernel.add_local(second, AGGREGATOR_IP, AGGREGATOR_PORT);
    let envelope = Envelope { mac_destination: second, ..hello.request() };
    let run = kernel.run(&envelope.bytes(&hello.bytes()));
    let mut answer = hello.reply(1);
    answer[6..12].copy_from_slice(&second);
    assert_eq!(run.frame, answer);
}

/// A worker would take a frame from the aggregator's address for the aggregator's answer.
#[test]
fn nobody_else_sends_from_the_aggregators_address() {
    needs_racks!();
    let kernel = Kernel::with_job(3);
    let result = contribution().result(4, 3, &[15; 64]);
    let frames = [result.reply(1), result.to_group(), contribution().pending(2).reply(1)];
    for frame in &frames {
        kernel.expect_frame(frame, 1, &Drop(Spoofed));
    }
    let with = |expected: &Expect, change: fn(&mut Vec<u8>)| {
        let mut frame = result.reply(1);
        change(&mut frame);
        kernel.expect_frame(&frame, 1, expected);
    };
    // Every form that a host accepts as IPv4 from that address: another port or protocol, options,
    // fragments, tags without a VLAN.
    with(&Drop(Spoofed), |f| f[UDP] ^= 1);
    with(&Drop(Spoofed), |f| f[IP + 9] = 6);
    with(&Drop(Spoofed), |f| f[IP] = 0x46);
    with(&Drop(Spoofed), |f| f[IP + 6] = 0x20);
    with(&Drop(Spoofed), |f| f.truncate(42));
    let tag = |f: &mut Vec<u8>| drop(f.splice(ETHERTYPE..ETHERTYPE, [0x81, 0x00, 0x00, 0x00]));
    with(&Drop(Spoofed), tag);
    with(&Drop(Spoofed), |f| {
        f.splice(ETHERTYPE..ETHERTYPE, [0x88, 0xA8, 0x00, 0x00, 0x81, 0x00, 0x00, 0x00]);
    });
    // A frame from any other address passes with up to two tags, as real networks have; not with
    // three, whatever is in it.
    with(&Pass(NotOurs), |f| f[IP + 15] ^= 1);
    let tagged = |tags: usize| {
        let mut frame = result.reply(1);
        frame[IP + 15] ^= 1;
        (0..tags).for_each(|_| tag(&mut frame));
        frame
    };
    kernel.expect_frame(&tagged(1), 1, &Pass(NotOurs));
    kernel.expect_frame(&tagged(2), 1, &Pass(Vlan));
    kernel.expect_frame(&tagged(3), 1, &Drop(Spoofed));
    // ARP is not IPv4, wherever its addresses are.
    with(&Pass(NotOurs), |f| f[ETHERTYPE..IP].copy_from_slice(&[0x08, 0x06]));
    expect_slots_untouched(&kernel);
}

#[test]
fn lengths_that_disagree_are_dropped() {
    needs_racks!();
    let kernel = Kernel::with_job(3);
    let drop = |outcome, change: fn(&mut Vec<u8>)| {
        let mut frame = contribution().frame();
        change(&mut frame);
        fix_ip_checksum(&mut frame[IP..]);
        kernel.expect_frame(&frame, 1, &Drop(outcome));
    };
    // Cut off within the UDP header's payload, the header, the lanes.
    drop(Truncated, |f| f.truncate(HEADER));
    drop(Truncated, |f| f.truncate(PAYLOAD - 1));
    drop(Truncated, |f| f.truncate(PAYLOAD));
    drop(Truncated, |f| f.truncate(PAYLOAD + 128));
    drop(Truncated, |f| f.truncate(PAYLOAD + 255));
    // The IP packet is longer than the frame; UDP is longer or shorter than IP has room for.
    drop(Truncated, |f| f[IP + 2..IP + 4].copy_from_slice(&0xFFFFu16.to_be_bytes()));
    drop(BadLength, |f| f[UDP + 4..UDP + 6].copy_from_slice(&297u16.to_be_bytes()));
    drop(BadLength, |f| f[UDP + 4..UDP + 6].copy_from_slice(&295u16.to_be_bytes()));
    drop(BadLength, |f| f[UDP + 4..UDP + 6].copy_from_slice(&0u16.to_be_bytes()));
    drop(BadLength, |f| f[IP + 2..IP + 4].copy_from_slice(&0u16.to_be_bytes()));
    // UDP without room for a header, lanes cut off by a length that all layers agree on.
    let shortened = |to: usize| contribution().request().bytes(&contribution().bytes()[..to]);
    for length in [0, 1, 31] {
        kernel.expect_frame(&shortened(length), 1, &Drop(Truncated));
    }
    for length in [32, 32 + 128, 32 + 255] {
        kernel.expect_frame(&shortened(length), 1, &Drop(BadLength));
    }
    // A cut-off payload, hidden in padding.
    let mut padded = shortened(32 + 128);
    padded.resize(1500, 0);
    kernel.expect_frame(&padded, 1, &Drop(BadLength));

    let mut frame = contribution().frame();
    frame[IP + 8] -= 1;
    kernel.expect_frame(&frame, 1, &Drop(BadIpChecksum));
    expect_slots_untouched(&kernel);
}

/// A sender to the aggregator's port that is not a member gets no answer, not even from the host.
#[test]
fn strangers_are_not_answered() {
    needs_racks!();
    let mut kernel = Kernel::of_root();
    kernel.add_local(AGGREGATOR_MAC, [192, 0, 2, 1], 1234);
    kernel.expect(&contribution(), &Drop(UnknownJob));
    kernel.expect(&Packet::hello(0, 32), &Drop(UnknownJob));
    let scan = Envelope {
        destination: [192, 0, 2, 1],
        destination_port: 1234,
        ..contribution().request()
    };
    kernel.expect_frame(&scan.bytes(b"who is there? Anybody? Hello? Hello?"), 1, &Drop(BadVersion));
    // An address and a port are served only as a pair.
    let crossed = Envelope { destination_port: AGGREGATOR_PORT, ..scan.clone() };
    kernel.expect_frame(&crossed.bytes(&contribution().bytes()), 1, &Pass(NotOurs));
    let crossed = Envelope { destination: AGGREGATOR_IP, ..scan };
    kernel.expect_frame(&crossed.bytes(&contribution().bytes()), 1, &Pass(NotOurs));
}

#[test]
fn hello_binds_a_rank_to_its_place_once_an_epoch() {
    needs_racks!();
    let mut kernel = Kernel::with_job(3);
    let unknown = MemberEntry { epoch: 0, binding: Binding::default(), ..member(1) };
    kernel.set_member(JOB, 1, &unknown);

    let wrong = Packet { aux: Packet::hello(1, 32).aux ^ 1, ..Packet::hello(1, 32) };
    kernel.expect(&wrong, &Drop(WrongSecret));
    assert_eq!(kernel.member(JOB, 1), unknown);
    kernel.expect(&Packet { epoch: EPOCH + 1, ..Packet::hello(1, 32) }, &Drop(WrongEpoch));
    kernel.expect(&Packet { rank: 3, ..Packet::hello(1, 32) }, &Drop(BadRank));
    kernel.expect(&contribution(), &Drop(NoHello));

    // Every size that a chunk may have, and an empty HELLO; repeated HELLOs, too.
    for lanes in [0, 32, 352, 768, 32] {
        let hello = Packet::hello(1, lanes);
        kernel.expect(&hello, &Reply(Hello, &hello));
        assert_eq!(kernel.member(JOB, 1), member(1));
    }
    kernel.expect(&Packet { values: vec![0; 16], ..Packet::hello(1, 0) }, &Drop(BadLanes));

    // A HELLO from another place, with the right secret.
    let elsewhere = Envelope { source: [10, 0, 0, 77], ..contribution().request() };
    kernel.expect_frame(&elsewhere.bytes(&Packet::hello(1, 32).bytes()), 1, &Drop(WrongPlace));
    assert_eq!(kernel.member(JOB, 1), member(1));

    // In a new epoch the rank may live elsewhere.
    kernel.set_job(JOB, &JobEntry { epoch: EPOCH + 1, ..job(3) });
    kernel.expect(&contribution(), &Drop(WrongEpoch));
    kernel.expect(&Packet { epoch: EPOCH + 1, ..contribution() }, &Drop(NoHello));
    let hello = Packet { epoch: EPOCH + 1, ..Packet::hello(1, 32) };
    assert_eq!(kernel.run(&elsewhere.bytes(&hello.bytes())).verdict, 4, "XDP_REDIRECT");
    let moved = Binding { ip: [10, 0, 0, 77].into(), ..binding(1) };
    assert_eq!(
        kernel.member(JOB, 1),
        MemberEntry { epoch: EPOCH + 1, binding: moved, ..member(1) }
    );
    expect_slots_untouched(&kernel);
}

#[test]
fn a_locked_slot_is_left_alone() {
    needs_racks!();
    let mut kernel = Kernel::with_job(3);
    let mut element = kernel.slot(FIRST_SLOT + 2);
    element.lock = 1;
    kernel.set_slot(FIRST_SLOT + 2, &element);
    kernel.expect(&contribution(), &Drop(SlotBusy));
    assert_eq!(kernel.slot(FIRST_SLOT + 2).slot, Slot::default());
    // Neighbouring slots are free.
    kernel.expect(&Packet { slot: 3, ..contribution() }, &Drop(Started));
    element.lock = 0;
    kernel.set_slot(FIRST_SLOT + 2, &element);
    kernel.expect(&contribution(), &Drop(Started));
    assert_eq!(kernel.slot(FIRST_SLOT + 2).lock, 0, "given back");
}

#[test]
fn notable_packets_are_reported() {
    needs_racks!();
    let mut kernel = Kernel::with_job(3);
    let elsewhere = Envelope { source_port: 9, ..contribution().request() };
    kernel.run(&Packet::hello(1, 32).frame());
    kernel.run(&Packet { aux: 0, ..Packet::hello(2, 32) }.frame());
    kernel.run(&elsewhere.bytes(&contribution().bytes()));
    kernel.run(&Packet { round: 9, ..contribution() }.frame());
    kernel.run(&contribution().frame());
    kernel.run(&Packet { rank: 2, fingerprint: 1, ..contribution() }.frame());
    // Neither of these two packets is reported.
    kernel.run(&Packet { version: 0, ..contribution() }.frame());
    kernel.run(&Packet { epoch: 5, ..contribution() }.frame());

    let events = kernel.events();
    let seen: Vec<_> = events.iter().map(|e| (e.outcome, e.rank, e.slot, e.round)).collect();
    let expected = [
        (Hello as u8, 1, 0, 0),
        (WrongSecret as u8, 2, 0, 0),
        (WrongPlace as u8, 1, 2, 0),
        (WrongRound as u8, 1, 2, 9),
        (Mismatch as u8, 2, 2, 0),
    ];
    assert_eq!(seen, expected);
    assert!(events.iter().all(|event| event.job == JOB && event.epoch == EPOCH));
    assert_eq!(events[0].binding, binding(1));
    assert_eq!(events[2].binding.port.get(), 9);
}

/// A full ring buffer loses events, not packets.
#[test]
fn a_full_buffer_of_events_holds_nothing_up() {
    needs_racks!();
    let mut kernel = Kernel::with_job(3);
    let hello = Packet::hello(1, 32);
    for _ in 0..3000 {
        assert_eq!(kernel.run(&hello.frame()).verdict, 4, "XDP_REDIRECT");
    }
    assert_eq!(kernel.counters()[Hello as usize], 3000);
    // 64 KiB of events of 48 bytes and 8 bytes of the kernel's own.
    assert_eq!(kernel.events().len(), 65536 / 56);
    kernel.expect(&hello, &Reply(Hello, &hello));
    assert_eq!(kernel.events().len(), 1);
}
