//! The maps, and the aggregator's view of them.

use aya_ebpf::Global;
use aya_ebpf::btf_maps::{Array, ArrayOfMaps, DevMap, DevMapHash, HashMap, PerCpuArray, RingBuf};
use aya_ebpf::helpers::{bpf_get_prandom_u32, bpf_ktime_get_ns};
use aya_ebpf::macros::btf_map;
use switchml_protocol::MAX_RANKS;
use switchml_protocol::bpf_types::fanout::{MAX_PLACES, Receivers};
use switchml_protocol::bpf_types::job::{Binding, JobEntry, MemberEntry};
use switchml_protocol::bpf_types::maps::{Endpoint, Event, MAX_PORTS, MAX_SHARDS, SLOTS_PER_SHARD};
use switchml_protocol::bpf_types::times::{self, Times};
use switchml_protocol::bpf_types::uplink::Uplink;
use switchml_protocol::combiner::admission::Cells;
use switchml_protocol::combiner::cell::LockedCell;
use switchml_protocol::combiner::cell::{Cell, cell_of};
use switchml_protocol::combiner::hold_time;
use switchml_protocol::node::{Medium, Traced};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::ranks;
use switchml_protocol::root::admission::{Members, Tables};
use switchml_protocol::root::slot::LockedSlot;
use switchml_protocol::root::slot::Slot;
use switchml_protocol::wire::header::Header;
use switchml_protocol::wire::ip::Ip;
use zerocopy::transmute;

use crate::{lock, trace};

/// A [`LockedSlot`], to the kernel. Linux 6.1 takes an array that the daemon makes, without a type,
/// for another kind of map than one whose elements are a struct, and refuses it.
type SlotWords = [u64; size_of::<LockedSlot>() / size_of::<u64>()];
const _: () = assert!(size_of::<SlotWords>() == size_of::<LockedSlot>());
const _: () = assert!(align_of::<SlotWords>() >= align_of::<LockedSlot>());

/// Room for each address with the MAC of each port.
const MAX_ENDPOINTS: usize = 1024;
const EVENTS_BYTES: usize = 1 << 16;
/// Flag of `bpf_redirect_map`: to every device in the map.
const BROADCAST: u64 = 1 << 3;

#[btf_map]
static LOCAL: HashMap<Endpoint, u8, MAX_ENDPOINTS> = HashMap::new();
#[btf_map]
static JOBS: Array<JobEntry, MAX_SHARDS> = Array::new();
#[btf_map]
static MEMBERS: Array<MemberEntry, { MAX_SHARDS * MAX_RANKS }> = Array::new();
#[btf_map]
static SLOTS: ArrayOfMaps<Array<SlotWords, SLOTS_PER_SHARD>, MAX_SHARDS> = ArrayOfMaps::new();
#[btf_map]
static GROUPS: ArrayOfMaps<DevMap<MAX_PLACES>, MAX_SHARDS> = ArrayOfMaps::new();
#[btf_map]
static RECEIVERS: Array<Receivers, MAX_SHARDS> = Array::new();
#[btf_map]
static PORTS: DevMapHash<MAX_PORTS> = DevMapHash::new();
#[btf_map]
static COUNTERS: PerCpuArray<u64, { Outcome::COUNT }> = PerCpuArray::new();
/// How long rounds took from their first contribution to their last.
#[btf_map]
static TIMES: PerCpuArray<u64, { size_of::<Times>() / 8 }> = PerCpuArray::new();
/// The daemon sets the number of cells when it loads a combiner's programs.
#[btf_map]
static CELLS: Array<LockedCell, 1> = Array::new();
#[btf_map]
static UPLINKS: Array<Uplink, MAX_SHARDS> = Array::new();
/// See [`switchml_protocol::combiner::hold_time`].
#[btf_map]
static AVERAGE: Array<u32, 1> = Array::new();
/// Packets are lost, for tests, of which 32 random bits are below this. The daemon sets it when it
/// loads the programs: where it is 0, the verifier takes out what follows from it.
#[unsafe(no_mangle)]
static LOSE_BELOW: Global<u64> = Global::new(0);
// Declared without a value type, because libbpf would take its size for an error.
#[btf_map]
static EVENTS: RingBuf<(), EVENTS_BYTES> = RingBuf::new();

