//! By which ports frames come in again: port 68 of each pipeline, which has no cable, and ports of
//! the front panel that the switch puts in loopback.

use crate::entries::{PORTS_OF_PIPELINE, Table};
use crate::switch::{Entry, Match};

/// The recirculation port that each pipeline has of its own.
pub const OWN_PORT: u16 = 68;
/// The pipeline's number and this one's, without that of the channel: as the parser knows it.
pub const OWN_PORTS: u16 = 0x7C;

/// Slots are spread over the ports by their number modulo this.
pub const SLOT_CLASSES: u16 = 64;
/// Pipelines of a chip at most.
pub const PIPELINES: u16 = 4;

/// The ports by which frames of a slot come in again, only on Tofino.
pub const RECIRCULATION: Table = Table {
    name: "recirculation",
    key: &["port", "slot"],
    actions: &[("recirculate_by", &["again"])],
};

/// What the parser is told of a port.
pub const PORT_METADATA: Table =
    Table { name: "$PORT_METADATA", key: &["ingress_port"], actions: &[] };
/// Its only value: 1 at ports in loopback. The parser knows the pipelines' own.
pub const RECIRCULATES: &str = "recirculates";

/// The recirculation port that this pipeline has of its own.
pub const fn own_port(pipeline: u16) -> u16 {
    pipeline * PORTS_OF_PIPELINE + OWN_PORT
}

/// The entries that spread the slots of a pipeline over these ports. All frames of a slot take the
/// same, because they must not overtake each other (`p4/include/parts.p4`).
pub fn entries(pipeline: u16, ports: &[u16]) -> Vec<Entry> {
    let of_pipeline = Match::Ternary {
        value: (pipeline * PORTS_OF_PIPELINE).into(),
        mask: (0x1FF & !(PORTS_OF_PIPELINE - 1)).into(),
    };
    let entry = |(class, port): (u16, &u16)| Entry {
        table: RECIRCULATION.name,
        key: vec![
            ("port", of_pipeline),
            ("slot", Match::Ternary { value: class.into(), mask: (SLOT_CLASSES - 1).into() }),
        ],
        priority: 0,
        action: "recirculate_by",
        data: vec![("again", u64::from(*port))],
    };
    (0..SLOT_CLASSES).zip(ports.iter().cycle()).map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The port that the entries give a frame.
    fn port_of(entries: &[Entry], at: u64, slot: u64) -> u64 {
        let is_met = |(name, matched): &(&str, Match)| {
            let Match::Ternary { value, mask } = *matched else { panic!("{matched:?}") };
            (if *name == "port" { at } else { slot }) & mask == value
        };
        let found: Vec<_> = entries.iter().filter(|entry| entry.key.iter().all(is_met)).collect();
        let [entry] = found[..] else { panic!("port {at}, slot {slot}: {found:?}") };
        entry.data[0].1
    }

    /// From ports of any pipeline frames come in again in the same, and from the port by which they
    /// came in again, too: frames of a slot keep to their port.
    #[test]
    fn slots_are_spread_over_the_ports_of_their_own_pipeline() {
        let ports = [vec![68], vec![196, 128, 132], vec![324, 256], vec![452]];
        let all: Vec<_> = (0..).zip(&ports).flat_map(|(number, of)| entries(number, of)).collect();
        for (at, expected) in [
            (0, [68, 68, 68, 68, 68, 68]),
            (63, [68, 68, 68, 68, 68, 68]),
            (140, [196, 128, 132, 196, 128, 132]),
            (191, [196, 128, 132, 196, 128, 132]),
            (196, [196, 128, 132, 196, 128, 132]),
            (128, [196, 128, 132, 196, 128, 132]),
            (257, [324, 256, 324, 256, 324, 256]),
            (447, [452, 452, 452, 452, 452, 452]),
        ] {
            let found = [0, 1, 2, 3, 4, 5].map(|slot| port_of(&all, at, slot));
            assert_eq!(found, expected, "port {at}");
        }
        // Slot 64 begins again.
        assert_eq!([63, 64, 65].map(|slot| port_of(&all, 140, slot)), [196, 196, 128]);
    }
}
