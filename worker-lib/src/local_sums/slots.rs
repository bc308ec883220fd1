//! A shard's shared slots, if all ranks of the job are on this host, and the bell of this rank.

use std::borrow::Cow;
use std::convert::Infallible;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use switchml_protocol::outcome::Outcome;
use switchml_protocol::root::slot::Slot;
use switchml_protocol::wire::header::Header;
use switchml_worker_core::local_slots::{self, Table};
use switchml_worker_core::wire::Wire;

use super::Shard;
use super::bell::{Bell, Ringer};
use super::results::Memory;

/// How long a rank lets others run until a slot is free. A rank keeps a slot for about a
/// microsecond, unless the system runs something else; if it is longer, its process stands still.
const PATIENCE: Duration = Duration::from_millis(10);
/// Looks at a slot before others may run.
const QUICK_LOOKS: u32 = 100;

/// The shared slots of a driver.
pub(crate) struct LocalSlots {
    slots: local_slots::LocalSlots<Memory>,
    bell: Bell,
    ringer: Ringer,
}

impl LocalSlots {
    /// Of a shard of a session with this epoch; `others` are the bells of ranks at other places.
    pub(super) fn new(
        shard: Shard,
        (epoch, slots): (u32, u16),
        ranks: Vec<u16>,
        bell: Bell,
        others: Vec<(usize, SocketAddr)>,
    ) -> Self {
        let slots = local_slots::LocalSlots::new(Memory(shard), epoch, slots, ranks);
        Self { slots, bell, ringer: Ringer::new(others) }
    }

    /// The next answer to this rank, or result of a chunk that it `awaits`.
    pub fn read(&mut self, awaits: impl Fn(u16, u16) -> bool) -> Option<Cow<'_, [u8]>> {
        self.slots.read(awaits)
    }

    /// Waits by `wait`, which returns soon once the descriptor is readable, unless there is news
    /// already.
    pub fn wait(
        &mut self,
        wait: impl FnOnce(Option<BorrowedFd<'_>>) -> io::Result<()>,
    ) -> io::Result<()> {
        let Memory(Shard { segment, shard, place }) = self.slots.table();
        self.bell.wait(segment.asleep(*shard, *place), || self.slots.has_news(), wait)
    }
}

impl Wire for LocalSlots {
    type Error = Infallible;

    fn put(&mut self, header: &Header, fill: impl FnOnce(&mut [u8])) -> Result<(), Infallible> {
        self.slots.put(header, fill)
    }

    /// Wakes the ranks that wait for what was shown.
    fn flush(&mut self) -> Result<(), Infallible> {
        if self.slots.take_shown() {
            let Memory(Shard { segment, shard, .. }) = self.slots.table();
            self.ringer.ring(segment, *shard);
        }
        Ok(())
    }
}

impl Table for Memory {
    fn with_slot(&self, slot: u16, f: impl FnOnce(&mut Slot) -> Outcome) -> Result<Outcome, usize> {
        let Shard { segment, shard, place } = &self.0;
        let (lock, own) = (segment.lock(*shard, slot), *place as u32 + 1);
        let (mut looks, mut begin) = (0, None);
        while let Err(holder) = lock.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed)
        {
            looks += 1;
            if looks <= QUICK_LOOKS {
                std::hint::spin_loop();
                continue;
            }
            if begin.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(holder as usize - 1);
            }
            thread::yield_now();
        }
        // SAFETY: this rank has the lock.
        let outcome = f(unsafe { segment.shared_slot(*shard, slot) });
        lock.store(0, Ordering::Release);
        Ok(outcome)
    }

    fn take_number(&mut self) -> u32 {
        let Shard { segment, shard, .. } = &self.0;
        segment.take_entry(*shard)
    }
}