/// Whether the aggregator answers to the endpoint, or has the address.
#[inline(always)]
pub fn is_local(endpoint: Endpoint) -> bool {
    LOCAL.get_ptr(endpoint).is_some()
}

/// The job of that number, as it is now: the control plane may change it at any time.
#[inline(always)]
pub fn job(number: u16) -> Option<JobEntry> {
    let words = JOBS.get_ptr(u32::from(number))?.cast::<[u64; size_of::<JobEntry>() / 8]>();
    // SAFETY: the entry exists as long as the program runs, aligned to 8 bytes as every map value
    // is. The read is volatile, so that the whole program uses one reading.
    Some(transmute!(unsafe { words.read_volatile() }))
}

/// Adds one to the outcome's counter.
#[inline(always)]
pub fn count(outcome: Outcome) {
    count_all(outcome, 1);
}

/// Adds `packets` to an outcome's counter.
#[inline(always)]
pub fn count_all(outcome: Outcome, packets: u32) {
    if let Some(counter) = COUNTERS.get_ptr_mut(outcome as u32) {
        // SAFETY: the counter is this CPU's own, and XDP programs do not interrupt each other on
        // one CPU.
        unsafe { *counter += u64::from(packets) };
    }
}

/// Sends the frame by this port, and returns the verdict for that; `None` if it is not one of ours.
///
/// Not by `bpf_redirect`: of all frames that leave by a port in one turn of the driver, the kernel
/// looks only at the first to find the program that runs on them as they leave. This way all frames
/// have the same program.
#[inline(always)]
pub fn redirect(port: u32) -> Option<u32> {
    PORTS.redirect(port, 0).ok()
}

/// Has the frame sent to every place of the job, and returns the verdict for that; `None` for a job
/// without one.
#[inline(always)]
pub fn redirect_to_all(number: u16) -> Option<u32> {
    // With this flag the kernel ignores the key.
    GROUPS.get(u32::from(number))?.redirect(0, BROADCAST).ok()
}

/// Where the job's RESULTs to all go.
#[inline(always)]
pub fn receivers(number: u16) -> Option<&'static Receivers> {
    RECEIVERS.get(u32::from(number))
}

/// The maps as the aggregator's tables, and its way to the daemon.
pub struct Maps;

impl Members for Maps {
    #[inline(always)]
    fn job(&self, number: u16) -> Option<JobEntry> {
        job(number)
    }

    #[inline(always)]
    fn member(&self, job: u16, rank: u16) -> Option<MemberEntry> {
        MEMBERS.get(member_index(job, rank)).copied()
    }

    #[inline(always)]
    fn learn(&self, job: u16, rank: u16, epoch: u32, binding: &Binding) {
        if let Some(member) = MEMBERS.get_ptr_mut(member_index(job, rank)) {
            // SAFETY: the entry exists as long as the program runs. Another CPU may read it
            // meanwhile; half-written, it is the entry of a rank without HELLO, or of one in
            // another place.
            unsafe {
                (*member).binding = *binding;
                (*member).epoch = epoch;
            }
        }
    }

    #[inline(always)]
    fn parent(&self, job: u16) -> Option<(Binding, Ip)> {
        let uplink = uplink(job).filter(|uplink| uplink.epoch != 0)?;
        Some((uplink.parent, uplink.address))
    }
}

impl Medium for Maps {
    #[inline(always)]
    fn has_groups(&self) -> bool {
        true
    }

    #[inline(always)]
    fn loses(&self) -> bool {
        let below = LOSE_BELOW.load();
        // SAFETY: no pointer is passed.
        below != 0 && u64::from(unsafe { bpf_get_prandom_u32() }) < below
    }

    /// When the buffer is full the report is lost, but the packet is still counted.
    #[inline(always)]
    fn report(&self, event: Event) {
        if let Some(mut entry) = EVENTS.reserve_untyped::<Event>(0) {
            entry.write(event);
            entry.submit(0);
        }
    }

    #[inline(always)]
    fn trace(&self, packet: &Traced, outcome: Outcome) {
        trace::trace(packet, outcome);
    }
}

