//! The settings and methods to measure.

use super::measured::{Cell, Method, Task};

/// Sizes of tensors in bytes.
const SIZES: [usize; 8] =
    [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];

/// The size of most goals.
pub const LARGE: usize = 16 << 20;
/// The size that is to take about a round trip.
pub const SMALL: usize = 64 << 10;

/// Rate of slower links.
pub const HALF_GIGABIT: u64 = 500_000_000;

/// Rate of links where every packet takes processor time by itself, and an Ethernet switch on this
/// machine forwards it once more.
pub const QUARTER_GIGABIT: u64 = 250_000_000;

/// A setting, and the methods to measure in it.
pub struct Item {
    pub cell: Cell,
    pub methods: Vec<Method>,
}

/// Workers where networks differ.
pub const NETWORKED: usize = 4;

/// Numbers of workers.
pub const WORKERS: [usize; 3] = [2, 4, 8];

/// Rate of shaped links in bits per second. The machine can carry all of them together.
pub const fn rate(workers: usize) -> u64 {
    if workers < 8 { 1_000_000_000 } else { HALF_GIGABIT }
}

/// Everything.
pub fn full() -> Vec<Item> {
    let mut items = Vec::new();
    for workers in WORKERS {
        for rate in [None, Some(rate(workers))] {
            let cells = SIZES.map(|size| Cell { workers, rate, size, task: Task::Sum });
            items.extend(cells.map(|cell| Item { cell, methods: Method::USUAL.to_vec() }));
        }
        items.extend(broadcasts(workers));
        items.extend(only_ours(workers));
    }
    items
}

/// The settings and methods of the goals only.
pub fn quick() -> Vec<Item> {
    let mut items = Vec::new();
    for workers in WORKERS {
        for (rate, size) in [(None, SMALL), (None, LARGE), (Some(rate(workers)), LARGE)] {
            let cell = Cell { workers, rate, size, task: Task::Sum };
            let others: &[Method] =
                if size == LARGE { &[Method::Bits16, Method::Bits8, Method::Tags] } else { &[] };
            let methods = [&[Method::OURS], others, &[Method::Gloo, Method::OpenMpi]].concat();
            items.push(Item { cell, methods });
        }
        items.extend(broadcasts(workers));
        items.extend(only_ours(workers));
    }
    items
}

/// Settings that compare how results reach ranks, and through how many ports.
pub fn networks() -> Vec<Item> {
    let (native, others): (Vec<_>, Vec<_>) =
        Method::IN_NETWORKS.into_iter().partition(|method| method.is_native());
    let settings = [
        (None, Method::IN_NETWORKS.to_vec()),
        (Some(rate(NETWORKED)), others),
        (Some(QUARTER_GIGABIT), native),
    ];
    let cell = |rate| Cell { workers: NETWORKED, rate, size: LARGE, task: Task::Sum };
    settings.map(|(rate, methods)| Item { cell: cell(rate), methods }).into()
}

/// Workers that are spread over racks.
pub const SPREAD: usize = 8;

/// Rate of workers' links and of uplinks in racks.
pub const GIGABIT: u64 = 1_000_000_000;

/// Racks with one uplink each, compared with one rack.
pub fn racks() -> Vec<Item> {
    let item = |rate| Item {
        cell: Cell { workers: SPREAD, rate: Some(rate), size: LARGE, task: Task::Sum },
        methods: Method::IN_RACKS.to_vec(),
    };
    [GIGABIT, QUARTER_GIGABIT].map(item).into()
}

/// Programs of MPI, with this project's library and without.
pub fn mpi() -> Vec<Item> {
    let mut items = Vec::new();
    for rate in [None, Some(rate(NETWORKED))] {
        for (size, task) in
            [(SMALL, Task::Sum), (1 << 20, Task::Sum), (LARGE, Task::Sum), (LARGE, Task::Broadcast)]
        {
            let cell = Cell { workers: NETWORKED, rate, size, task };
            items.push(Item { cell, methods: Method::OF_MPI.to_vec() });
        }
    }
    items
}

fn broadcasts(workers: usize) -> [Item; 2] {
    [None, Some(rate(workers))].map(|rate| Item {
        cell: Cell { workers, rate, size: LARGE, task: Task::Broadcast },
        methods: vec![Method::OURS, Method::Gloo, Method::OpenMpi],
    })
}

/// Goals that compare ours with ours: sparse with dense tensors, few workers with many at the same
/// rate.
fn only_ours(workers: usize) -> Vec<Item> {
    let shaped = |rate, task| Item {
        cell: Cell { workers, rate: Some(rate), size: LARGE, task },
        methods: vec![Method::OURS],
    };
    let mut items = vec![shaped(rate(workers), Task::SparseSum)];
    if workers == WORKERS[0] {
        items.push(shaped(HALF_GIGABIT, Task::Sum));
    }
    items
}
