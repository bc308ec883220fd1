//! Names of a frame's fields: a difference is reported by the field that it is in.

/// Offsets where fields begin, in a frame over IPv4. A field extends to the next.
const IPV4: &[(usize, &str)] = &[
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
];
/// Offsets where fields begin, in a frame over IPv6.
const IPV6: &[(usize, &str)] = &[
    (14, "IP version, traffic class and flow label"),
    (18, "IP length"),
    (20, "IP next header"),
    (21, "IP hop limit"),
    (22, "IP source"),
    (38, "IP destination"),
    (54, "UDP source"),
    (56, "UDP destination"),
    (58, "UDP length"),
    (60, "UDP checksum"),
];
/// Fields before the IP header.
const ETHERNET: &[(usize, &str)] =
    &[(0, "Ethernet destination"), (6, "Ethernet source"), (12, "EtherType")];
/// Fields behind the UDP header.
const PACKET: &[(usize, &str)] = &[
    (0, "version"),
    (1, "kind"),
    (2, "job"),
    (4, "epoch"),
    (8, "rank"),
    (10, "slot"),
    (12, "round"),
    (16, "op"),
    (17, "flags"),
    (18, "lanes"),
    (20, "fingerprint"),
    (24, "check"),
    (28, "aux"),
    (32, "lane 0"),
];

/// Bytes before the packet in a frame without a tag.
pub fn headers_len(frame: &[u8]) -> usize {
    if frame.get(12..14) == Some(&[0x86, 0xDD]) { 62 } else { 42 }
}

/// The first field that differs, and how. `None` if the frames are equal.
pub fn difference(expected: &[u8], found: &[u8]) -> Option<String> {
    let at = (0..expected.len().max(found.len())).find(|at| expected.get(*at) != found.get(*at))?;
    if expected.len() != found.len() && at == expected.len().min(found.len()) {
        return Some(format!("length {} instead of {} bytes", found.len(), expected.len()));
    }
    let (name, begin, end) = field(expected, at);
    let hex = |frame: &[u8]| -> String {
        frame.iter().take(end).skip(begin).map(|byte| format!("{byte:02x}")).collect()
    };
    Some(format!("{name} is {}, not {}", hex(found), hex(expected)))
}

/// Name and bounds of the field that a byte of that frame is in.
fn field(frame: &[u8], at: usize) -> (String, usize, usize) {
    let packet = headers_len(frame);
    let lanes = packet + 32;
    if at >= lanes {
        let begin = at - (at - lanes) % 4;
        return (format!("lane {}", (at - lanes) / 4), begin, begin + 4);
    }
    let headers = if packet == headers_len(&[]) { IPV4 } else { IPV6 };
    let behind = PACKET.iter().map(|(begin, name)| (packet + begin, *name));
    let fields: Vec<_> = ETHERNET.iter().chain(headers).copied().chain(behind).collect();
    let next = fields.partition_point(|(begin, _)| *begin <= at);
    let (begin, name) = fields[next - 1];
    (name.to_owned(), begin, fields[next].0)
}
