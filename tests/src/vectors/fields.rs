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

/// Fields of a message of RoCEv2, from behind the UDP header on.
const MESSAGE: &[(usize, &str)] = &[
    (0, "opcode"),
    (1, "version and padding"),
    (2, "partition"),
    (4, "receiver's queue pair"),
    (8, "packet number"),
    (12, "Q_Key"),
    (16, "sender's queue pair"),
];
/// UDP port of RoCEv2, and the bytes around the packet in a message.
const ROCE: [u8; 2] = 4791u16.to_be_bytes();
const TRANSPORT_LEN: usize = 20;
const ICRC_LEN: usize = 4;

/// Whether a frame over IPv4 or IPv6 is one of RoCEv2.
fn is_message(frame: &[u8]) -> bool {
    let udp = headers_len(frame) - 8;
    frame.get(udp + 2..udp + 4) == Some(&ROCE)
}

/// The packet in a frame without a tag: in its UDP datagram, or in a message of RoCEv2.
pub fn packet_in(frame: &[u8]) -> &[u8] {
    let begin = headers_len(frame);
    if is_message(frame) {
        let end = frame.len().saturating_sub(ICRC_LEN);
        frame.get(begin + TRANSPORT_LEN..end).unwrap_or_default()
    } else {
        frame.get(begin..).unwrap_or_default()
    }
}

/// Bytes before the packet in a frame with a datagram and without a tag.
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
    let headers = headers_len(frame);
    let transport: &[_] = if is_message(frame) { MESSAGE } else { &[] };
    let packet = headers + if transport.is_empty() { 0 } else { TRANSPORT_LEN };
    let lanes = packet + 32;
    if !transport.is_empty() && at + ICRC_LEN >= frame.len() {
        return ("ICRC".to_owned(), frame.len() - ICRC_LEN, frame.len());
    }
    if at >= lanes {
        let begin = at - (at - lanes) % 4;
        return (format!("lane {}", (at - lanes) / 4), begin, begin + 4);
    }
    let of_ip = if headers == headers_len(&[]) { IPV4 } else { IPV6 };
    let behind = |fields: &'static [(usize, &'static str)], len: usize| {
        fields.iter().map(move |(begin, name)| (len + begin, *name))
    };
    let behind = behind(transport, headers).chain(behind(PACKET, packet));
    let fields: Vec<_> = ETHERNET.iter().chain(of_ip).copied().chain(behind).collect();
    let next = fields.partition_point(|(begin, _)| *begin <= at);
    let (begin, name) = fields[next - 1];
    (name.to_owned(), begin, fields[next].0)
}
