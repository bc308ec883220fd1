//! What the bytes of a frame are called: a difference is told by the field that it is in.

/// Offsets where fields begin, in a frame with a packet of the protocol. A field reaches to the
/// next.
const FIELDS: &[(usize, &str)] = &[
    (0, "Ethernet destination"),
    (6, "Ethernet source"),
    (12, "EtherType"),
    (14, "IP version"),
    (15, "IP type of service"),
    (16, "IP length"),
    (18, "IP identification"),
    (20, "IP fragment"),
    (22, "IP time to live"),
    (23, "IP protocol"),
    (24, "IP checksum"),
    (26, "IP source"),
    (30, "IP destination"),
    (34, "UDP source"),
    (36, "UDP destination"),
    (38, "UDP length"),
    (40, "UDP checksum"),
    (42, "version"),
    (43, "kind"),
    (44, "job"),
    (46, "epoch"),
    (50, "rank"),
    (52, "slot"),
    (54, "round"),
    (58, "op"),
    (59, "flags"),
    (60, "lanes"),
    (62, "fingerprint"),
    (66, "check"),
    (70, "aux"),
    (LANES, "lane 0"),
];
const LANES: usize = 74;

/// Which field differs first, and how. `None` if the frames are equal.
pub fn difference(expected: &[u8], found: &[u8]) -> Option<String> {
    let at = (0..expected.len().max(found.len())).find(|at| expected.get(*at) != found.get(*at))?;
    if expected.len() != found.len() && at == expected.len().min(found.len()) {
        return Some(format!("length {} instead of {} bytes", found.len(), expected.len()));
    }
    let (name, begin, end) = field(at);
    let hex = |frame: &[u8]| -> String {
        frame.iter().take(end).skip(begin).map(|byte| format!("{byte:02x}")).collect()
    };
    Some(format!("{name} is {}, not {}", hex(found), hex(expected)))
}

/// Name and bounds of the field that a byte is in.
fn field(at: usize) -> (String, usize, usize) {
    if at >= LANES {
        let begin = at - (at - LANES) % 4;
        return (format!("lane {}", (at - LANES) / 4), begin, begin + 4);
    }
    let next = FIELDS.partition_point(|(begin, _)| *begin <= at);
    let (begin, name) = FIELDS[next - 1];
    (name.to_owned(), begin, FIELDS[next].0)
}
