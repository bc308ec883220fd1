//! Round trips as HELLOs measure them.

use zerocopy::IntoBytes;

use crate::engine::Keys;
use crate::packet::len_of;
use switchml_protocol::wire::auth::Key;

use super::*;

const IDENTITY: Identity = Identity { job: 1, epoch: 2, rank: 3, ranks: 4, keys: Keys::NONE };
const SECRET: u32 = 0x5EC2E7;

/// The HELLO that [`Hello::step`] returns, at a time in ms.
fn said(hello: &mut Hello, at: u64) -> Header {
    match hello.step(at * MS) {
        HelloStep::Send(header) => header,
        other => panic!("{other:?}"),
    }
}

const MS: u64 = 1_000_000;

#[test]
fn the_shortest_round_trip_counts() {
    let mut hello = Hello::new(IDENTITY, SECRET, 1472, 768);
    for (sent, back) in [(0, 9), (9, 16), (16, 19), (19, 24), (24, 31)] {
        let header = said(&mut hello, sent);
        assert_eq!(hello.step(back * MS), HelloStep::Wait((sent + 20) * MS));
        hello.receive(back * MS, header.as_bytes());
    }
    assert_eq!(
        hello.step(31 * MS),
        HelloStep::Open(OpenPath {
            lanes: 352,
            is_narrow: false,
            rtt: Duration::from_millis(3),
            hears_group: None
        })
    );
}

#[test]
fn a_late_answer_is_not_taken_for_that_to_a_later_hello() {
    let mut hello = Hello::new(IDENTITY, SECRET, 1472, 768);
    let (first, second) = (said(&mut hello, 0), said(&mut hello, 20));
    hello.receive(25 * MS, first.as_bytes());
    // A sample, which is lost; the answer to the second comes meanwhile.
    said(&mut hello, 25);
    hello.receive(48 * MS, second.as_bytes());
    said(&mut hello, 48);
    assert_eq!(
        hello.step(68 * MS),
        HelloStep::Open(OpenPath {
            lanes: 352,
            is_narrow: false,
            rtt: Duration::from_millis(25),
            hears_group: None
        })
    );
}

#[test]
fn samples_that_are_lost_do_not_keep_the_path_closed() {
    let mut hello = Hello::new(IDENTITY, SECRET, 1472, 768);
    let header = said(&mut hello, 0);
    hello.receive(MS, header.as_bytes());
    said(&mut hello, 1);
    assert_eq!(hello.step(20 * MS), HelloStep::Wait(21 * MS));
    assert_eq!(
        hello.step(21 * MS),
        HelloStep::Open(OpenPath {
            lanes: 352,
            is_narrow: false,
            rtt: Duration::from_millis(1),
            hears_group: None
        })
    );
}

/// Half of a try tells nothing: a router may pass single packets, and drop superpackets.
#[test]
fn the_group_reaches_a_rank_that_hears_all_of_a_try() {
    for (answered, expected) in [(2, true), (1, false), (0, false)] {
        let mut hello = Hello::new(IDENTITY, 7, 1472, 768).ask_group();
        let (mut now, mut to_group) = (0, 0);
        let path = loop {
            match hello.step(now) {
                HelloStep::Send(header) if header.is_for_group() => {
                    to_group += 1;
                    if (to_group - 1) % 2 < answered {
                        let answer = Header { aux: U32::ZERO, ..header };
                        hello.receive(now, answer.as_bytes());
                    }
                }
                HelloStep::Send(header) => hello.receive(now, header.as_bytes()),
                HelloStep::Wait(until) => now = until,
                HelloStep::Open(path) => break path,
                HelloStep::Failed(failure) => panic!("{failure:?}"),
            }
        };
        assert_eq!(path.hears_group, Some(expected), "{answered} of 2");
        assert_eq!(to_group, if expected { 2 } else { 8 });
        assert_eq!(now, if expected { 0 } else { 300_000_000 });
    }
}

/// Answers to its own HELLOs have the tag that the rank gave them, also if aux has become 0;
/// answers with other tags or none do not count.
#[test]
fn a_rank_with_keys_hears_what_has_its_tag() {
    let own = Key::from_bytes(std::array::from_fn(|i| i as u8));
    let keys = Keys { own, job: Key::from_bytes([9; 16]) };
    let mut hello = Hello::new(Identity { keys, ..IDENTITY }, SECRET, 1440, 768).ask_group();
    let mut now = 0;
    let path = loop {
        match hello.step(now) {
            HelloStep::Send(header) => {
                let mut packet = vec![0xFF; len_of(&header)];
                hello.fill(&header, &mut packet);
                // 352 lanes would fit without a tag.
                assert_eq!(packet.len(), 32 + 4 * usize::from(header.lanes.get()) + 8);
                assert!(header.lanes.get() <= 320);
                if header.is_for_group() {
                    packet[28..32].fill(0);
                }
                let mut changed = packet.clone();
                *changed.last_mut().unwrap() ^= 1;
                let mut without = packet.clone();
                without[17] &= !flags::TAGGED;
                for forgery in [&changed, &without, &packet[..packet.len() - 8].to_vec()] {
                    let before = format!("{hello:?}");
                    hello.receive(now, forgery);
                    assert_eq!(format!("{hello:?}"), before);
                }
                hello.receive(now, &packet);
            }
            HelloStep::Wait(until) => now = until,
            HelloStep::Open(path) => break path,
            HelloStep::Failed(failure) => panic!("{failure:?}"),
        }
    };
    assert_eq!((path.lanes, path.hears_group), (320, Some(true)));
}
