//! Opening the data path: finds the largest chunk that passes both ways.

use std::io;
use std::time::{Duration, Instant};

use switchml_protocol::header::{HEADER_LEN, Header, Kind};
use switchml_protocol::{LANES_PER_BLOCK, MAX_LANES, U16, U32, VERSION};
use zerocopy::{FromBytes, IntoBytes};

use crate::engine::Identity;
use crate::error::Error;
use crate::transport::{Transport, ip_packet_len};

/// Waits for an answer at a size that may be too large for the path. Two losses in a row are rare, and cost only a smaller chunk.
const TRIES: [Duration; 4] =
    [Duration::from_millis(20), Duration::from_millis(50), Duration::from_millis(100), Duration::from_millis(200)];
/// Waits at the smallest size: whether the path is open at all.
const PATIENT_TRIES: [Duration; 6] = [
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(600),
    Duration::from_millis(1000),
];

/// What HELLO found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenPath {
    /// Lanes of the largest packet that passes both ways.
    pub lanes: u16,
    /// Round trip of the first HELLO that came back.
    pub rtt: Duration,
}

/// Bytes of a packet of `lanes` lanes, header included.
pub(crate) const fn packet_len(lanes: usize) -> usize {
    HEADER_LEN + 4 * lanes
}

/// Says HELLO to the aggregator with `secret`, at the largest size that the interface and the aggregator (`max_lanes`) take, then at smaller
/// ones until one comes back.
///
/// # Errors
/// [`Error::DataPathClosed`] when not even an empty HELLO comes back, [`Error::PathMtu`] when that does but one of a single block does not.
pub(crate) fn open_path(
    transport: &mut impl Transport,
    identity: &Identity,
    secret: u32,
    max_lanes: u16,
) -> Result<OpenPath, Error> {
    let blocks_of = |lanes: usize| lanes / LANES_PER_BLOCK;
    let of_interface = transport.largest_packet().saturating_sub(HEADER_LEN) / 4;
    let largest = blocks_of(of_interface.min(usize::from(max_lanes)).min(MAX_LANES));
    let mut hello = Hello { transport, identity, secret };
    let found = |blocks: usize, rtt| OpenPath { lanes: (blocks * LANES_PER_BLOCK) as u16, rtt };
    if largest > 0
        && let Some(rtt) = hello.passes(largest, &TRIES)?
    {
        return Ok(found(largest, rtt));
    }
    let Some(rtt) = hello.passes(0, &PATIENT_TRIES)? else {
        return Err(hello.closed());
    };
    // Packets of `passing` blocks pass, those of `failing` do not.
    let (mut passing, mut failing) = (0, largest.max(1));
    while failing - passing > 1 {
        let middle = passing.midpoint(failing);
        match hello.passes(middle, &TRIES)? {
            Some(_) => passing = middle,
            None => failing = middle,
        }
    }
    if passing == 0 {
        return Err(Error::PathMtu {
            aggregator: hello.transport.aggregator(),
            passed: ip_packet_len(packet_len(0)),
            needed: ip_packet_len(packet_len(LANES_PER_BLOCK)),
        });
    }
    Ok(found(passing, rtt))
}

struct Hello<'a, T> {
    transport: &'a mut T,
    identity: &'a Identity,
    secret: u32,
}

impl<T: Transport> Hello<'_, T> {
    /// Round-trip time of a HELLO of so many blocks; `None` when it does not come back.
    fn passes(&mut self, blocks: usize, tries: &[Duration]) -> Result<Option<Duration>, Error> {
        let header = self.header(blocks);
        for patience in tries {
            let begin = Instant::now();
            match self.send(&header) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => return Ok(None),
                Err(error) => return Err(Error::system("cannot send to the aggregator")(error)),
            }
            if self.comes_back(&header, begin + *patience).map_err(Error::system("cannot receive"))? {
                return Ok(Some(begin.elapsed()));
            }
        }
        Ok(None)
    }

    fn send(&mut self, header: &Header) -> io::Result<()> {
        let packet = self.transport.packet(packet_len(header.lanes.get().into()))?;
        let (head, payload) = packet.split_at_mut(HEADER_LEN);
        head.copy_from_slice(header.as_bytes());
        payload.fill(0);
        self.transport.flush()
    }

    fn comes_back(&mut self, header: &Header, deadline: Instant) -> io::Result<bool> {
        loop {
            let mut back = false;
            self.transport.receive(&mut |packet, _| {
                // The same HELLO, but that its flags may tell of congestion.
                back |= Header::ref_from_prefix(packet)
                    .is_ok_and(|(answer, _)| Header { flags: header.flags, ..*answer } == *header);
            })?;
            if back {
                return Ok(true);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.transport.wait(Some(left))?;
        }
    }

    fn header(&self, blocks: usize) -> Header {
        let lanes = blocks * LANES_PER_BLOCK;
        Header {
            version: VERSION,
            kind: Kind::Hello as u8,
            job: U16::new(self.identity.job),
            epoch: U32::new(self.identity.epoch),
            rank: U16::new(self.identity.rank),
            slot: U16::ZERO,
            round: U32::ZERO,
            op: 0,
            flags: 0,
            lanes: U16::new(lanes as u16),
            fingerprint: U32::ZERO,
            check: U32::ZERO,
            aux: U32::new(self.secret),
        }
    }

    fn closed(&self) -> Error {
        let waited: Duration = PATIENT_TRIES.iter().sum();
        Error::DataPathClosed {
            aggregator: self.transport.aggregator(),
            reason: format!("no HELLO came back within {:.1} s", waited.as_secs_f64()),
        }
    }
}

#[cfg(test)]
#[path = "hello_tests.rs"]
mod tests;
