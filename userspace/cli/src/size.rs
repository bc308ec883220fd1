//! Sizes as nccl-tests takes them: `8`, `64K`, `1.5M`, `2G`; and rates of links.

/// Beyond 2^53 an f64 no longer holds every whole number.
const MOST: f64 = (1u64 << 53) as f64;

/// Parses a size in bytes: a number, whole or not, with K, M or G for powers of 1024.
///
/// # Errors
/// What a size looks like.
pub fn parse(text: &str) -> Result<usize, String> {
    let wrong = || format!("{text:?} is not a size; use 8, 64K, 16M or 1G");
    let bytes = number(text, 1024).ok_or_else(wrong)?;
    // No machine holds such a tensor either.
    if bytes > MOST {
        Err(format!("{text:?} is more than any machine holds"))
    } else {
        Ok(bytes as usize)
    }
}

/// Parses a link's rate in bits per second: a number, whole or not, with K, M or G for powers of
/// 1000.
///
/// # Errors
/// What a rate looks like.
pub fn rate(text: &str) -> Result<u64, String> {
    let bits = number(text, 1000).filter(|bits| (1.0..=MOST).contains(bits));
    let wrong = || format!("{text:?} is not a rate in bits per second; use 400M, 1G or 2.5G");
    bits.map(|bits| bits as u64).ok_or_else(wrong)
}

/// A number without sign, in units that are powers of `base`.
fn number(text: &str, base: u64) -> Option<f64> {
    let (number, unit) = match text.char_indices().next_back() {
        Some((end, 'k' | 'K')) => (&text[..end], base),
        Some((end, 'm' | 'M')) => (&text[..end], base.pow(2)),
        Some((end, 'g' | 'G')) => (&text[..end], base.pow(3)),
        _ => (text, 1),
    };
    // f64's own syntax allows more than digits: signs, exponents, infinity.
    let is_plain = number.chars().all(|c| c.is_ascii_digit() || c == '.');
    let number: f64 = number.parse().ok().filter(|_| is_plain)?;
    Some(number * unit as f64)
}

#[cfg(test)]
mod tests {
    use super::{parse, rate};

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("8", 8),
            ("1000", 1000),
            ("64K", 65_536),
            ("64k", 65_536),
            ("16M", 16_777_216),
            ("1.5m", 1_572_864),
            ("2G", 2_147_483_648),
            (".5G", 536_870_912),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn rates() {
        for (text, bits) in [
            ("1G", 1_000_000_000),
            ("2.5g", 2_500_000_000),
            ("400M", 400_000_000),
            ("56k", 56_000),
            ("1000", 1000),
        ] {
            assert_eq!(rate(text), Ok(bits), "{text}");
        }
        for text in ["", "0", "0.5", "G", "-1G", "1Gb", "1T", "inf", "9999999999G"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn refused() {
        for text in [
            "",
            "K",
            "-8",
            "+8",
            "8T",
            "8KB",
            "8 K",
            "1e3",
            "inf",
            "nan",
            "1.2.3",
            "0x10",
            "9999999999G",
            "é",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
