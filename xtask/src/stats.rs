//! Medians and their spread.

use serde::Serialize;

/// The median of some numbers, and the quartiles around it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// First quartile.
    pub low: f64,
    pub median: f64,
    /// Third quartile.
    pub high: f64,
}

impl Spread {
    /// The spread of at least one number; quartiles between two numbers are interpolated.
    pub fn of(mut numbers: Vec<f64>) -> Self {
        numbers.sort_by(f64::total_cmp);
        let quantile = |share| quantile(&numbers, share);
        Self { low: quantile(0.25), median: quantile(0.5), high: quantile(0.75) }
    }

    /// The spread of the ratios, pair by pair.
    pub fn of_ratios(numerators: &[f64], denominators: &[f64]) -> Self {
        Self::of(numerators.iter().zip(denominators).map(|(a, b)| a / b).collect())
    }
}

/// The number that this share of at least one does not exceed, interpolated between two. They are
/// sorted.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

/// A mean, and its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    pub mean: f64,
    /// The mean's standard error.
    pub error: f64,
}

impl Mean {
    /// The mean of independent numbers; the error of a single number is infinite.
    pub fn of(numbers: &[f64]) -> Self {
        let count = numbers.len() as f64;
        let mean = numbers.iter().sum::<f64>() / count;
        let squares: f64 = numbers.iter().map(|number| (number - mean).powi(2)).sum();
        let error = if numbers.len() > 1 {
            (squares / (count - 1.0) / count).sqrt()
        } else {
            f64::INFINITY
        };
        Self { mean, error }
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
    fn a_mean_and_its_standard_error() {
        // The squares are 4, 1, 1, 4 and 0: the variance is 2.5, and the variance of the mean a
        // fifth of it.
        let mean = Mean::of(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(mean, Mean { mean: 3.0, error: 0.5f64.sqrt() });
        assert_eq!(Mean::of(&[7.0]), Mean { mean: 7.0, error: f64::INFINITY });
    }

    #[test]
    fn ratios_are_taken_pair_by_pair() {
        // The medians' ratio would be 1: a machine that was busy in one repetition was so for both.
        let (ours, theirs) = ([1.0, 10.0, 3.0], [2.0, 20.0, 3.0]);
        assert_eq!(Spread::of_ratios(&theirs, &ours), Spread { low: 1.5, median: 2.0, high: 2.0 });
    }
}
