//! What is measured.

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

/// A setting, and by which methods it is measured.
pub struct Item {
    pub cell: Cell,
    pub methods: Vec<Method>,
}

/// Numbers of workers.
pub const WORKERS: [usize; 3] = [2, 4, 8];

/// Rate of shaped links in bits per second: no more for all of them together than the machine
/// carries.
pub fn rate(workers: usize) -> u64 {
    if workers < 8 { 1_000_000_000 } else { HALF_GIGABIT }
}

/// Everything.
pub fn full() -> Vec<Item> {
    let mut items = Vec::new();
    for workers in WORKERS {
        for rate in [None, Some(rate(workers))] {
            let cells = SIZES.map(|size| Cell { workers, rate, size, task: Task::Sum });
            items.extend(cells.map(|cell| Item { cell, methods: Method::ALL.to_vec() }));
        }
        items.extend(broadcasts(workers));
        items.extend(only_ours(workers));
    }
    items
}

/// What the goals are about, and no more.
pub fn quick() -> Vec<Item> {
    let mut items = Vec::new();
    for workers in WORKERS {
        for (rate, size) in [(None, SMALL), (None, LARGE), (Some(rate(workers)), LARGE)] {
            let cell = Cell { workers, rate, size, task: Task::Sum };
            let packed: &[Method] =
                if size == LARGE { &[Method::Bits16, Method::Bits8] } else { &[] };
            let methods = [&[Method::OURS], packed, &[Method::Gloo, Method::OpenMpi]].concat();
            items.push(Item { cell, methods });
        }
        items.extend(broadcasts(workers));
        items.extend(only_ours(workers));
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
