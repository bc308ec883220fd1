//! Keys and tags: SipHash against its authors' vectors and another implementation, and what a tag
//! covers.

use core::hash::Hasher;

use proptest::prelude::*;
use siphasher::sip::SipHasher24;
use switchml_protocol::wire::auth::Key;
use switchml_protocol::wire::header::{HEADER_LEN, Header, flags};
use zerocopy::FromBytes;

const FLAGS_AT: usize = 17;

fn header(bytes: [u8; HEADER_LEN]) -> Header {
    Header::read_from_bytes(&bytes).unwrap()
}

/// `vectors.h` of the reference implementation: key 00 01 … 0f, message 00 01 … 1f. (Its byte 17
/// has no CE.)
#[test]
fn the_tag_is_siphash_2_4_of_its_authors() {
    let key = Key::from_bytes(core::array::from_fn(|i| i as u8));
    let tag = key.tag(&header(core::array::from_fn(|i| i as u8)));
    assert_eq!(tag.get(), 0x7127_512F_72F2_7CCE);
}

/// SipHash-2-4 of a message, by the `siphasher` crate.
fn siphash(key: [u8; 16], message: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_key(&key);
    hasher.write(message);
    hasher.finish()
}

proptest! {
    #[test]
    fn tags_are_those_of_another_implementation(key: [u8; 16], bytes: [u8; HEADER_LEN]) {
        let mut covered = bytes;
        covered[FLAGS_AT] &= !flags::CE;
        prop_assert_eq!(
            Key::from_bytes(key).tag(&header(bytes)).get(),
            siphash(key, &covered)
        );
    }

    #[test]
    fn every_bit_of_a_header_but_ce_is_covered(
        key: [u8; 16],
        bytes: [u8; HEADER_LEN],
        bit in 0..8 * HEADER_LEN,
    ) {
        let mut other = bytes;
        other[bit / 8] ^= 1 << (bit % 8);
        let key = Key::from_bytes(key);
        let is_ce = bit / 8 == FLAGS_AT && 1 << (bit % 8) == flags::CE;
        prop_assert_eq!(key.tag(&header(bytes)) == key.tag(&header(other)), is_ce);
    }

    #[test]
    fn keys_are_bytes(bytes: [u8; 16]) {
        let key = Key::from_bytes(bytes);
        prop_assert_eq!(key.to_bytes(), bytes);
        prop_assert_eq!(key.is_none(), bytes == [0; 16]);
        let shown = format!("{key:?}");
        prop_assert!(!shown.contains(|c: char| c.is_ascii_digit()), "{}", shown);
    }
}
