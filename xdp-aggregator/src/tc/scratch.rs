//! Memory for one superpacket's way through the program: more than the stack holds.

use core::arch::asm;

use aya_ebpf::btf_maps::PerCpuArray;
use aya_ebpf::macros::btf_map;
use switchml_protocol::node::egress::Hop;
use switchml_protocol::node::frame::{Checksum, Envelope, Ipv4, Ipv6, Network};
use switchml_protocol::node::ingress::Origin;
use switchml_protocol::root::done::Done;
use switchml_protocol::wire::auth::TAG_LEN;
use switchml_protocol::wire::header::{HEADER_LEN, Header};
use switchml_protocol::wire::ip::Ip;
use switchml_protocol::{MAX_LANES, U16, U32};

use crate::bounds::LANE_BOUND;
use crate::payload::Copied;

/// Most segments of a superpacket: the limit of Linux (`UDP_MAX_SEGMENTS`, `UDP_GRO_CNT_MAX`).
pub const MAX_SEGMENTS: usize = 128;
/// The largest packet of the protocol, in bytes.
pub const MAX_PACKET_LEN: usize = HEADER_LEN + 4 * MAX_LANES + TAG_LEN;
/// Bytes of segments that are copied at a time: each copy costs three calls, which cost more than
/// the bytes.
pub const LOADED_LEN: usize = 16 << 10;
/// Largest offset at which a copied segment may begin.
const LAST_PACKET: usize = LOADED_LEN - MAX_PACKET_LEN;

/// See the [module's documentation](self).
#[repr(C, align(8))]
pub struct Scratch {
    pub loaded: Loaded,
    pub arrived: Arrived,
    pub tally: Tally,
    pub leaving: Leaving,
    pub told: Told,
}

/// Copies of some segments, the one that is being served among them.
#[repr(C)]
pub struct Loaded {
    pub bytes: [u8; LOADED_LEN],
    /// Room behind the last segment: verifiers assume that its tag may be behind any lane below
    /// [`LANE_BOUND`].
    pub behind: [u8; 4 * (LANE_BOUND - MAX_LANES)],
    /// Offsets in the superpacket at which the copied segments begin and end.
    pub from: u32,
    pub to: u32,
    /// Bytes of the copies, from the first one on, that are answers not yet in the superpacket.
    pub unstored: u32,
}

/// The superpacket, as it arrived.
#[repr(C)]
pub struct Arrived {
    /// Where it comes from, and whether a router marked it.
    pub origin: Origin,
    pub headers: Headers,
    /// The address that it was sent to.
    pub address: Ip,
    /// 1 if it came over IPv6.
    pub is_v6: u8,
    /// Bytes of all segments.
    pub len: u32,
    /// Bytes of each segment; the last one may be shorter.
    pub segment_len: u32,
    /// At a combiner, the offset of the first segment that is no FILLER.
    pub first: u32,
}

/// What became of the segments.
#[repr(C)]
pub struct Tally {
    /// The job of the segments that completed a round, if there are any.
    pub job: u16,
    /// 1 if there are such segments.
    pub has_job: u8,
    /// 1 if an answer to the sender goes to the job's group instead.
    pub to_senders_group: u8,
    /// The rank below that a superpacket of the parent's is for.
    pub rank: u16,
    /// Number of segments.
    pub segments: u32,
    /// Number of segments with an answer to all.
    pub to_all: u32,
    /// Number of segments with an answer to the sender.
    pub to_sender: u32,
    /// Number of segments that a combiner sends on to its parent.
    pub to_parent: u32,
    /// Of each segment.
    pub answers: [Answer; MAX_SEGMENTS],
}

/// What became of a segment.
#[repr(C)]
pub struct Answer {
    /// The action, as a number.
    pub action: u8,
    /// The kind of packet that the segment holds now.
    pub kind: u8,
}

/// A superpacket that leaves.
#[repr(C)]
pub struct Leaving {
    /// Where it goes, and the address that it comes from.
    pub hop: Hop,
    /// The MAC and the port that it comes from.
    pub mac: [u8; 6],
    pub port: U16,
    pub headers: Headers,
    /// Who fills in its UDP checksum, and the sum of its packet if that is needed.
    pub checksum: Checksum,
    pub sum: u16,
    /// The byte that a segment is given.
    pub shown: u8,
}

/// A DONE of the RESULTs to all, for ranks that do not need their lanes (rule 9.4).
#[repr(C)]
pub struct Told {
    /// 1 if one DONE may tell of all of them.
    pub is_known: u8,
    /// 1 once the superpacket holds the DONE.
    pub is_made: u8,
    pub done: Done,
    pub lanes: [U32; MAX_SEGMENTS],
    /// The header of the complete DONE.
    pub header: Header,
}

