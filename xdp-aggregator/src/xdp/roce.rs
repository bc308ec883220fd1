//! Messages of RoCEv2 in XDP (section 37 of `docs/spec`). A message is served as if its
//! packet had come in a UDP datagram: [`roce_unwrap`] makes a datagram of it, and [`roce_wrap`] a
//! message of the datagram that answers it.
//!
//! The ICRC is made in two steps, because all copies of a RESULT have the same packet:
//! [`roce_seal`] writes what the packet adds to it behind the packet, and [`roce_wrap`] adds the
//! headers.

use core::arch::asm;

use aya_ebpf::bindings::xdp_md;
use switchml_protocol::node::frame::{Ipv4, Ipv6, Network};
use switchml_protocol::node::ingress::Hook;
use switchml_protocol::node::roce::{self, ICRC_LEN, Transport};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::wire::icrc::{self, Folding};
use switchml_protocol::{LANES_PER_BLOCK, MAX_BLOCKS};
use zerocopy::IntoBytes;

use super::frame::Frame;

/// Whether messages are served. The daemon sets it when it loads the programs: verifiers leave out
/// what a constant excludes.
#[unsafe(no_mangle)]
static ROCE: u32 = 0;

/// Lanes in the 40 bytes that end a packet.
const LAST_LANES: usize = 10;

/// Whether messages are served. The programs that log each packet have no stack left for it on
/// Linux 6.1, which also counts calls that are never made.
#[inline(always)]
pub fn is_served() -> bool {
    // SAFETY: it is a static. The read is volatile, because the loader changes it.
    !cfg!(feature = "trace") && unsafe { (&raw const ROCE).read_volatile() != 0 }
}

/// Whether a frame came as a message.
#[inline(always)]
pub fn is_message(frame: &Frame) -> bool {
    is_served() && frame.roce != [0; 2]
}

/// Makes a datagram of a frame that is a message for the aggregator. The error says why it is none,
/// though it came to the aggregator's queue pair.
#[inline(always)]
pub fn unwrap<N: Network>(frame: &mut Frame) -> Result<(), Outcome> {
    let Some(envelope) = frame.envelope::<N>() else { return Ok(()) };
    if !is_served() || envelope.destination_port.get() != roce::PORT {
        return Ok(());
    }
    // SAFETY: the context is that of the running program.
    let word = unsafe { roce_unwrap(frame.context()) };
    match Outcome::from_number(word as u8) {
        Some(Outcome::NotOurs) if word < 1 << 8 => Ok(()),
        Some(outcome) if word < 1 << 8 => Err(outcome),
        _ => {
            frame.roce = (word as u16).to_be_bytes();
            Ok(())
        }
    }
}

/// Cuts an aligned frame behind `lanes` words of payload and the ICRC, and seals it.
#[inline(always)]
pub fn seal(frame: &Frame, lanes: u16) -> Option<()> {
    const ICRC_LANES: u16 = ICRC_LEN as u16 / 4;
    frame.resize(lanes + ICRC_LANES).ok()?;
    // SAFETY: the context is that of the running program.
    (unsafe { roce_seal(frame.context(), lanes.into()) } == 0).then_some(())
}

/// Makes a message of a sealed datagram, for a queue pair whose binding has this `roce`.
#[inline(always)]
pub fn wrap(frame: &Frame, roce: [u8; 2]) -> Option<()> {
    let roce = u16::from_be_bytes(roce);
    // SAFETY: the context is that of the running program.
    (unsafe { roce_wrap(frame.context(), roce.into()) } == 0).then_some(())
}

// The functions below are global functions of BPF: the verifier checks each once, on its own, and
// datagrams do not come by them.

/// Makes a datagram of a frame with a message for the aggregator. Returns
/// [`Binding::roce`](switchml_protocol::bpf_types::job::Binding::roce) of its sender, in network
/// byte order. Leaves any other frame as it is, and returns an [`Outcome`], which is below 2^8.
///
/// # Safety
///
/// As for [`Frame::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn roce_unwrap(ctx: *mut xdp_md) -> u64 {
    // SAFETY: the caller vouches for the context.
    let frame = unsafe { Frame::new(ctx) };
    let opened = if frame.is::<Ipv6>() { open::<Ipv6>(&frame) } else { open::<Ipv4>(&frame) };
    match opened {
        Ok(roce) => u16::from_be_bytes(roce).into(),
        Err(outcome) => outcome as u64,
    }
}

