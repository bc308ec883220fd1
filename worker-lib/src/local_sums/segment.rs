//! The memory that ranks of one host share: the one place where it is touched.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use switchml_protocol::root::slot::Slot;
use switchml_worker_core::local_results::ring_len;
use switchml_worker_core::local_sum::MOST_RANKS;
use switchml_worker_core::packet::packet_len;

/// Offset of the cells. [`Front`] fits before it.
const CELLS: usize = 4096;
/// Packets begin at multiples of this, a cache line, so that no two ranks write the same one.
const ALIGNMENT: usize = 64;
/// Most shards whose results ranks can share: those of rule 16.1.
pub(super) const MOST_SHARDS: usize = 8;

/// The start of a segment.
#[repr(C)]
struct Front {
    /// The number of ranks that have come.
    ranks: AtomicU32,
    /// Rank + 1 of each, in the order in which they came.
    numbers: [AtomicU32; MOST_RANKS],
    /// The places of the ranks that read the first one's results, as a set.
    readers: AtomicU32,
    /// The places of the ranks that would share slots, as a set.
    equipped: AtomicU32,
    /// By shard: entries of the ring that ranks have taken, where they share slots.
    entries: [AtomicU32; MOST_SHARDS],
    /// By shard and place: 1 if a rank that reads waits for its bell, otherwise 0.
    asleep: [[AtomicU32; MOST_RANKS]; MOST_SHARDS],
}

const _: () = assert!(size_of::<Front>() <= CELLS);

/// How large a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Extent {
    pub shards: usize,
    /// Slots of each shard.
    pub slots: usize,
    /// Most lanes of a packet.
    pub lanes: usize,
}

impl Extent {
    fn stride(&self) -> usize {
        packet_len(self.lanes).next_multiple_of(ALIGNMENT)
    }

    /// Offset of the rings of results, one for each shard.
    fn rings(&self) -> usize {
        CELLS + self.shards * self.slots * size_of::<AtomicU64>()
    }

    /// Offset of the results, one for each slot of each shard.
    fn results(&self) -> usize {
        let rings = self.shards * ring_len(self.slots) * size_of::<AtomicU64>();
        (self.rings() + rings).next_multiple_of(CELLS)
    }

    fn packets(&self) -> usize {
        let results = self.shards * self.slots * self.stride();
        (self.results() + results).next_multiple_of(CELLS)
    }

    /// Offset of the locks of shared slots, one for each slot of each shard.
    fn locks(&self) -> usize {
        let packets = self.shards * MOST_RANKS * self.slots * self.stride();
        (self.packets() + packets).next_multiple_of(CELLS)
    }

    /// Offset of shared slots.
    fn shared_slots(&self) -> usize {
        let locks = self.shards * self.slots * size_of::<AtomicU32>();
        (self.locks() + locks).next_multiple_of(CELLS)
    }

    /// The length in bytes. Only pages in use take up memory: the packets of each rank are
    /// contiguous.
    fn len(&self) -> usize {
        self.shared_slots() + self.shards * self.slots * size_of::<Slot>()
    }

    /// The index of a slot among those of all shards.
    ///
    /// # Panics
    /// When there is no such slot.
    fn index(&self, shard: usize, slot: u16) -> usize {
        let slot = usize::from(slot);
        assert!(shard < self.shards && slot < self.slots);
        shard * self.slots + slot
    }
}

/// The place of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub shard: usize,
    /// The index of the packet's rank, in the order in which ranks came.
    pub rank: usize,
    pub slot: u16,
}

/// Memory of a host's ranks. It has no name, and is gone with the last rank, however it ends.
pub(super) struct Segment {
    file: OwnedFd,
    start: NonNull<u8>,
    extent: Extent,
}

