//! Writes the decoder's seeds to `corpus/decoder`: runs of frames made from the specification, each
//! getting to another outcome.
//!
//! `cargo run --release -p switchml-fuzz --example seeds`

use std::{fs, io, path::Path};

use switchml_test_support::frame::{CE, CHECKED, Envelope, MAX, PENDING, Packet};

/// The bit of an input's first byte for frames over IPv6.
const OVER_IPV6: u8 = 32;

/// Contribution of a rank to a round of slot 0.
fn contribution(rank: u16, round: u32) -> Packet {
    Packet::contribution(rank, 0, round, &[0x0001_8000 + u32::from(rank); 32])
}

/// The contributions of both ranks to a round.
fn round(number: u32) -> [Vec<u8>; 2] {
    [0, 1].map(|rank| contribution(rank, number).frame())
}

fn seeds() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let hello = Packet::hello(1, 32).frame();
    let first = contribution(0, 0);
    let with = |change: fn(&mut Packet)| {
        let mut packet = first.clone();
        change(&mut packet);
        packet.frame()
    };
    let op = |op| [0, 1].map(|rank| Packet { op, ..contribution(rank, 0) }.frame()).to_vec();
    let damaged = |change: fn(&mut Vec<u8>)| {
        let mut frame = first.frame();
        change(&mut frame);
        vec![frame]
    };
    let tagged = |frame: &[u8]| [&frame[..12], &[0x81, 0, 0x60, 0], &frame[12..]].concat();
    let congested = Envelope { tos: 3, ..first.request() }.bytes(&first.bytes());
    vec![
        ("hello", vec![hello.clone(), Packet::hello(1, 0).frame()]),
        ("wrong-secret", vec![Packet { aux: 1, ..Packet::hello(1, 0) }.frame()]),
        ("pending", vec![first.frame(), first.frame()]),
        (
            "complete-and-replayed",
            [vec![hello.clone()], round(0).to_vec(), vec![first.frame()]].concat(),
        ),
        (
            "three-rounds-and-stale",
            [&[hello.clone()][..], &round(0), &round(1), &round(2), &[first.frame()]].concat(),
        ),
        (
            "complete-and-replayed-over-ipv6",
            [vec![hello.clone()], round(0).to_vec(), vec![first.frame()]].concat(),
        ),
        ("max", [vec![hello.clone()], op(MAX)].concat()),
        ("unknown-op", op(0x10)),
        ("mismatch", vec![first.frame(), with(|packet| packet.fingerprint ^= 1)]),
        ("wrong-round", vec![with(|packet| packet.round = 7)]),
        ("congested", vec![congested, with(|packet| packet.flags = CHECKED | CE)]),
        ("unchecked", vec![with(|packet| packet.flags = 0)]),
        ("wrong-check", vec![with(|packet| packet.check = Some(1))]),
        ("no-hello", vec![contribution(1, 0).frame()]),
        ("wrong-epoch", vec![with(|packet| packet.epoch += 1)]),
        ("another-kind", vec![with(|packet| (packet.kind, packet.values) = (PENDING, vec![1, 2]))]),
        ("truncated", damaged(|frame| frame.truncate(100))),
        ("fragment", damaged(|frame| frame[20] = 0x20)),
        ("tagged", damaged(|frame| drop(frame.splice(12..12, [0x81, 0, 0, 5])))),
        ("tagged-with-a-priority", vec![tagged(&hello), tagged(&contribution(1, 0).frame())]),
        ("from-the-aggregator", vec![first.result(CHECKED, 2, &[1; 32]).reply(0)]),
    ]
}

fn main() -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/decoder");
    fs::create_dir_all(&folder)?;
    for (name, frames) in seeds() {
        // One byte without repairs, then the length and the bytes.
        let repairs = if name.ends_with("-over-ipv6") { OVER_IPV6 } else { 0 };
        let run = |frame: Vec<u8>| {
            [vec![repairs], (frame.len() as u16).to_be_bytes().to_vec(), frame].concat()
        };
        fs::write(folder.join(name), frames.into_iter().flat_map(run).collect::<Vec<u8>>())?;
    }
    Ok(())
}
