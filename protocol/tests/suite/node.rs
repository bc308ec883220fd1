//! A root's packets on their way through [`switchml_protocol::node`]: marks, events, and where they
//! go. [`crate::combiner`] looks at a combiner's.

use std::cell::RefCell;

use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::bpf_types::maps::Event;
use switchml_protocol::node::ingress::Origin;
use switchml_protocol::node::{self, Medium, Served, Target, Traced};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::packet;
use switchml_protocol::wire::ip::Ip;

use switchml_test_support::packet::{CE, GROUP, Packet};
use switchml_test_support::switch::{JOB, Switch, binding, contribution, hello, secret};

/// A medium that remembers what it was told.
#[derive(Default)]
struct Heard {
    has_groups: bool,
    loses: bool,
    events: RefCell<Vec<Event>>,
    traced: RefCell<Vec<(u64, u32, Outcome)>>,
}

impl Medium for Heard {
    fn has_groups(&self) -> bool {
        self.has_groups
    }

    fn loses(&self) -> bool {
        self.loses
    }

    fn report(&self, event: Event) {
        self.events.borrow_mut().push(event);
    }

    fn trace(&self, packet: &Traced, outcome: Outcome) {
        self.traced.borrow_mut().push((packet.place, packet.round, outcome));
    }
}

fn serve(
    switch: &Switch,
    medium: &Heard,
    from: &Binding,
    congested: bool,
    packet: &Packet,
) -> (Served, Packet) {
    let mut bytes = packet.to_bytes();
    let mut packet = packet::Packet::of(&mut bytes).expect("a header");
    let origin = Origin { binding: *from, congested };
    let served = node::serve(switch, medium, &origin, &mut packet);
    (served, Packet::from_bytes(&bytes))
}

#[test]
fn a_mark_becomes_the_flag_of_the_answer() {
    let (switch, medium) = (Switch::ready(2, 1), Heard::default());
    let first = serve(&switch, &medium, &binding(0), true, &contribution(0, 0, 0, vec![1; 32]));
    assert_eq!(first.0, Served { outcome: Outcome::Started, target: Target::Nobody });
    let last = serve(&switch, &medium, &binding(1), false, &contribution(1, 0, 0, vec![2; 32]));
    assert_eq!(last.0, Served { outcome: Outcome::Completed, target: Target::All });
    assert_eq!((last.1.payload, last.1.flags & CE), (vec![3; 32], CE));
    assert!(medium.events.take().is_empty(), "rounds are no news");
    // As it came: the RESULT is to everyone.
    let place = u64::from(JOB) << 32 | 1 << 16;
    assert_eq!(medium.traced.take()[1], (place, 0, Outcome::Completed));
}

#[test]
fn notable_packets_are_reported() {
    let (switch, medium) = (Switch::ready(2, 1), Heard::default());
    let elsewhere = Binding { port: 1.into(), ..binding(1) };
    let packet = contribution(1, 0, 0, vec![1; 32]);
    let (served, _) = serve(&switch, &medium, &elsewhere, false, &packet);
    assert_eq!(served, Served::unanswered(Outcome::WrongPlace));
    assert_eq!(
        medium.events.take(),
        [Event {
            binding: elsewhere,
            epoch: packet.epoch,
            round: 0,
            job: JOB,
            rank: 1,
            slot: 0,
            outcome: Outcome::WrongPlace as u8,
            reserved: 0,
        }]
    );
}

/// Rule 24.15: it is lost before its version is looked at, and its resend counts as the first.
#[test]
fn a_packet_that_the_medium_loses_is_only_counted() {
    let (switch, medium) = (Switch::ready(2, 1), Heard { loses: true, ..Heard::default() });
    let packet = contribution(1, 0, 0, vec![1; 32]);
    for packet in [packet.clone(), hello(1), Packet { version: 0, ..packet.clone() }] {
        let (served, after) = serve(&switch, &medium, &binding(1), false, &packet);
        assert_eq!(served, Served::unanswered(Outcome::LostForTests));
        assert_eq!(after, packet);
    }
    assert!(medium.events.take().is_empty(), "lost packets are no news");
    assert_eq!(medium.traced.take().len(), 3);
    let (served, _) = serve(&switch, &Heard::default(), &binding(1), false, &packet);
    assert_eq!(served.outcome, Outcome::Started);
}

/// Rules 7.8 and 5.12.
#[test]
fn a_hello_goes_to_the_group_where_there_is_one() {
    let asks = Packet { flags: GROUP, ..hello(0) };
    let v6 = Binding { ip: Ip([0xFD; 16]), ..binding(0) };
    for (has_groups, from, packet, target, aux) in [
        (true, binding(0), &asks, Target::SendersGroup, 0),
        (true, binding(0), &hello(0), Target::Sender, secret(0)),
        (true, v6, &asks, Target::Sender, secret(0)),
        (false, binding(0), &asks, Target::Sender, secret(0)),
    ] {
        let medium = Heard { has_groups, ..Heard::default() };
        let (served, answer) = serve(&Switch::new(2, 1), &medium, &from, false, packet);
        assert_eq!(served, Served { outcome: Outcome::Hello, target });
        assert_eq!(answer, Packet { aux, ..packet.clone() });
        assert_eq!(medium.events.borrow().len(), 1);
    }
}

#[test]
fn a_word_holds_what_became_of_a_packet() {
    let parent = Target::Parent { job: 0xFEDC, from_port: 0xBA98 };
    let targets = [Target::Nobody, Target::Host, Target::Sender, Target::SendersGroup];
    for below in [0, 1, u32::MAX] {
        assert_eq!(Served::or_admitted(Served::word_of(Ok(below))), Ok(below));
    }
    for &outcome in Outcome::ALL {
        for target in targets.into_iter().chain([Target::All, parent, Target::Rank]) {
            let served = Served { outcome, target };
            assert_eq!(Served::from_word(served.to_word()), served);
            assert_eq!(served.to_word() >> 48, 0, "the upper bits are free");
            assert_eq!(Served::or_admitted(Served::word_of(Err(served))), Err(served));
        }
        let target = match outcome.action() {
            Action::Pass => Target::Host,
            _ => Target::Nobody,
        };
        assert_eq!(Served::unanswered(outcome), Served { outcome, target });
    }
}
