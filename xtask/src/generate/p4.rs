//! The protocol's header and numbers as P4, taken from the `protocol` crate.

use std::{fmt::Write, mem::offset_of};

use switchml_protocol::wire::header::{HEADER_LEN, Header};
use switchml_protocol::{
    CONTROL_REPLY_LANES, DATA_PORT, EVERYONE, LANES_PER_BLOCK, U16, U32, VERSION,
};

use super::{ABOUT, groups};

/// The file's path in the repository.
pub const PATH: &str = "p4/include/protocol.p4";

/// Names, byte offsets and sizes of fields of [`Header`].
macro_rules! fields {
    ($($name:ident),+) => {
        [$({
            let size = |header: Header| size_of_val(&{ header.$name });
            (stringify!($name), offset_of!(Header, $name), size(empty_header()))
        }),+]
    };
}

/// The text of [`PATH`].
pub fn text() -> String {
    let mut text = format!("// {ABOUT}\n\n");
    text += &header();
    for (name, bits, value) in numbers() {
        let _ = writeln!(text, "const bit<{bits}> {name} = {value};");
    }
    text +=
        "\n// What a header adds to the check word: the sum of its words, each times its factor.\n";
    for (name, factor) in salt_factors() {
        let _ = writeln!(text, "const bit<32> {name} = {factor:#010x};");
    }
    text
}

fn header() -> String {
    let fields = fields!(
        version,
        kind,
        job,
        epoch,
        rank,
        slot,
        round,
        op,
        flags,
        lanes,
        fingerprint,
        check,
        aux
    );
    let mut text = "header switchml_t {\n".to_owned();
    let mut end = 0;
    for (name, offset, size) in fields {
        assert_eq!(
            offset, end,
            "a field of the header before `{name}` is missing from the list above"
        );
        end += size;
        let _ = writeln!(text, "    bit<{}> {name};", 8 * size);
    }
    assert_eq!(end, HEADER_LEN, "the last field of the header is missing from the list above");
    text + "}\n\n"
}

/// Names, widths in bits and values.
fn numbers() -> Vec<(String, u8, u64)> {
    let mut numbers: Vec<(String, u8, u64)> = [
        ("VERSION", 8, VERSION.into()),
        ("DATA_PORT", 16, DATA_PORT.into()),
        ("HEADER_BYTES", 16, HEADER_LEN as u64),
        ("LANES_PER_BLOCK", 16, LANES_PER_BLOCK as u64),
        ("CONTROL_REPLY_LANES", 16, CONTROL_REPLY_LANES as u64),
        ("EVERYONE", 16, EVERYONE.into()),
    ]
    .map(|(name, bits, value)| (name.to_owned(), bits, value))
    .to_vec();
    for (group, rows) in groups() {
        let bits = if group == "reject" { 32 } else { 8 };
        let name = |row: &str| format!("{group}_{row}").to_uppercase();
        numbers.extend(rows.into_iter().map(|(row, value)| (name(row), bits, value)));
    }
    numbers
}

/// The salt is a sum of multiples of five words, so the salt of a header that has 1 in one of them
/// gives its factor.
fn salt_factors() -> [(&'static str, u32); 5] {
    let one = U32::new(1);
    [
        ("SALT_JOB_LANES", Header { lanes: U16::new(1), ..empty_header() }),
        ("SALT_EPOCH", Header { epoch: one, ..empty_header() }),
        ("SALT_SLOT_OP", Header { op: 1, ..empty_header() }),
        ("SALT_ROUND", Header { round: one, ..empty_header() }),
        ("SALT_FINGERPRINT", Header { fingerprint: one, ..empty_header() }),
    ]
    .map(|(name, header)| (name, header.salt()))
}

const fn empty_header() -> Header {
    zerocopy::transmute!([0u8; HEADER_LEN])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of docs/spec, in the form that a data plane without 32-bit products of
    /// variables uses.
    #[test]
    fn the_salt_is_the_sum_of_words_times_factors() {
        let words = [0x0102_u32 << 16 | 32, 0x0304_0506, 0x0708 << 8, 0x090A_0B0C, 0x0D0E_0F10];
        let salt = words
            .into_iter()
            .zip(salt_factors())
            .fold(0u32, |salt, (word, (_, factor))| salt.wrapping_add(word.wrapping_mul(factor)));
        assert_eq!(salt, 0xF397_C142);
    }

    #[test]
    fn the_header_is_as_in_the_specification() {
        let specified = "header switchml_t {\n    bit<8> version;\n    bit<8> kind;\n    \
            bit<16> job;\n    bit<32> epoch;\n    bit<16> rank;\n    bit<16> slot;\n    \
            bit<32> round;\n    bit<8> op;\n    bit<8> flags;\n    bit<16> lanes;\n    \
            bit<32> fingerprint;\n    bit<32> check;\n    bit<32> aux;\n}\n";
        assert!(text().contains(specified), "{}", text());
    }
}
