//! By which ports frames come in again: port 68 of each pipeline, which has no cable, and for
//! packets of several parts also ports of the front panel that the switch puts in loopback.

use crate::entries::{MOST_PARTS, PORTS_OF_PIPELINE, Table};
use crate::switch::{Entry, Match};

/// The recirculation port that each pipeline has of its own.
pub const OWN_PORT: u16 = 68;
/// The pipeline's number and this one's, without that of the channel: as the parser knows it.
pub const OWN_PORTS: u16 = 0x7C;

/// Slots are spread over the ports by their number modulo this.
pub const SLOT_CLASSES: u16 = 64;
/// Pipelines of a chip at most.
pub const PIPELINES: u16 = 4;

/// The ports by which frames of a slot come in again; only on Tofino, and only in a program for
/// packets of several parts.
pub const RECIRCULATION: Table = Table {
    name: "recirculation",
    key: &["port", "part", "slot"],
    actions: &[("recirculate_by", &["again", "later", "earlier"])],
};

/// What the parser of such a program is told of a port.
pub const PORT_METADATA: Table =
    Table { name: "$PORT_METADATA", key: &["ingress_port"], actions: &[] };
/// Its only value: 1 at ports in loopback. The parser knows the pipelines' own.
pub const RECIRCULATES: &str = "recirculates";

/// The ports by which frames come in to each part of a packet: those of the pipeline that has the
/// part's sets.
pub type PortsOfParts = [Vec<u16>; MOST_PARTS as usize];

/// The recirculation port that this pipeline has of its own.
pub const fn own_port(pipeline: u16) -> u16 {
    pipeline * PORTS_OF_PIPELINE + OWN_PORT
}

/// The entries that spread the slots of ranks at a pipeline over these ports. All frames of a slot
/// come to a part by the same, because they must not overtake each other (`p4/include/parts.p4`).
pub fn entries(pipeline: u16, ports: &PortsOfParts) -> Vec<Entry> {
    let of_pipeline = Match::Ternary {
        value: (pipeline * PORTS_OF_PIPELINE).into(),
        mask: (0x1FF & !(PORTS_OF_PIPELINE - 1)).into(),
    };
    let entry = |part: usize, class: u16| {
        let to = |part: usize| {
            let of_part = &ports[part];
            u64::from(of_part[usize::from(class) % of_part.len()])
        };
        // Nothing comes before the first part, or after the last.
        let (earlier, later) = (part.saturating_sub(1), (part + 1).min(ports.len() - 1));
        Entry {
            table: RECIRCULATION.name,
            key: vec![
                ("port", of_pipeline),
                ("part", Match::Ternary { value: part as u64, mask: u64::from(MOST_PARTS) - 1 }),
                ("slot", Match::Ternary { value: class.into(), mask: (SLOT_CLASSES - 1).into() }),
            ],
            priority: 0,
            action: "recirculate_by",
            data: vec![("again", to(part)), ("later", to(later)), ("earlier", to(earlier))],
        }
    };
    let classes = |part| (0..SLOT_CLASSES).map(move |class| entry(part, class));
    (0..ports.len()).flat_map(classes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whom the entries send a frame to: `again`, `later`, `earlier`.
    fn ports_of(entries: &[Entry], rank_at: u64, part: u64, slot: u64) -> [u64; 3] {
        let is_met = |(name, matched): &(&str, Match)| {
            let Match::Ternary { value, mask } = *matched else { panic!("{matched:?}") };
            let given = match *name {
                "port" => rank_at,
                "part" => part,
                _ => slot,
            };
            given & mask == value
        };
        let found: Vec<_> = entries.iter().filter(|entry| entry.key.iter().all(is_met)).collect();
        let [entry] = found[..] else { panic!("port {rank_at}, slot {slot}: {found:?}") };
        assert_eq!(
            entry.data.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            ["again", "later", "earlier"]
        );
        [entry.data[0].1, entry.data[1].1, entry.data[2].1]
    }

    #[test]
    fn slots_are_spread_over_the_ports_of_their_own_pipeline() {
        let ports = [vec![68], vec![196, 128, 132], vec![324, 256], vec![452]];
        let in_one = |of: &Vec<u16>| [(); 4].map(|()| of.clone());
        let all = (0..).zip(&ports).flat_map(|(number, of)| entries(number, &in_one(of)));
        let all: Vec<_> = all.collect();
        for (rank_at, expected) in [
            (0, [68, 68, 68, 68, 68, 68]),
            (63, [68, 68, 68, 68, 68, 68]),
            (128, [196, 128, 132, 196, 128, 132]),
            (191, [196, 128, 132, 196, 128, 132]),
            (257, [324, 256, 324, 256, 324, 256]),
            (447, [452, 452, 452, 452, 452, 452]),
        ] {
            for part in 0..4 {
                let found = [0, 1, 2, 3, 4, 5].map(|slot| ports_of(&all, rank_at, part, slot));
                assert_eq!(found, expected.map(|port| [port; 3]), "port {rank_at}, part {part}");
            }
        }
        // Slot 64 begins again.
        let of_slots = [63, 64, 65].map(|slot| ports_of(&all, 140, 0, slot)[0]);
        assert_eq!(of_slots, [196, 196, 128]);
    }

    /// The first part in pipeline 0, the second in 1, the others in 3.
    #[test]
    fn parts_of_other_pipelines_are_reached_by_their_ports() {
        let all = entries(0, &[vec![68], vec![128, 132], vec![452, 384, 388], vec![452, 384, 388]]);
        let of_slot = |slot| [0, 1, 2, 3].map(|part| ports_of(&all, 5, part, slot));
        assert_eq!(of_slot(0)[..2], [[68, 128, 68], [128, 452, 68]]);
        assert_eq!(of_slot(0)[2..], [[452, 452, 128], [452, 452, 452]]);
        assert_eq!(of_slot(1)[..2], [[68, 132, 68], [132, 384, 68]]);
        assert_eq!(of_slot(1)[2..], [[384, 384, 132], [384, 384, 384]]);
        // 131 = 3 modulo 64: the second of two ports, and the first of three.
        assert_eq!(of_slot(131)[..2], [[68, 132, 68], [132, 452, 68]]);
    }
}
