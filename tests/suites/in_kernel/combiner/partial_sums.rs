//! Partial sums of a combiner below: of several ranks, of a group above the first; overlapping ones
//! and forged ones.

use switchml_protocol::bpf_types::job::{Binding, MemberEntry};
use switchml_protocol::bpf_types::uplink::Uplink;
use switchml_protocol::outcome::Outcome;
use switchml_rack::needs_racks;

use super::{
    BELOW, XDP_DROP, XDP_REDIRECT, below, expect, own, partial, sender, to_parent, uplink,
};
use switchml_test_support::frame::{Envelope, JOB, Packet, port};
use switchml_test_support::kernel::{Kernel, binding, job, member};

/// Ranks behind another combiner, which lives where rank 32 would; the last one must not come
/// through this combiner.
const RACK: [u16; 5] = [32, 33, 34, 35, 37];
/// Ranks 32 to 36. Rank 36 is directly below.
const BELOW_OF_GROUP_1: u32 = 0b1_1111;
const SLOT: u16 = 3;

fn tree(cells: u32) -> Kernel {
    let mut kernel = Kernel::combiner(cells);
    let all = below(BELOW).union(&(32..37).collect());
    kernel.set_uplink(JOB, &Uplink { below: all, ..uplink(cells) });
    for rank in [0, 1, 2, 36] {
        kernel.set_member(JOB, rank, &member(rank));
    }
    for rank in RACK {
        let place = Binding { port: port(rank).into(), ..binding(32) };
        kernel.set_member(JOB, rank, &MemberEntry { binding: place, ..member(rank) });
    }
    kernel.set_job(JOB, &job(40));
    kernel
}

#[test]
fn partial_sums_and_contributions_become_one() {
    needs_racks!();
    let kernel = tree(64);
    let held = |frame: &[u8]| expect(&kernel, frame, XDP_DROP, Outcome::Held);
    held(&partial(&[33, 35], SLOT).frame());
    held(&own(36, SLOT).frame());
    // Groups share no cell, in whatever order they come.
    held(&own(2, SLOT).frame());
    // Rule 7.9: a partial sum may come from any port.
    let last = Envelope { source_port: 9, ..sender(32) }.bytes(&partial(&[32, 34], SLOT).bytes());
    let sent = expect(&kernel, &last, XDP_REDIRECT, Outcome::Combined);
    let sum = partial(&[32, 33, 34, 35, 36], SLOT);
    assert_eq!((sum.rank, sum.aux), (32, BELOW_OF_GROUP_1));
    // The frame leaves from the port of the highest rank of the packet that it replaces.
    assert_eq!(sent, to_parent(&sum.bytes(), 34));
    held(&own(0, SLOT).frame());
    let sent = expect(&kernel, &own(1, SLOT).frame(), XDP_REDIRECT, Outcome::Combined);
    assert_eq!(sent, to_parent(&partial(&[0, 1, 2], SLOT).bytes(), 1));
}

/// Rules 27.9, 27.11 and 27.12.
#[test]
fn overlaps_are_never_added() {
    needs_racks!();
    let kernel = tree(64);
    let held = |frame: &[u8]| expect(&kernel, frame, XDP_DROP, Outcome::Held);
    held(&partial(&[32, 33], SLOT).frame());
    for known in [partial(&[32, 33], SLOT), partial(&[33], SLOT)] {
        expect(&kernel, &known.frame(), XDP_DROP, Outcome::Duplicate);
    }
    // Rank 33 would count twice. The held sum is dropped, for one frame cannot become two.
    let overlap = partial(&[33, 34], SLOT);
    let sent = expect(&kernel, &overlap.frame(), XDP_REDIRECT, Outcome::Flushed);
    assert_eq!(sent, to_parent(&overlap.bytes(), 34));
    // Ranks 33 and 34 have gone on, so the others are all that is waited for.
    held(&own(36, SLOT).frame());
    let passed = partial(&[32, 34], SLOT);
    let sent = expect(&kernel, &passed.frame(), XDP_REDIRECT, Outcome::Passed);
    assert_eq!(sent, to_parent(&passed.bytes(), 34));
    let sent = expect(&kernel, &partial(&[35], SLOT).frame(), XDP_REDIRECT, Outcome::Combined);
    assert_eq!(sent, to_parent(&partial(&[35, 36], SLOT).bytes(), 35));
}

#[test]
fn forged_partial_sums_touch_no_cell() {
    needs_racks!();
    let kernel = tree(1);
    expect(&kernel, &partial(&[35], SLOT).frame(), XDP_DROP, Outcome::Held);
    let before = [kernel.cell(0), kernel.tc().cell(0)];
    let right = partial(&[32, 33], SLOT);
    let of = |rank, aux| Packet { rank, aux, ..partial(&[32], SLOT) };
    let refused = [
        // The sender is no member, or belongs to a rack of other ranks.
        (sender(99), right.clone(), Outcome::WrongPlace),
        (sender(0), right.clone(), Outcome::WrongPlace),
        (sender(0), partial(&[0, 1], SLOT), Outcome::WrongPlace),
        (sender(32), partial(&[35, 36], SLOT), Outcome::WrongPlace),
        (sender(32), partial(&[32, 38], SLOT), Outcome::NoHello),
        // The packet names a rank that is not below, or no rank.
        (sender(32), partial(&[32, 37], SLOT), Outcome::BadRank),
        (sender(32), of(33, 1), Outcome::BadRank),
        (sender(32), of(32, 0), Outcome::BadRank),
        (sender(32), of(32, 1 << 8), Outcome::BadRank),
        (sender(32), of(64, 1), Outcome::BadRank),
        // The packet is damaged: in its values, set or flag.
        (sender(32), Packet { check: Some(1), ..right.clone() }, Outcome::BadCheck),
        (
            sender(32),
            Packet { check: Some(right.right_check()), ..partial(&[32, 34], SLOT) },
            Outcome::BadCheck,
        ),
        (sender(32), Packet { flags: 0, ..right }, Outcome::BadCheck),
    ];
    for (from, packet, outcome) in refused {
        expect(&kernel, &from.bytes(&packet.bytes()), XDP_DROP, outcome);
    }
    assert!(before == [kernel.cell(0), kernel.tc().cell(0)]);
}
