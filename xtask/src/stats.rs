//! Medians and their spread.

use std::fmt::{self, Display};

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

    /// The spread in another unit, of which one of the present one has so many.
    pub fn times(self, factor: f64) -> Self {
        let Self { low, median, high } = self;
        Self { low: low * factor, median: median * factor, high: high * factor }
    }

    /// The spread of the ratios, pair by pair.
    pub fn of_ratios(numerators: &[f64], denominators: &[f64]) -> Self {
        Self::of(numerators.iter().zip(denominators).map(|(a, b)| a / b).collect())
    }
}

/// The median and the quartiles, with as many significant digits as the precision says, or three.
impl Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { low, median, high } = self;
        let [low, median, high] =
            [low, median, high].map(|x| figure(*x, f.precision().unwrap_or(3)));
        write!(f, "{median} ({low}-{high})")
    }
}

/// A number with so many significant digits, but never fewer than its integer part has.
pub fn figure(number: f64, digits: usize) -> String {
    if number == 0.0 || !number.is_finite() {
        return number.to_string();
    }
    let decimals = digits as i32 - 1 - number.abs().log10().floor() as i32;
    format!("{number:.*}", decimals.max(0) as usize)
}

/// The medians of these runs.
pub fn medians(runs: &[Vec<f64>]) -> Vec<f64> {
    runs.iter().map(|run| Spread::of(run.clone()).median).collect()
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
    fn figures_have_as_many_digits_as_they_are_worth() {
        let cases = [
            (123.456, 2, "123"),
            (12.345, 3, "12.3"),
            (0.012345, 3, "0.0123"),
            (9.99, 2, "10.0"),
            (0.0, 2, "0"),
        ];
        for (number, digits, text) in cases {
            assert_eq!(figure(number, digits), text);
        }
        let spread = Spread { low: 9.5, median: 12.25, high: 120.0 };
        assert_eq!(
            (spread.to_string(), format!("{spread:.2}")),
            ("12.2 (9.50-120)".to_owned(), "12 (9.5-120)".to_owned())
        );
    }

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
