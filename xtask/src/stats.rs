//! Medians and their spread.

use serde::Serialize;

/// The middle of some numbers, and the half of them around it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// First quartile.
    pub low: f64,
    pub median: f64,
    /// Third quartile.
    pub high: f64,
}

impl Spread {
    /// Of numbers of which there is at least one; quartiles between two numbers are interpolated.
    pub fn of(mut numbers: Vec<f64>) -> Self {
        numbers.sort_by(f64::total_cmp);
        let quantile = |share: f64| {
            let place = share * (numbers.len() - 1) as f64;
            let (below, above) = (numbers[place.floor() as usize], numbers[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        Self { low: quantile(0.25), median: quantile(0.5), high: quantile(0.75) }
    }

    /// Of the ratios, pair by pair.
    pub fn of_ratios(numerators: &[f64], denominators: &[f64]) -> Self {
        Self::of(numerators.iter().zip(denominators).map(|(a, b)| a / b).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quartiles() {
        assert_eq!(Spread::of(vec![3.0]), Spread { low: 3.0, median: 3.0, high: 3.0 });
        assert_eq!(
            Spread::of(vec![5.0, 1.0, 4.0, 2.0, 3.0]),
            Spread { low: 2.0, median: 3.0, high: 4.0 }
        );
        assert_eq!(
            Spread::of(vec![4.0, 1.0, 2.0, 3.0]),
            Spread { low: 1.75, median: 2.5, high: 3.25 }
        );
    }

    #[test]
    fn ratios_are_taken_pair_by_pair() {
        // The medians' ratio would be 1: a machine that was busy in one repetition was so for both.
        let (ours, theirs) = ([1.0, 10.0, 3.0], [2.0, 20.0, 3.0]);
        assert_eq!(Spread::of_ratios(&theirs, &ours), Spread { low: 1.5, median: 2.0, high: 2.0 });
    }
}
