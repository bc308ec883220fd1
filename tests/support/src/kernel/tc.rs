//! The program for tc. It must do the same as the one for XDP.
//!
//! One thing may differ: tc cannot shorten a superpacket, so an answer is as long as the packet
//! that it answers, with that packet's bytes behind it.

use aya::maps::Array;
use aya::programs::{SchedClassifier, TestRun, TestRunOptions};
use aya::{Ebpf, EbpfLoader};

use crate::kernel::program::{Run, Slots, totals};
use switchml_data_plane::xdp::verifier::check;
use switchml_protocol::combiner::cell::LockedCell;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::root::slot::LockedSlot;
use zerocopy::transmute;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;
const TC_ACT_UNSPEC: i32 = -1;
const TC_ACT_SHOT: i32 = 2;
const TC_ACT_REDIRECT: i32 = 7;

// The size of `struct __sk_buff` in linux/bpf.h, and the offsets of fields that a test run takes.
const SK_BUFF_LEN: usize = 192;
const GSO_SEGS: usize = 164;
const GSO_SIZE: usize = 176;
const IFINDEX: usize = 40;

/// Ethernet, IPv4 and UDP headers. A test run for tc takes no frame that ends in them.
pub const ENVELOPE_LEN: usize = 14 + 20 + 8;

/// The program for tc, loaded into the kernel with its own maps.
pub struct TcProgram {
    pub(crate) object: Ebpf,
    name: &'static str,
    pub(crate) slots: Slots,
}

impl TcProgram {
    /// Loads a program of an object file by name, with `cells` cells.
    pub fn of_role(object: &[u8], name: &'static str, cells: u32, lose_below: u64) -> Self {
        let mut object = EbpfLoader::new()
            .map_max_entries("CELLS", cells)
            .override_global("LOSE_BELOW", &lose_below, true)
            .load(object)
            .expect("the maps are created");
        let program: &mut SchedClassifier =
            object.program_mut(name).expect("program").try_into().unwrap();
        check(|| program.load()).expect("the verifier takes the program");
        let slots = Slots::make(&mut object);
        Self { object, name, slots }
    }

    /// Runs the program on one packet; the verdict is what it would be in XDP.
    pub fn run(&self, frame: &[u8]) -> Run {
        let run = self.test(frame, None);
        Run { verdict: as_in_xdp(run.verdict), ..run }
    }

    /// Runs the program on one packet that comes in through an interface of the calling thread's
    /// namespace; the verdict is what it would be in XDP.
    pub fn run_at(&self, frame: &[u8], ifindex: u32) -> Run {
        let run = self.test(frame, Some(&context(&[(IFINDEX, ifindex)])));
        Run { verdict: as_in_xdp(run.verdict), ..run }
    }

    /// Runs the program on a superpacket of segments of this many bytes.
    pub fn run_superpacket(&self, frame: &[u8], segment_len: usize) -> Run {
        self.run_superpacket_at(frame, segment_len, crate::frame::IFINDEX)
    }

    /// Runs the program on a superpacket that comes in through an interface of the calling thread's
    /// namespace.
    pub fn run_superpacket_at(&self, frame: &[u8], segment_len: usize, ifindex: u32) -> Run {
        let segments = (frame.len() - ENVELOPE_LEN).div_ceil(segment_len) as u32;
        let fields = [(GSO_SIZE, segment_len as u32), (GSO_SEGS, segments), (IFINDEX, ifindex)];
        self.test(frame, Some(&context(&fields)))
    }

    fn test(&self, frame: &[u8], ctx_in: Option<&[u8]>) -> Run {
        let mut out = vec![0; frame.len() + 256];
        let program: &SchedClassifier = self.object.program(self.name).unwrap().try_into().unwrap();
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ctx_in,
            ..TestRunOptions::default()
        };
        let result = program.test_run(options).expect("the test run");
        out.truncate(result.data_size_out as usize);
        Run { verdict: result.return_value, frame: out, time: result.duration }
    }

    /// Runs the program on a frame; XDP made `other` of it.
    #[track_caller]
    pub fn expect(&self, frame: &[u8], other: &Run) {
        if frame.len() < ENVELOPE_LEN {
            return;
        }
        let run = self.run(frame);
        assert_eq!(run.verdict, other.verdict, "verdict of the program for tc");
        if run.verdict == XDP_DROP {
            return;
        }
        assert_eq!(run.frame.len(), frame.len(), "tc cuts nothing");
        let (mine, theirs) = (without_lengths(&run.frame), without_lengths(&other.frame));
        assert_eq!(mine[..theirs.len()], theirs, "frame of the program for tc");
        assert_eq!(mine[theirs.len()..], frame[theirs.len()..], "behind its answer");
    }

    /// Packets by outcome, all CPUs together.
    pub fn counters(&self) -> [u64; Outcome::COUNT] {
        totals(self.object.map("COUNTERS").unwrap())
    }

    /// A combiner's cell.
    pub fn cell(&self, index: u32) -> LockedCell {
        let cells = self.object.map("CELLS").expect("CELLS");
        let cells: Array<_, [u8; size_of::<LockedCell>()]> = cells.try_into().unwrap();
        transmute!(cells.get(&index, 0).unwrap())
    }

    /// Element `index` of the pool.
    pub fn slot(&self, index: u32) -> LockedSlot {
        self.slots.get(index)
    }
}

/// A `struct __sk_buff` with these values at these offsets.
fn context(fields: &[(usize, u32)]) -> [u8; SK_BUFF_LEN] {
    let mut context = [0; SK_BUFF_LEN];
    for (offset, value) in fields {
        context[*offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
    }
    context
}

/// The verdict in XDP that a verdict in tc amounts to.
#[track_caller]
pub fn as_in_xdp(verdict: u32) -> u32 {
    match verdict as i32 {
        TC_ACT_UNSPEC => XDP_PASS,
        TC_ACT_SHOT => XDP_DROP,
        TC_ACT_REDIRECT => XDP_REDIRECT,
        verdict => panic!("verdict {verdict} of the program for tc"),
    }
}

/// A frame without the fields that depend on its length: the lengths of IP and UDP, the checksum of
/// IP, and over IPv6 that of UDP.
fn without_lengths(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let is_v6 = frame.get(12..14) == Some(&[0x86, 0xDD]);
    for field in if is_v6 { [18..20, 58..60, 60..62] } else { [16..18, 24..26, 38..40] } {
        if let Some(field) = frame.get_mut(field) {
            field.fill(0);
        }
    }
    frame
}
