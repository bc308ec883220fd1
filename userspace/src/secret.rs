//! The secret of an aggregator inside another process: ranks of the job get it where they meet, and
//! join with it. So a host that only finds the port cannot join.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// A random number, 32 hexadecimal digits as text. Logs do not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(u128);

impl Secret {
    /// A new one.
    pub fn draw() -> Self {
        Self(rand::random())
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl FromStr for Secret {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

impl From<[i32; 4]> for Secret {
    /// From words, the most significant one first.
    fn from(words: [i32; 4]) -> Self {
        Self(words.iter().fold(0, |bits, word| bits << 32 | u128::from(*word as u32)))
    }
}

impl From<Secret> for [i32; 4] {
    fn from(Secret(bits): Secret) -> Self {
        [96, 64, 32, 0].map(|shift| (bits >> shift) as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_text_and_as_words() {
        let text = "00000001fffffffe0123456789abcdef";
        let secret: Secret = text.parse().unwrap();
        assert_eq!(secret.to_string(), text);
        let words = [1, -2, 0x0123_4567, 0x89ab_cdef_u32 as i32];
        assert_eq!(<[i32; 4]>::from(secret), words);
        assert_eq!(Secret::from(words), secret);
        assert!("x".parse::<Secret>().is_err());
        assert_ne!(Secret::draw(), Secret::draw());
        assert_eq!(format!("{secret:?}"), "Secret");
    }
}