impl Tables for Maps {
    #[inline(always)]
    fn with_slot(&self, index: u32, f: impl FnOnce(&mut Slot) -> Outcome) -> Outcome {
        const PER_SHARD: u32 = SLOTS_PER_SHARD as u32;
        let slots = SLOTS.get(index / PER_SHARD);
        let Some(entry) = slots.and_then(|slots| slots.get_ptr_mut(index % PER_SHARD)) else {
            return Outcome::BadSlot;
        };
        let entry = entry.cast::<LockedSlot>();
        // SAFETY: the entry exists as long as the program runs, as large and aligned as a slot; its
        // lock is reached through `lock` alone, and its slot only while that is held.
        unsafe {
            let word = &raw mut (*entry).lock;
            if !lock::acquire(word) {
                return Outcome::SlotBusy;
            }
            let outcome = f(&mut (*entry).slot);
            if index.is_multiple_of(PER_SHARD) {
                time(&mut (*entry).begun, outcome);
            }
            lock::release(word);
            outcome
        }
    }
}

/// Measures how long the rounds of a shard's first slot take. Timing all slots would cost each
/// round two readings of the clock.
#[inline(always)]
fn time(begun: &mut u32, outcome: Outcome) {
    if let Some(units) = times::sample(begun, outcome, now) {
        add_time(times::bucket(units), 1);
        add_time(times::SUM, units);
    }
}

#[inline(always)]
fn add_time(index: usize, by: u32) {
    if let Some(sum) = TIMES.get_ptr_mut(index as u32) {
        // SAFETY: as in `count_all`.
        unsafe { *sum += u64::from(by) };
    }
}

impl Cells for Maps {
    #[inline(always)]
    fn below(&self, job: u16, group: u16) -> u32 {
        // Groups of admitted ranks are in range; Linux 6.1 loses sight of a comparison.
        let group = usize::from(group) % ranks::GROUPS;
        uplink(job).map_or(0, |uplink| uplink.below.group(group))
    }

    #[inline(always)]
    fn data_port(&self, job: u16) -> u16 {
        uplink(job).map_or(0, |uplink| uplink.port.get())
    }

    #[inline(always)]
    fn clock(&self) -> (u32, u32) {
        (now(), hold_time())
    }

    #[inline(always)]
    fn with_cell(&self, header: &Header, f: impl FnOnce(&mut Cell) -> Outcome) -> Outcome {
        let Some(uplink) = uplink(header.job.get()) else { return Outcome::UnknownJob };
        let Some(entry) = CELLS.get_ptr_mut(cell_of(header, uplink.cells)) else {
            return Outcome::UnknownJob;
        };
        // SAFETY: as in `with_slot`.
        unsafe {
            let word = &raw mut (*entry).lock;
            if !lock::wait(word) {
                return Outcome::SlotBusy;
            }
            let cell = &mut (*entry).cell;
            let since = cell.head.since;
            let outcome = f(cell);
            lock::release(word);
            if outcome == Outcome::Combined {
                note_age(now().wrapping_sub(since));
            }
            outcome
        }
    }
}

/// The job's way up, at a combiner.
#[inline(always)]
pub fn uplink(job: u16) -> Option<&'static Uplink> {
    UPLINKS.get(u32::from(job))
}

/// Microseconds, nearly: 1024 ns each. They wrap around.
#[inline(always)]
fn now() -> u32 {
    // SAFETY: no pointer is passed.
    (unsafe { bpf_ktime_get_ns() } >> times::SHIFT) as u32
}

/// Rule 27.10.
#[inline(always)]
fn hold_time() -> u32 {
    hold_time::hold_time(AVERAGE.get(0).copied().unwrap_or(hold_time::FIRST))
}

/// CPUs may lose each other's samples, which does no harm.
#[inline(always)]
fn note_age(age: u32) {
    if let Some(average) = AVERAGE.get_ptr_mut(0) {
        // SAFETY: the entry exists as long as the program runs; any word is an average.
        unsafe { *average = hold_time::average(*average, age) };
    }
}

#[inline(always)]
fn member_index(job: u16, rank: u16) -> u32 {
    u32::from(job) * MAX_RANKS as u32 + u32::from(rank)
}
