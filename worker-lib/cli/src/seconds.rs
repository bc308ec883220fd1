//! Durations in seconds.

use std::time::Duration;

/// Parses a number of seconds, whole or not, above zero.
pub fn parse(text: &str) -> Result<Duration, String> {
    let seconds =
        text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    // A time more than a year ahead may be out of range.
    let year = Duration::from_secs(365 * 24 * 3600);
    seconds
        .filter(|seconds| !seconds.is_zero() && *seconds < year)
        .ok_or_else(|| format!("{text:?} is not a time in seconds; use 5 or 0.5, for example"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds() {
        assert_eq!(parse("5"), Ok(Duration::from_secs(5)));
        assert_eq!(parse("0.25"), Ok(Duration::from_millis(250)));
        for text in ["", "0", "-1", "1s", "inf", "nan", "1e300", "1e18"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
