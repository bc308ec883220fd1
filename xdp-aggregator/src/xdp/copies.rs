//! Copies of a RESULT to all on their way out of XDP, one for each of the job's places.
//!
//! The kernel makes the copies, all alike, and runs [`address`] on each as it leaves. It does not
//! say which copy a frame is, so they are counted. It queues a broadcast's copies per port and CPU,
//! in the order of the DEVMAP, which is the order of the job's places, and dequeues them in this
//! order (`dev_map_enqueue_multi` and `bq_xmit_all` of kernel/bpf/devmap.c). If it cannot make a
//! copy, it ends the broadcast, so the copies that exist are the first ones.
//!
//! For all frames that leave by a port in one turn of the driver, the kernel asks the first frame
//! which program they pass. So all frames that XDP sends pass the program `switchml_copy`, also
//! answers to one rank.

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS};
use aya_ebpf::btf_maps::PerCpuHashMap;
use aya_ebpf::macros::btf_map;
use switchml_protocol::bpf_types::fanout::MAX_PLACES;
use switchml_protocol::bpf_types::maps::MAX_PORTS;
use switchml_protocol::node::frame::{Ipv4, Ipv6, Network, sum_of_done};
use switchml_protocol::node::roce::ICRC_LEN;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::root::done::Done;
use switchml_protocol::{EVERYONE, U64};

use super::frame::Frame;
use super::{roce, unsent};
use crate::tables;

/// The RESULT whose copies leave by a port. It is made once: no later one is the same.
#[repr(C)]
#[derive(Clone, Copy)]
struct Turn {
    epoch: u32,
    round: u32,
    job: u32,
    slot: u32,
    /// Index after the last copy's place.
    next: u32,
}

#[btf_map]
static TURNS: PerCpuHashMap<u32, Turn, MAX_PORTS> = PerCpuHashMap::new();

/// Serves a frame that is about to leave by `port`, and returns the verdict.
#[inline(always)]
pub fn serve(frame: &mut Frame, port: u32) -> u32 {
    let addressed = frame.take_tag().ok().and_then(|()| match frame.is::<Ipv6>() {
        true => address::<Ipv6>(frame, port),
        false => address::<Ipv4>(frame, port),
    });
    match addressed.and_then(|()| frame.put_tag().ok()) {
        Some(()) => {
            unsent::leaves_by(port);
            XDP_PASS
        }
        None => {
            tables::count(Outcome::SendFailed);
            XDP_DROP
        }
    }
}

/// Sends the frame, which is about to leave by `port`, to the next place behind that port, if that
/// was left open.
#[inline(always)]
fn address<N: Network>(frame: &Frame, port: u32) -> Option<()> {
    let (envelope, header) = frame.headers::<N>()?;
    // An answer to one may go to a host without a MAC.
    let is_open = envelope.is_open();
    if header.rank.get() != EVERYONE || !(is_open || Done::may_tell(header)) {
        return Some(());
    }
    let receivers = tables::receivers(header.job.get())?;
    let (epoch, round) = (header.epoch.get(), header.round.get());
    let (job, slot) = (header.job.get().into(), header.slot.get().into());
    let at = copies_next(port, epoch, round, job, slot) as usize;
    let place = receivers.places.get(at)?;
    if is_open {
        envelope.close(place);
    }
    let by_roce = roce::is_served() && place.is_queue_pair();
    match Done::of(header) {
        Some(done) if done.is_for(*receivers.ranks.get(at)?) => shorten::<N>(frame, done, by_roce)?,
        // Other places' seal.
        _ if roce::is_served() && receivers.by_roce != 0 && !by_roce => frame.cut(ICRC_LEN)?,
        _ => {}
    }
    if by_roce { roce::wrap(frame, place.roce) } else { Some(()) }
}

/// Rule 9.4: makes a RESULT to all the DONE of its round, sealed if it leaves by RoCEv2.
#[inline(always)]
fn shorten<N: Network>(frame: &Frame, mut done: Done, by_roce: bool) -> Option<()> {
    let (envelope, header) = frame.headers::<N>()?;
    let lane = done.add(header)?;
    *header = done.header();
    let sum = if N::CHECKSUM_IS_OPTIONAL {
        0
    } else {
        sum_of_done(header, (lane >> 16) + (lane & 0xFFFF))
    };
    envelope.shorten(done.rounds(), sum);
    frame.align::<N>().ok()?;
    // A RESULT has many lanes. Those behind the first lane are cut off.
    let pair = frame.pair(0)?;
    // SAFETY: the bytes are in the frame, and nothing else refers to them.
    unsafe { pair.write(U64::new(u64::from(lane) << 32)) };
    if by_roce {
        roce::seal(frame, done.rounds())?;
    } else {
        frame.resize(done.rounds()).ok()?;
    }
    frame.align_back::<N>().ok()
}

/// The index of the next place behind `port` that gets a copy of this RESULT; past the last,
/// `MAX_PLACES`.
///
/// A global function of BPF: the verifier checks its loop once, and not with what follows it.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn copies_next(port: u32, epoch: u32, round: u32, job: u32, slot: u32) -> u64 {
    const NONE: u64 = MAX_PLACES as u64;
    let Some(receivers) = tables::receivers(job as u16) else { return NONE };
    if receivers.epoch != epoch {
        return NONE;
    }
    let mut turn = Turn { epoch, round, job, slot, next: 0 };
    turn.next = first(port, &turn);
    // The verifier takes a loop of a constant number of turns.
    for (index, place) in receivers.places.iter().enumerate() {
        if index as u32 >= turn.next && place.ifindex == port {
            turn.next = index as u32 + 1;
            return if TURNS.insert(port, turn, 0).is_ok() { index as u64 } else { NONE };
        }
    }
    NONE
}

/// Index of the first place that the next copy of the RESULT may be for.
#[inline(always)]
fn first(port: u32, of: &Turn) -> u32 {
    let Some(last) = TURNS.get_ptr(port) else { return 0 };
    // SAFETY: the entry is this CPU's own, and the program is not interrupted by itself.
    let last = unsafe { *last };
    let same = last.epoch == of.epoch
        && last.round == of.round
        && last.job == of.job
        && last.slot == of.slot;
    if same { last.next } else { 0 }
}
