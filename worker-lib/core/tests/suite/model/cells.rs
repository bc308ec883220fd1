//! The state of combiners.

use switchml_protocol::combiner::cell::{Cell, CellHead};

use super::tally::{self, Tally};

/// The one cell of a combiner, without the lanes that stay zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    pub head: CellHead,
    values: Tally,
}

impl Memory {
    pub fn holds(&self) -> bool {
        self.head.held != 0
    }

    /// Whether the combiner has counted some contribution more than twice.
    pub fn exceeds_two(&self) -> bool {
        tally::exceeds_two(&self.values)
    }

    pub fn to_cell(self) -> Cell {
        let mut cell = Cell { head: self.head, ..Cell::default() };
        for (pair, lanes) in cell.values.iter_mut().zip(self.values.as_chunks::<2>().0) {
            *pair = u64::from(lanes[0]) << 32 | u64::from(lanes[1]);
        }
        cell
    }

    pub fn of_cell(cell: &Cell) -> Self {
        let mut values = Tally::default();
        for (lanes, pair) in values.as_chunks_mut::<2>().0.iter_mut().zip(cell.values) {
            *lanes = [(pair >> 32) as u32, pair as u32];
        }
        // Values that are not held any more are overwritten before they are used again.
        Self {
            head: cell.head,
            values: if cell.head.held == 0 { Tally::default() } else { values },
        }
    }
}