/// An envelope of either kind.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Headers([u8; Envelope::<Ipv6>::LEN]);

impl Headers {
    /// The envelope as one of this kind of IP.
    #[inline(always)]
    pub const fn of<N: Network>(&mut self) -> &mut Envelope<N> {
        const { assert!(Envelope::<N>::LEN <= size_of::<Self>()) };
        // SAFETY: so long are these, and an Envelope is valid for any bytes, at any address.
        unsafe { &mut *(&raw mut *self).cast() }
    }
}

#[btf_map]
static SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();

/// The scratch memory of this CPU, for one caller at a time.
#[inline(always)]
pub fn get() -> Option<&'static mut Scratch> {
    // SAFETY: programs at tc ingress do not interrupt each other on one CPU; callers pass it down,
    // and take it again in global functions only, while they do not use theirs.
    SCRATCH.get_ptr_mut(0).map(|scratch| unsafe { &mut *scratch })
}

impl Scratch {
    /// Notes a new superpacket from `origin`, with `payload_len` bytes behind the first header. Its
    /// envelope is already in `envelope`.
    #[inline(always)]
    pub fn begin<N: Network>(&mut self, origin: Origin, payload_len: usize, segment_len: u32) {
        self.arrived.origin = origin;
        let envelope = self.arrived.headers.of::<N>();
        self.arrived.address = envelope.ip.destination();
        (self.leaving.mac, self.leaving.port) =
            (envelope.mac_destination, envelope.destination_port);
        self.arrived.is_v6 = u8::from(N::ETHERTYPE == Ipv6::ETHERTYPE);
        self.arrived.len = (payload_len + HEADER_LEN) as u32;
        self.arrived.segment_len = match segment_len {
            0 => self.arrived.len,
            segment_len => segment_len,
        };
        (self.tally.has_job, self.tally.to_senders_group) = (0, 0);
        (self.told.is_known, self.told.is_made) = (0, 0);
        (self.loaded.to, self.loaded.unstored) = (0, 0);
        (self.tally.segments, self.tally.to_all, self.tally.to_sender, self.tally.to_parent) =
            (0, 0, 0, 0);
    }

    /// Takes note of a RESULT to all, behind `before` others.
    #[inline(always)]
    pub fn note_result(&mut self, result: &Header, before: u32) {
        if before == 0 {
            let done = Done::of(result);
            self.told.is_known = u8::from(done.is_some());
            if let Some(done) = done {
                self.told.done = done;
            }
        }
        let mut at = usize::from(self.told.done.rounds());
        // A DONE names no more rounds than there are segments. The verifier of Linux 6.1 forgets a
        // comparison of a copy; the compiler would leave out a mask that changes nothing.
        // SAFETY: only registers are used.
        unsafe { asm!("{at} &= {mask}", at = inout(reg) at, mask = const MAX_SEGMENTS - 1) };
        let lane = if self.told.is_known == 0 { None } else { self.told.done.add(result) };
        self.told.is_known = u8::from(lane.is_some());
        if let (Some(lane), Some(to)) = (lane, self.told.lanes.get_mut(at)) {
            to.set(lane);
        }
    }

    /// Bytes of the headers before the first segment.
    #[inline(always)]
    pub const fn headers_len(&self) -> u32 {
        if self.arrived.is_v6 == 0 {
            Envelope::<Ipv4>::LEN as u32
        } else {
            Envelope::<Ipv6>::LEN as u32
        }
    }

    /// The number of bytes to copy from the beginning of a segment that is `rest` bytes before the
    /// superpacket's end: as many whole segments as there is room for.
    #[inline(always)]
    pub fn load_len(&self, rest: u32) -> u32 {
        // `segment_len` is from 1 to `MAX_PACKET_LEN`: longer segments are not copied.
        let segments = (LAST_PACKET as u32).checked_div(self.arrived.segment_len).unwrap_or(0) + 1;
        rest.min(segments * self.arrived.segment_len)
    }

    /// The copy of the segment at `offset` of the superpacket.
    #[inline(always)]
    pub fn segment_mut(&mut self, offset: u32) -> Option<&mut Segment> {
        let at = offset.wrapping_sub(self.loaded.from) as usize;
        if at > LAST_PACKET {
            return None;
        }
        // SAFETY: at least this many bytes are left, and any content is valid.
        Some(unsafe { &mut *self.loaded.bytes.as_mut_ptr().add(at).cast() })
    }
}

const _: () = assert!(size_of::<Segment>() == MAX_PACKET_LEN && align_of::<Segment>() == 1);

/// A packet of the protocol, with room for the longest.
#[repr(C)]
pub struct Segment {
    /// The packet's header.
    pub header: Header,
    /// The packet's payload.
    pub payload: Copied,
}
