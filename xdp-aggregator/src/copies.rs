//! Copies of a RESULT to all on their way out of XDP, one for each of the job's places.
//!
//! The kernel makes the copies, all alike, and runs [`address`] on each as it leaves. It does not
//! say which copy that is, so they are counted. It queues a broadcast's copies per port and CPU, in
//! the order of the DEVMAP, which is that of the job's places, and takes them out in that order
//! (`dev_map_enqueue_multi` and `bq_xmit_all` of kernel/bpf/devmap.c). A copy that it cannot make
//! ends the broadcast, so what is there begins with the first.

use aya_ebpf::btf_maps::PerCpuHashMap;
use aya_ebpf::macros::btf_map;
use switchml_protocol::EVERYONE;
use switchml_protocol::header::Header;
use switchml_protocol::maps::MAX_PORTS;

use crate::packet::Frame;
use crate::tables;

/// The RESULT whose copies leave by a port. It is made once: no later one is the same.
#[repr(C)]
#[derive(Clone, Copy)]
struct Turn {
    epoch: u32,
    round: u32,
    job: u16,
    slot: u16,
    /// The place behind that of the last copy.
    next: u32,
}

#[btf_map]
static TURNS: PerCpuHashMap<u32, Turn, MAX_PORTS> = PerCpuHashMap::new();

/// Sends the frame, which is about to leave by `port`, to the next place behind that port, if that
/// was left open.
#[inline(always)]
pub fn address(frame: &Frame, port: u32) -> Option<()> {
    let (envelope, header) = frame.headers()?;
    // An answer to one may go to a host without a MAC.
    if !envelope.is_open() || header.rank.get() != EVERYONE {
        return Some(());
    }
    let receivers = tables::receivers(header.job.get())?;
    if receivers.epoch != header.epoch.get() {
        return None;
    }
    let first = turn(port, header);
    // The verifier takes a loop of a constant number of turns.
    for (index, place) in receivers.places.iter().enumerate() {
        if index as u32 >= first && place.ifindex == port {
            envelope.close(place);
            return advance(port, header, index as u32 + 1);
        }
    }
    None
}

/// The first place that this copy may be for.
#[inline(always)]
fn turn(port: u32, header: &Header) -> u32 {
    let Some(turn) = TURNS.get_ptr(port) else { return 0 };
    // SAFETY: the entry is this CPU's own, and the program is not interrupted by itself.
    let turn = unsafe { *turn };
    let same = turn.epoch == header.epoch.get()
        && turn.round == header.round.get()
        && turn.job == header.job.get()
        && turn.slot == header.slot.get();
    if same { turn.next } else { 0 }
}

#[inline(always)]
fn advance(port: u32, header: &Header, next: u32) -> Option<()> {
    let turn = Turn {
        epoch: header.epoch.get(),
        round: header.round.get(),
        job: header.job.get(),
        slot: header.slot.get(),
        next,
    };
    TURNS.insert(port, turn, 0).ok()
}