#[inline(always)]
fn open<N: Network>(frame: &Frame) -> Result<[u8; 2], Outcome> {
    let envelope = frame.envelope::<N>().ok_or(Outcome::NotOurs)?;
    if !roce::is_for_aggregator(frame, envelope) {
        return Err(Outcome::NotOurs);
    }
    let headers = frame.message::<N>().ok_or(Outcome::Truncated)?;
    headers.check(frame.frame_len())?;
    let roce = headers.become_datagram();
    frame.move_start(Transport::LEN as i32).map_err(|_| Outcome::SendFailed)?;
    Ok(roce)
}

/// Writes what the packet of an aligned frame adds to its ICRC behind the packet's `lanes` words of
/// payload. Returns 0 if that is done.
///
/// # Safety
///
/// As for [`Frame::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn roce_seal(ctx: *mut xdp_md, lanes: u32) -> u64 {
    // SAFETY: the caller vouches for the context.
    let frame = unsafe { Frame::new(ctx) };
    let lanes = lanes as usize;
    let sealed = register_of(&frame, lanes).and_then(|register| {
        // SAFETY: the bytes are in the frame, and nothing else refers to them.
        frame.lane(lanes).map(|lane| unsafe { lane.write(register.to_le_bytes()) })
    });
    u64::from(sealed.is_none())
}

/// The CRC's register after the packet, from 0 on.
#[inline(always)]
fn register_of(frame: &Frame, lanes: usize) -> Option<u32> {
    let header = frame.header()?.as_bytes();
    let (words, _) = header.as_chunks::<4>();
    let mut register = 0;
    if lanes < LANES_PER_BLOCK {
        for word in words {
            register = icrc::take(register, *word);
        }
        for lane in 0..LANES_PER_BLOCK {
            if lane >= lanes {
                break;
            }
            // SAFETY: the bytes are in the frame.
            register = icrc::take(register, unsafe { frame.lane(lane)?.read() });
        }
        return Some(register);
    }
    let mut folding = Folding::default();
    let (words, _) = header.as_chunks::<8>();
    for word in words {
        folding.take(*word, made);
    }
    let last = lanes / LANES_PER_BLOCK - 1;
    for index in 0..MAX_BLOCKS {
        if index >= last {
            break;
        }
        // SAFETY: the bytes are in the frame.
        for pair in unsafe { &*frame.block(index)? }.as_bytes().as_chunks::<8>().0 {
            folding.take(*pair, made);
        }
    }
    let (begin, end) = (last * LANES_PER_BLOCK, lanes - LAST_LANES);
    for pair in 0..LANES_PER_BLOCK / 2 {
        let lane = begin + 2 * pair;
        if lane >= end {
            break;
        }
        // SAFETY: as above.
        folding.take(unsafe { frame.pair(lane)?.read() }.to_bytes(), made);
    }
    for index in 0..LAST_LANES / 2 {
        // SAFETY: as above.
        let pair = unsafe { frame.pair(end + 2 * index)?.read() }.to_bytes();
        let word = u64::from_le_bytes(pair) ^ folding.onto(index);
        register = icrc::take(register, (word as u32).to_le_bytes());
        register = icrc::take(register, ((word >> 32) as u32).to_le_bytes());
    }
    Some(register)
}

/// See [`switchml_protocol::lanes::Payload::made`].
#[inline(always)]
fn made(mut word: u64) -> u64 {
    // SAFETY: no instruction.
    unsafe { asm!("", inout("r7") word) };
    word
}

/// Makes a message of a sealed datagram, for a queue pair whose binding has this `roce`, in network
/// byte order. Returns 0 if that is done.
///
/// # Safety
///
/// As for [`Frame::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn roce_wrap(ctx: *mut xdp_md, roce: u32) -> u64 {
    // SAFETY: the caller vouches for the context.
    let frame = unsafe { Frame::new(ctx) };
    let roce = (roce as u16).to_be_bytes();
    let wrapped =
        if frame.is::<Ipv6>() { close::<Ipv6>(&frame, roce) } else { close::<Ipv4>(&frame, roce) };
    u64::from(wrapped.is_none())
}

#[inline(always)]
fn close<N: Network>(frame: &Frame, roce: [u8; 2]) -> Option<()> {
    frame.move_start(-(Transport::LEN as i32)).ok()?;
    let headers = frame.message::<N>()?;
    headers.become_message(roce);
    let lanes = headers.lanes()?;
    let icrc = frame.icrc::<N>(lanes)?;
    // SAFETY: the bytes are in the frame, and nothing else refers to them.
    unsafe {
        let packet = u32::from_le_bytes(icrc.read());
        icrc.write(headers.icrc(packet, lanes));
    }
    Some(())
}