// SAFETY: the memory is mapped as long as the value lives, and is reached by atomics, or under the
// terms of `packet` and `packet_mut`, which do not depend on threads.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// New memory, all zeros.
    pub fn new(extent: Extent) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("switchml", flags)?;
        ftruncate(&file, extent.len() as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(file, extent)
    }

    /// The memory of another rank, which cannot shrink.
    pub fn of_other(file: OwnedFd, extent: Extent) -> io::Result<Self> {
        let file = File::from(file);
        let is_whole = file.metadata()?.len() == extent.len() as u64;
        if !is_whole || !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return Err(io::Error::other("their memory is not as large as this rank's would be"));
        }
        Self::map(file.into(), extent)
    }

    fn map(file: OwnedFd, extent: Extent) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses, of a file of this length,
        // which never shrinks.
        let start =
            unsafe { mmap(ptr::null_mut(), extent.len(), access, MapFlags::SHARED, &file, 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { file, start, extent })
    }

    /// The file by which another rank maps the segment.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Takes a place for a rank; `None` if all are taken.
    pub fn enter(&self, rank: u16) -> Option<usize> {
        let Front { ranks, numbers, .. } = self.front();
        let place = ranks.fetch_add(1, Ordering::AcqRel) as usize;
        numbers.get(place)?.store(u32::from(rank) + 1, Ordering::Release);
        Some(place)
    }

    /// The ranks that have places, in the order of their places; `None` if one has died while it
    /// came.
    pub fn ranks(&self) -> Option<Vec<u16>> {
        let Front { ranks, numbers, .. } = self.front();
        let numbers = numbers.iter().take(ranks.load(Ordering::Acquire) as usize);
        let number = |number: &AtomicU32| number.load(Ordering::Acquire).checked_sub(1);
        numbers.map(|rank| Some(number(rank)? as u16)).collect()
    }

    /// The rank at the first place; `None` as long as it is about to take that.
    pub fn first(&self) -> Option<u16> {
        Some(self.front().numbers[0].load(Ordering::Acquire).checked_sub(1)? as u16)
    }

    /// Has the rank at a place be one that reads.
    pub fn read_along(&self, place: usize) {
        self.front().readers.fetch_or(1 << place, Ordering::AcqRel);
    }

    /// The places of the ranks that read.
    pub fn readers(&self) -> impl Iterator<Item = usize> {
        let readers = self.front().readers.load(Ordering::Acquire);
        (0..MOST_RANKS).filter(move |place| readers >> place & 1 == 1)
    }

    /// Has the rank at a place be one that can share slots.
    pub fn equip(&self, place: usize) {
        self.front().equipped.fetch_or(1 << place, Ordering::AcqRel);
    }

    /// Whether all of so many ranks are here, and can share slots.
    pub fn has_all_equipped(&self, ranks: usize) -> bool {
        let equipped = self.front().equipped.load(Ordering::Acquire);
        ranks <= MOST_RANKS && equipped == (1 << ranks) - 1
    }

    /// Takes an entry of a shard's ring, and returns the number of entries taken so far.
    ///
    /// # Panics
    /// When there is no such shard.
    pub fn take_entry(&self, shard: usize) -> u32 {
        self.front().entries[shard].fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Whether a rank that reads waits for its bell: 1 or 0.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn asleep(&self, shard: usize, place: usize) -> &AtomicU32 {
        &self.front().asleep[shard][place]
    }

    fn front(&self) -> &Front {
        // SAFETY: the mapping begins at a page, is larger, and as zeros or anything else is a
        // `Front`; it is used as such by all.
        unsafe { self.start.cast().as_ref() }
    }

    /// The word of a slot's cell.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn cell(&self, shard: usize, slot: u16) -> &AtomicU64 {
        let index = self.extent.index(shard, slot);
        // SAFETY: it is before the packets, aligned, and used as such by all.
        unsafe { self.start.add(CELLS).cast::<AtomicU64>().add(index).as_ref() }
    }

    /// The lock of a shared slot: the place of the rank that has it, plus 1; 0 if it is free.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn lock(&self, shard: usize, slot: u16) -> &AtomicU32 {
        let index = self.extent.index(shard, slot);
        // SAFETY: it is between the packets and the shared slots, aligned, and used as such by all.
        unsafe { self.start.add(self.extent.locks()).cast::<AtomicU32>().add(index).as_ref() }
    }

    /// A shared slot.
    ///
    /// # Panics
    /// When there is no such slot.
    ///
    /// # Safety
    /// Until the last use of the reference, this rank has the slot's lock.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn shared_slot(&self, shard: usize, slot: u16) -> &mut Slot {
        let index = self.extent.index(shard, slot);
        // SAFETY: it is behind the locks and within the mapping, aligned, and any bytes are a slot;
        // the caller promises that nobody else uses it.
        unsafe { self.start.add(self.extent.shared_slots()).cast::<Slot>().add(index).as_mut() }
    }

    /// The word of a shard's ring for the entry with this number.
    ///
    /// # Panics
    /// When there is no such shard.
    pub fn entry(&self, shard: usize, number: u32) -> &AtomicU64 {
        let len = ring_len(self.extent.slots);
        assert!(shard < self.extent.shards);
        let index = shard * len + number as usize % len;
        // SAFETY: it is behind the cells and before the results, aligned, and used as such by all.
        unsafe { self.start.add(self.extent.rings()).cast::<AtomicU64>().add(index).as_ref() }
    }

    /// The result of a slot, a packet of `lanes` lanes, for reading. The number is read from memory
    /// that other processes write: more lanes than a packet has are left out.
    ///
    /// # Panics
    /// When there is no such slot.
    ///
    /// # Safety
    /// Until the last use of the slice, nobody writes it: this rank waits for that result.
    pub unsafe fn result(&self, shard: usize, slot: u16, lanes: u16) -> &[u8] {
        let lanes = lanes.min(u16::try_from(self.extent.lanes).unwrap_or(u16::MAX));
        let (start, len) = self.locate_result(shard, slot, lanes);
        // SAFETY: the result is within the mapping; the caller promises that nobody writes it.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// The result of a slot, a packet of `lanes` lanes, for writing.
    ///
    /// # Panics
    /// When there is no such slot.
    ///
    /// # Safety
    /// Until the last use of the slice, nobody else reads or writes it: this rank is the only one
    /// that writes results, and no other rank waits for that of a round before.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn result_mut(&self, shard: usize, slot: u16, lanes: u16) -> &mut [u8] {
        let (start, len) = self.locate_result(shard, slot, lanes);
        // SAFETY: the result is within the mapping; the caller promises that nobody else uses it.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }

    fn locate_result(&self, shard: usize, slot: u16, lanes: u16) -> (NonNull<u8>, usize) {
        let (Extent { shards, slots, .. }, slot) = (self.extent, usize::from(slot));
        let (stride, len) = (self.extent.stride(), packet_len(lanes.into()));
        assert!(shard < shards && slot < slots && len <= stride);
        let index = shard * slots + slot;
        // SAFETY: the mapping has room for all results between `results` and `packets`.
        (unsafe { self.start.add(self.extent.results() + index * stride) }, len)
    }

    /// A packet of `lanes` lanes, for reading.
    ///
    /// # Panics
    /// When there is no such place.
    ///
    /// # Safety
    /// Until the last use of the slice, nobody writes it: the rank that reads was told so by the
    /// slot's cell.
    pub unsafe fn packet(&self, place: Place, lanes: u16) -> &[u8] {
        let (start, len) = self.locate(place, lanes);
        // SAFETY: the packet is within the mapping; the caller promises that nobody writes it.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// A packet of `lanes` lanes, for writing.
    ///
    /// # Panics
    /// When there is no such place.
    ///
    /// # Safety
    /// Until the last use of the slice, nobody else reads or writes it: it is this rank's, which
    /// has claimed the slot's cell.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn packet_mut(&self, place: Place, lanes: u16) -> &mut [u8] {
        let (start, len) = self.locate(place, lanes);
        // SAFETY: the packet is within the mapping; the caller promises that nobody else uses it.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }

    fn locate(&self, Place { shard, rank, slot }: Place, lanes: u16) -> (NonNull<u8>, usize) {
        let (Extent { shards, slots, .. }, slot) = (self.extent, usize::from(slot));
        let (stride, len) = (self.extent.stride(), packet_len(lanes.into()));
        assert!(shard < shards && rank < MOST_RANKS && slot < slots && len <= stride);
        let index = (shard * MOST_RANKS + rank) * slots + slot;
        // SAFETY: the mapping has room for all places behind `packets`.
        (unsafe { self.start.add(self.extent.packets() + index * stride) }, len)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference into it any more. A failure cannot be handled here.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.extent.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENT: Extent = Extent { shards: 2, slots: 3, lanes: 352 };

    #[test]
    fn two_mappings_are_the_same_memory() {
        let mine = Segment::new(EXTENT).unwrap();
        let other = mine.file().try_clone_to_owned().unwrap();
        let theirs = Segment::of_other(other, EXTENT).unwrap();
        assert_eq!((mine.enter(7), theirs.enter(5)), (Some(0), Some(1)));
        assert_eq!(mine.ranks(), Some(vec![7, 5]));
        mine.cell(1, 2).store(99, Ordering::Release);
        assert_eq!(theirs.cell(1, 2).load(Ordering::Acquire), 99);
        assert_eq!(theirs.cell(0, 2).load(Ordering::Acquire), 0);
        // The last entry of a ring, the first of the next one, and the results behind them.
        mine.entry(0, 7).store(1, Ordering::Release);
        mine.entry(1, 8).store(2, Ordering::Release);
        // SAFETY: this thread is the only one here, and writes before it reads.
        unsafe { mine.result_mut(1, 2, 352).fill(4) };
        let entries = [(0, 15), (1, 0), (1, 1)];
        let entry = |(shard, number)| theirs.entry(shard, number).load(Ordering::Acquire);
        assert_eq!(entries.map(entry), [1, 2, 0]);
        // SAFETY: as above.
        assert_eq!(unsafe { theirs.result(1, 2, 352) }, [4; packet_len(352)]);
        // SAFETY: as above.
        assert_eq!(unsafe { theirs.result(1, 2, u16::MAX) }.len(), packet_len(352));
        mine.read_along(3);
        assert_eq!((theirs.first(), theirs.readers().collect()), (Some(7), vec![3]));
        let place = Place { shard: 1, rank: MOST_RANKS - 1, slot: 2 };
        // SAFETY: this thread is the only one here, and writes before it reads.
        unsafe { mine.packet_mut(place, 352).fill(3) };
        // SAFETY: as above.
        assert_eq!(unsafe { theirs.packet(place, 352) }, [3; packet_len(352)]);
    }

    #[test]
    fn memory_of_another_size_is_refused() {
        let mine = Segment::new(EXTENT).unwrap();
        let other = mine.file().try_clone_to_owned().unwrap();
        assert!(Segment::of_other(other, Extent { slots: 4, ..EXTENT }).is_err());
    }

    #[test]
    fn one_rank_too_many_is_told_so() {
        let segment = Segment::new(EXTENT).unwrap();
        assert!((0..MOST_RANKS).all(|rank| segment.enter(rank as u16) == Some(rank)));
        assert_eq!(segment.enter(99), None);
        assert_eq!(segment.ranks(), Some((0..MOST_RANKS as u16).collect()));
    }
}
