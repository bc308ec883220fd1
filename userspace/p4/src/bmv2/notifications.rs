//! Notifications of `simple_switch`: digests of its P4 program, over nanomsg's publish/subscribe
//! protocol on TCP.
//!
//! A subscriber needs little of that protocol: eight bytes of greeting each way, then messages,
//! each after its length. So no library is used; the existing ones wrap a C library.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Greetings: the protocol's name and version, and the sender's role.
const SUBSCRIBER: [u8; 8] = [0, b'S', b'P', 0, 0, 0x21, 0, 0];
const PUBLISHER: [u8; 8] = [0, b'S', b'P', 0, 0, 0x20, 0, 0];
const GREETING_PATIENCE: Duration = Duration::from_secs(10);
/// Longest message that makes sense.
const MAX_MESSAGE: u64 = 1 << 20;

/// Bytes in front of a digest's samples: topic, device (8), context (4), list (4), buffer (8),
/// number of samples (4), in the host's order.
const HEADER_LEN: usize = 32;
const DIGEST: &[u8; 4] = b"LEA|";

/// Samples that a P4 program passed to `digest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    /// The digest's list of fields.
    pub list: i32,
    /// The buffer to acknowledge.
    pub buffer: i64,
    /// The samples, each with its fields one after the other, big-endian, each in whole bytes.
    pub samples: Vec<Vec<u8>>,
}

/// Subscribes to the publisher at an address, and returns the connection, from which [`read`]
/// reads.
pub fn subscribe(address: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, GREETING_PATIENCE)?;
    stream.set_read_timeout(Some(GREETING_PATIENCE))?;
    stream.write_all(&SUBSCRIBER)?;
    let mut greeting = [0; PUBLISHER.len()];
    stream.read_exact(&mut greeting)?;
    if greeting != PUBLISHER {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "what answers is not a nanomsg publisher",
        ));
    }
    // The next message only comes when a rank says HELLO.
    stream.set_read_timeout(None)?;
    Ok(stream)
}

/// Reads a message. `None` if it is not a digest.
pub fn read(stream: &mut impl Read) -> io::Result<Option<Digest>> {
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let length = u64::from_be_bytes(length);
    if length > MAX_MESSAGE {
        let what = format!("a notification of {length} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let mut message = vec![0; length as usize];
    stream.read_exact(&mut message)?;
    Ok(parse(&message))
}

fn parse(message: &[u8]) -> Option<Digest> {
    let (header, samples) = message.split_at_checked(HEADER_LEN)?;
    if !header.starts_with(DIGEST) {
        return None;
    }
    let list = i32::from_ne_bytes(header[16..20].try_into().ok()?);
    let buffer = i64::from_ne_bytes(header[20..28].try_into().ok()?);
    let count = u32::from_ne_bytes(header[28..32].try_into().ok()?) as usize;
    let size = samples.len().checked_div(count)?;
    let samples = samples.chunks(size.max(1)).map(<[u8]>::to_vec).collect();
    Some(Digest { list, buffer, samples })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A digest as `simple_switch` publishes it.
    fn message(topic: &[u8; 4], count: u32, samples: &[u8]) -> Vec<u8> {
        let mut message = topic.to_vec();
        message.extend(0u64.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        message.extend(1i32.to_ne_bytes());
        message.extend(7i64.to_ne_bytes());
        message.extend(count.to_ne_bytes());
        message.extend(samples);
        let mut framed = (message.len() as u64).to_be_bytes().to_vec();
        framed.extend(message);
        framed
    }

    #[test]
    fn digests_are_taken_apart() {
        let read_one = |bytes: Vec<u8>| read(&mut bytes.as_slice()).unwrap();
        let expected = Digest { list: 1, buffer: 7, samples: vec![vec![1, 2], vec![3, 4]] };
        assert_eq!(read_one(message(b"LEA|", 2, &[1, 2, 3, 4])), Some(expected));
        assert_eq!(
            read_one(message(b"PRT|", 2, &[1, 2, 3, 4])),
            None,
            "something happened to a port"
        );
        assert_eq!(read_one(message(b"LEA|", 0, &[])), None);
        assert!(read(&mut [0xFF; 100].as_slice()).is_err(), "too long to be true");
    }
}
