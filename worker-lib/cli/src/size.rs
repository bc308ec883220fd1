//! Sizes as nccl-tests takes them: `8`, `64K`, `1.5M`, `2G`.

/// Parses a size in bytes: a number, whole or not, with K, M or G for powers of 1024.
pub fn parse(text: &str) -> Result<usize, String> {
    let wrong = || format!("{text:?} is not a size; use 8, 64K, 16M or 1G");
    let (number, unit) = match text.char_indices().next_back() {
        Some((end, 'k' | 'K')) => (&text[..end], 1u64 << 10),
        Some((end, 'm' | 'M')) => (&text[..end], 1 << 20),
        Some((end, 'g' | 'G')) => (&text[..end], 1 << 30),
        _ => (text, 1),
    };
    // f64's own syntax allows more than digits: signs, exponents, infinity.
    if !number.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return Err(wrong());
    }
    let bytes = number.parse::<f64>().map_err(|_| wrong())? * unit as f64;
    // Beyond 2^53 an f64 no longer holds every byte count; no machine holds such a tensor either.
    if bytes > (1u64 << 53) as f64 {
        Err(format!("{text:?} is more than any machine holds"))
    } else {
        Ok(bytes as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

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
