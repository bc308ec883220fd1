//! Round trips as HELLOs measure them.

use zerocopy::IntoBytes;

use super::*;

const IDENTITY: Identity = Identity { job: 1, epoch: 2, rank: 3, ranks: 4 };
const SECRET: u32 = 0x5EC2E7;

/// What [`Hello::step`] says to send, at a time in ms.
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
        HelloStep::Open(OpenPath { lanes: 352, is_narrow: false, rtt: Duration::from_millis(3) })
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
        HelloStep::Open(OpenPath { lanes: 352, is_narrow: false, rtt: Duration::from_millis(25) })
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
        HelloStep::Open(OpenPath { lanes: 352, is_narrow: false, rtt: Duration::from_millis(1) })
    );
}
