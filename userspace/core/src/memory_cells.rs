//! A combiner's jobs, members and cells in this process's memory, and packets served from them: the
//! data plane of a combiner without its I/O.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use switchml_protocol::bpf_types::job::{Binding, JobEntry, MemberEntry};
use switchml_protocol::combiner::admission::Cells;
use switchml_protocol::combiner::cell::{self, Cell};
use switchml_protocol::combiner::hold_time::{self, hold_time};
use switchml_protocol::node::ingress::Origin;
use switchml_protocol::node::{self, Medium, Served};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::packet::Packet;
use switchml_protocol::root::admission::Members;
use switchml_protocol::wire::header::{HEADER_LEN, Header};
use switchml_protocol::wire::ip::Ip;

use crate::memory_tables::MemoryTables;

/// Most useful cells: one per key of all jobs, with 512 slots and two groups of ranks each.
pub const MAX_CELLS: u32 = 1 << 18;
/// Least useful cells: those of one job.
pub const MIN_CELLS: u32 = 512;
/// Cells take at most one part in this many of the host's memory.
const PART_OF_MEMORY: u64 = 8;

/// The state of a combiner in software.
pub struct MemoryCells {
    /// The combiner's jobs, and the ranks below.
    pub tables: MemoryTables,
    data_port: u16,
    /// The cells, allocated when they are first needed.
    cells: Box<[OnceLock<Box<Mutex<Cell>>>]>,
    /// Smoothed age of complete partial sums, in microseconds. Threads may lose each other's
    /// updates, which does no harm.
    age: AtomicU32,
}

/// The default number of cells on a host with `memory` bytes of memory.
pub fn default_cells(memory: u64) -> u32 {
    let room = memory / PART_OF_MEMORY / size_of::<Mutex<Cell>>() as u64;
    room.clamp(MIN_CELLS.into(), MAX_CELLS.into()) as u32
}

impl MemoryCells {
    /// No jobs, and `cells` cells, at least one. Ranks below send to `data_port`.
    pub fn new(cells: u32, data_port: u16) -> Self {
        Self {
            tables: MemoryTables::new(),
            data_port,
            cells: (0..cells.max(1)).map(|_| OnceLock::new()).collect(),
            age: AtomicU32::new(hold_time::FIRST),
        }
    }

    /// Number of cells.
    pub fn cells(&self) -> u32 {
        self.cells.len() as u32
    }

    /// Serves a datagram that came to this port at this time, in microseconds. If it goes anywhere,
    /// it holds an [`answer`](crate::memory_tables::answer). What leaves ahead of it comes with it.
    pub fn serve(
        &self,
        medium: &impl Medium,
        datagram: &mut [u8],
        origin: &Origin,
        (port, now): (u16, u32),
    ) -> (Served, Option<Vec<u8>>) {
        let Some(mut packet) = Packet::of(datagram) else {
            return (Served::unanswered(Outcome::Truncated), None);
        };
        let at = At { memory: self, now, ahead: RefCell::default() };
        let served = if port == self.data_port {
            node::up(&at, medium, origin, &mut packet)
        } else {
            node::down(&at, medium, origin, port, &mut packet)
        };
        (served, at.ahead.into_inner())
    }
}

/// Rule 27.11: the values of a cell, as a packet of its own.
fn flushed(cell: &mut Cell) -> Option<Vec<u8>> {
    let mut packet = vec![0; HEADER_LEN + 4 * usize::from(cell.head.lanes)];
    cell::flush(cell, &mut Packet::of(&mut packet)?).ok()?;
    Some(packet)
}

/// The memory at some time, in microseconds, for one packet.
struct At<'a> {
    memory: &'a MemoryCells,
    now: u32,
    /// What leaves ahead of the packet.
    ahead: RefCell<Option<Vec<u8>>>,
}

impl Members for At<'_> {
    fn job(&self, number: u16) -> Option<JobEntry> {
        self.memory.tables.job(number)
    }

    fn member(&self, job: u16, rank: u16) -> Option<MemberEntry> {
        self.memory.tables.member(job, rank)
    }

    fn learn(&self, job: u16, rank: u16, epoch: u32, binding: &Binding) {
        self.memory.tables.learn(job, rank, epoch, binding);
    }

    fn parent(&self, job: u16) -> Option<(Binding, Ip)> {
        self.memory.tables.parent(job)
    }
}

impl Cells for At<'_> {
    fn below(&self, job: u16, group: u16) -> u32 {
        self.memory.tables.below(job, group)
    }

    fn data_port(&self, _: u16) -> u16 {
        self.memory.data_port
    }

    fn clock(&self) -> (u32, u32) {
        (self.now, hold_time(self.memory.age.load(Ordering::Relaxed)))
    }

    fn flush(&self, cell: &mut Cell) {
        self.ahead.replace(flushed(cell));
    }

    fn with_cell(&self, header: &Header, f: impl FnOnce(&mut Cell) -> Outcome) -> Outcome {
        let index = cell::cell_of(header, self.memory.cells());
        let cell = self.memory.cells[index as usize].get_or_init(Box::default);
        // A thread that panicked left plain numbers behind.
        let mut cell = cell.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = f(&mut cell);
        if outcome == Outcome::Combined {
            let age = self.now.wrapping_sub(cell.head.since);
            let before = self.memory.age.load(Ordering::Relaxed);
            self.memory.age.store(hold_time::average(before, age), Ordering::Relaxed);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_by_memory() {
        assert_eq!(default_cells(0), MIN_CELLS);
        let of_one_gib = default_cells(1 << 30);
        assert!((40_000..44_000).contains(&of_one_gib), "{of_one_gib}");
        assert_eq!(default_cells(1 << 40), MAX_CELLS);
    }
}
