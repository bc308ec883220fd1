//! A shard's local results, and the bells of those who wait for them.

use std::borrow::Cow;
use std::os::fd::BorrowedFd;
use std::os::unix::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::{io, mem};

use switchml_protocol::wire::header::Header;
use switchml_worker_core::local_results::{self, Board, Readable, Writable};
use switchml_worker_core::local_sum::Cell;

use super::Shard;
use super::bell::{Bell, Ringer};

/// The local results of a driver.
pub(crate) struct LocalResults {
    results: local_results::LocalResults<Memory>,
    bells: Bells,
}

enum Bells {
    /// This rank reads, and has a bell.
    Own(Bell),
    /// This rank posts, and rings the bells of those that wait.
    Others { ringer: Ringer, has_posted: bool },
}

impl LocalResults {
    /// Of one of `ranks` ranks that reads, and has this bell.
    pub(super) fn reading(memory: Shard, ranks: usize, bell: Bell) -> Self {
        let results = local_results::LocalResults::new(Memory(memory), ranks, false);
        Self { results, bells: Bells::Own(bell) }
    }

    /// Of the one of `ranks` ranks that posts, for those at these places, with these bells.
    pub(super) fn posting(memory: Shard, ranks: usize, others: Vec<(usize, SocketAddr)>) -> Self {
        let results = local_results::LocalResults::new(Memory(memory), ranks, true);
        let bells = Bells::Others { ringer: Ringer::new(others), has_posted: false };
        Self { results, bells }
    }

    /// Posts a chunk's result, if this rank posts.
    pub fn post(&mut self, header: &Header, payload: &[u8]) {
        if let Bells::Others { has_posted, .. } = &mut self.bells {
            *has_posted |= self.results.post(header, payload);
        }
    }

    /// Wakes those that wait for what was posted since the last time.
    pub fn ring(&mut self) {
        let Bells::Others { ringer, has_posted } = &mut self.bells else { return };
        let Memory(Shard { segment, shard, .. }) = self.results.board();
        if mem::take(has_posted) {
            ringer.ring(segment, *shard);
        }
    }

    /// The next packet that was posted of a chunk that this rank `awaits`, if it reads.
    pub fn read(&mut self, awaits: impl Fn(u16, u16) -> bool) -> Option<Cow<'_, [u8]>> {
        self.results.read(awaits)
    }

    /// Waits by `wait`, which returns soon once the descriptor is readable, unless there is news
    /// already. Ranks that post wait for packets alone.
    pub fn wait(
        &mut self,
        wait: impl FnOnce(Option<BorrowedFd<'_>>) -> io::Result<()>,
    ) -> io::Result<()> {
        let Bells::Own(bell) = &self.bells else { return wait(None) };
        let Memory(Shard { segment, shard, place }) = self.results.board();
        bell.wait(segment.asleep(*shard, *place), || self.results.has_news(), wait)
    }
}

/// A shard's results in the shared memory.
pub(super) struct Memory(pub(super) Shard);

impl Board for Memory {
    fn cell(&self, slot: u16) -> Cell {
        Cell::from_word(self.0.segment.cell(self.0.shard, slot).load(Ordering::Acquire))
    }

    fn word(&self, number: u32) -> u64 {
        self.0.segment.entry(self.0.shard, number).load(Ordering::Acquire)
    }

    fn set_word(&mut self, number: u32, word: u64) {
        self.0.segment.entry(self.0.shard, number).store(word, Ordering::Release);
    }

    fn write(&mut self, place: &Writable, fill: impl FnOnce(&mut [u8])) {
        let Shard { segment, shard, .. } = &self.0;
        // SAFETY: this rank is the only one that posts, and no other rank reads that result.
        fill(unsafe { segment.result_mut(*shard, place.slot(), place.lanes()) });
    }

    fn read(&self, place: &Readable) -> Cow<'_, [u8]> {
        let Shard { segment, shard, .. } = &self.0;
        // SAFETY: nobody writes the result while this rank waits for it.
        Cow::Borrowed(unsafe { segment.result(*shard, place.slot(), place.lanes()) })
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, poll};
    use switchml_protocol::wire::header::HEADER_LEN;
    use switchml_protocol::{U16, U32};
    use zerocopy::{FromZeros, IntoBytes};

    use super::super::segment::{Extent, Segment};
    use super::*;

    /// Cells of round 0 that two ranks have passed.
    const PASSED: u64 = 0b11 << 24;

    fn pair() -> (LocalResults, LocalResults) {
        let segment = Arc::new(Segment::new(Extent { shards: 1, slots: 4, lanes: 32 }).unwrap());
        (0..4).for_each(|slot| segment.cell(0, slot).store(PASSED, Ordering::Release));
        let shard = |place| Shard { segment: Arc::clone(&segment), shard: 0, place };
        let name = format!("switchml-test-{}-{:p}", std::process::id(), Arc::as_ptr(&segment));
        let name = SocketAddr::from_abstract_name(name).unwrap();
        let bell = Bell::new(&name).unwrap();
        let reading = LocalResults::reading(shard(1), 2, bell);
        (LocalResults::posting(shard(0), 2, vec![(1, name)]), reading)
    }

    fn header(slot: u16) -> Header {
        let mut header = Header::new_zeroed();
        (header.slot, header.round, header.lanes) = (U16::new(slot), U32::ZERO, U16::new(32));
        header
    }

    /// Whether it waited.
    fn wait(results: &mut LocalResults) -> bool {
        let mut has_waited = false;
        let wait = |bell: Option<BorrowedFd<'_>>| {
            has_waited = true;
            poll(&mut [PollFd::from_borrowed_fd(bell.unwrap(), PollFlags::IN)], None)?;
            Ok(())
        };
        results.wait(wait).unwrap();
        has_waited
    }

    #[test]
    fn who_waits_is_woken_and_reads_what_was_posted() {
        let (mut posting, mut reading) = pair();
        let reader = thread::spawn(move || {
            let mut slots = Vec::new();
            while slots.len() < 4 {
                wait(&mut reading);
                while let Some(packet) = reading.read(|_, round| round == 0) {
                    let slot = packet[HEADER_LEN];
                    assert_eq!(packet[..HEADER_LEN], *header(slot.into()).as_bytes());
                    assert_eq!(packet[HEADER_LEN..], [slot; 128]);
                    slots.push(slot);
                }
            }
            slots
        });
        for slot in 0..4 {
            posting.post(&header(slot), &[slot as u8; 128]);
            posting.ring();
            if slot % 2 == 0 {
                thread::sleep(Duration::from_millis(10));
            }
        }
        assert_eq!(reader.join().unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn who_has_something_to_read_does_not_wait_and_a_bell_ends_one_wait() {
        let (mut posting, mut reading) = pair();
        posting.post(&header(2), &[7; 128]);
        posting.ring();
        assert!(!wait(&mut reading), "there is something to read");
        assert!(reading.read(|slot, _| slot == 2).is_some());
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(10));
                posting.post(&header(1), &[7; 128]);
                posting.ring();
            });
            assert!(wait(&mut reading), "nothing was there");
        });
        let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_silent = |bell: Option<BorrowedFd<'_>>| {
            let mut sources = [PollFd::from_borrowed_fd(bell.unwrap(), PollFlags::IN)];
            assert_eq!(poll(&mut sources, Some(&at_once))?, 0, "the bell is silent");
            Ok(())
        };
        assert!(reading.read(|slot, _| slot == 1).is_some());
        reading.wait(is_silent).unwrap();
    }
}
