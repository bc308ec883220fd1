//! The form of a test: packets in; verdicts, packets and counters out.

use std::panic::Location;
use switchml_protocol::outcome::Outcome;

use crate::frame::Packet;
use crate::kernel::{Kernel, Run};

/// Offset of a frame's tag: behind the MACs.
const TAG: usize = 12;
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;

/// The expected result of a frame.
pub enum Expect<'a> {
    /// Left to the host, unchanged.
    Pass(Outcome),
    /// Gone.
    Drop(Outcome),
    /// This packet goes back to its sender.
    Reply(Outcome, &'a Packet),
    /// This packet goes to the group.
    Broadcast(&'a Packet),
    /// This frame goes to one host.
    Frame(Outcome, &'a [u8]),
}
use Expect::{Broadcast, Drop, Frame, Pass, Reply};

impl Kernel {
    /// Runs a frame, and checks verdict, frame and counters: the outcome's counter moves by one,
    /// the others do not move.
    #[track_caller]
    pub fn expect_frame(&self, frame: &[u8], sender: u16, expected: &Expect) {
        self.expect_run(frame, sender, &[], expected, Kernel::run);
    }

    /// Runs a packet with a VLAN tag, as its rank sends it, in XDP alone: a test run at tc has no
    /// tags. Checks the same as [`Self::expect_frame`].
    #[track_caller]
    pub fn expect_tagged(&self, packet: &Packet, tag: &[u8], expected: &Expect) {
        let mut frame = packet.frame();
        frame.splice(TAG..TAG, tag.iter().copied());
        self.expect_run(&frame, packet.rank, tag, expected, Kernel::run_xdp);
    }

    /// Runs a frame in XDP alone. Checks the same as [`Self::expect_frame`]; a reply is to rank 0.
    #[track_caller]
    pub fn expect_in_xdp(&self, frame: &[u8], expected: &Expect) {
        self.expect_run(frame, 0, &[], expected, Kernel::run_xdp);
    }

    #[track_caller]
    fn expect_run(
        &self,
        frame: &[u8],
        sender: u16,
        tag: &[u8],
        expected: &Expect,
        run: fn(&Self, &[u8]) -> Run,
    ) {
        let at = Location::caller();
        let before = self.counters();
        let run = run(self, frame);
        let after = self.counters();
        let moved: Vec<_> = Outcome::ALL
            .iter()
            .filter(|outcome| after[**outcome as usize] != before[**outcome as usize])
            .map(|outcome| (outcome.name(), after[*outcome as usize] - before[*outcome as usize]))
            .collect();
        let tagged = |mut answer: Vec<u8>| {
            answer.splice(TAG..TAG, tag.iter().copied());
            Some(answer)
        };
        let (outcome, verdict, answer) = match expected {
            Pass(outcome) => (*outcome, XDP_PASS, Some(frame.to_vec())),
            Drop(outcome) => (*outcome, XDP_DROP, None),
            Reply(outcome, packet) => (*outcome, XDP_REDIRECT, tagged(packet.reply(sender))),
            Frame(outcome, frame) => (*outcome, XDP_REDIRECT, Some(frame.to_vec())),
            Broadcast(packet) => (Outcome::Completed, XDP_REDIRECT, tagged(packet.to_group())),
        };
        assert_eq!(moved, [(outcome.name(), 1)], "counters at {at}");
        assert_eq!(run.verdict, verdict, "verdict at {at}");
        if let Some(answer) = answer {
            assert_eq!(hex(&run.frame), hex(&answer), "frame at {at}");
        }
    }

    /// Runs a packet as its rank sends it.
    #[track_caller]
    pub fn expect(&self, packet: &Packet, expected: &Expect) {
        self.expect_frame(&packet.frame(), packet.rank, expected);
    }
}

/// Sixteen bytes a line, so that a difference can be found.
fn hex(frame: &[u8]) -> Vec<String> {
    frame.chunks(16).map(|line| line.iter().map(|byte| format!("{byte:02x} ")).collect()).collect()
}
