//! What all measurements have in common: ways that take turns, racks, ranks, and reports.

mod pair;
mod ranks;
mod report;

use anyhow::Result;

pub use pair::Pair;
pub use ranks::{MEETING_PORT, Ranks, Said, Sent, finish};
pub use report::{Output, Report, Table, or_dash, processor};

/// Measures all ways of a row, one after the other, row by row, and this in each of so many runs.
/// The order of ways rotates from run to run, so that no way always follows the same other one, and
/// other activity on the machine affects all alike. `measure` gets the row, the way and the run.
/// Returns the samples by row, way and run.
pub fn rows_in_turn<S>(
    runs: usize,
    [rows, ways]: [usize; 2],
    mut measure: impl FnMut(usize, usize, usize) -> Result<S>,
) -> Result<Vec<Vec<Vec<S>>>> {
    let of_row = || (0..ways).map(|_| Vec::new()).collect();
    let mut samples: Vec<Vec<Vec<S>>> = (0..rows).map(|_| of_row()).collect();
    for run in 0..runs {
        for (row, samples) in samples.iter_mut().enumerate() {
            for way in in_turn(ways, run) {
                samples[way].push(measure(row, way, run)?);
            }
        }
        eprintln!("repetition {} of {runs}", run + 1);
    }
    Ok(samples)
}

/// The ways' numbers, in this run's order.
pub fn in_turn(ways: usize, run: usize) -> impl Iterator<Item = usize> {
    (0..ways).map(move |turn| (turn + run) % ways)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_ways_rotates_row_by_row() {
        let mut order = Vec::new();
        let samples = rows_in_turn(2, [2, 3], |row, way, run| {
            order.push((row, way));
            Ok(100 * row + 10 * way + run)
        });
        let [first, second] = [[0, 1, 2], [1, 2, 0]];
        let rows = |ways: [usize; 3]| [0, 1].map(|row| ways.map(|way| (row, way)));
        assert_eq!(order, [rows(first), rows(second)].concat().concat());
        assert_eq!(samples.unwrap()[1], [[100, 101], [110, 111], [120, 121]]);
    }
}
