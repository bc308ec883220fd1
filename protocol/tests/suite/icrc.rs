//! ICRCs made by tables and folding are those made bit by bit.

use proptest::prelude::*;
use switchml_protocol::wire::icrc::{FIRST, Folding, join, take};

/// The CRC-32 of IEEE 802.3, bit by bit, as it stands in a frame.
fn crc(bytes: &[u8]) -> [u8; 4] {
    let register = bytes.iter().fold(u32::MAX, |register, byte| {
        (0..8).fold(register, |register, bit| {
            let out = register & 1 != u32::from(byte >> bit) & 1;
            (register >> 1) ^ if out { 0xEDB8_8320 } else { 0 }
        })
    });
    (!register).to_le_bytes()
}

fn taken(register: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks();
    assert!(rest.is_empty());
    words.iter().fold(register, |register, word| take(register, *word))
}

/// Its check value: ITU-T V.42's CRC of "123456789".
#[test]
fn the_reference_is_ethernets() {
    assert_eq!(crc(b"123456789"), 0xCBF4_3926u32.to_le_bytes());
}

proptest! {
    /// Of headers and a packet of a header and any number of words, as large as packets get.
    #[test]
    fn headers_and_packet_are_joined(
        headers in prop::collection::vec(any::<[u8; 4]>(), 1..30),
        packet in prop::collection::vec(any::<[u8; 4]>(), 8..8 + 771),
    ) {
        let (headers, bytes) = (headers.concat(), packet.concat());
        let joined = join(taken(FIRST, &headers), taken(0, &bytes), packet.len() - 8);
        prop_assert_eq!(joined, crc(&[headers, bytes].concat()));
    }

    #[test]
    fn words_are_folded_onto_the_last_five(
        words in prop::collection::vec(any::<[u8; 8]>(), 5..400),
    ) {
        let mut folding = Folding::default();
        let (first, last) = words.split_at(words.len() - 5);
        first.iter().for_each(|word| folding.take(*word, |word| word));
        let register = last.iter().enumerate().fold(0, |register, (index, word)| {
            taken(register, &(u64::from_le_bytes(*word) ^ folding.onto(index)).to_le_bytes())
        });
        prop_assert_eq!(register, taken(0, &words.concat()));
    }
}
