//! One direction between two ranks: messages over a TCP connection, in order.
//!
//! A message is a header, length and tag as 64-bit little-endian integers, and its bytes.

use crate::abi::{INTERNAL_ERROR, INVALID_USAGE, REMOTE_ERROR};
use crate::log::Failure;
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

const HEADER_BYTES: usize = 16;
/// Most bytes that one call moves, so that NCCL's thread can serve its other links.
const TURN_BYTES: usize = 4 << 20;

/// Memory that belongs to NCCL, which does not touch it while a request is open.
#[derive(Clone, Copy)]
pub struct Buffer {
    pub data: *mut u8,
    pub bytes: usize,
}

// SAFETY: NCCL lends the memory to the request, whichever thread continues it.
unsafe impl Send for Buffer {}

/// The direction of messages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Out,
    In,
}

/// An open message.
struct Message {
    number: u64,
    buffer: Buffer,
    tag: i32,
    header: [u8; HEADER_BYTES],
    /// Bytes moved, header included.
    moved: usize,
    /// Length without the header; for a message that comes in, the buffer's length until the header
    /// has arrived.
    length: usize,
}

/// A connection with its open messages.
pub struct Link {
    stream: TcpStream,
    peer: String,
    direction: Direction,
    open: VecDeque<Message>,
    next: u64,
    /// Lengths of messages that are done, by number, until they are asked for.
    done: HashMap<u64, usize>,
    /// What NCCL has pointers to, by number: until the message is done, or the link is closed.
    requests: HashMap<u64, Box<Request>>,
    failed: Option<i32>,
}

/// NCCL's handle of a message.
pub struct Request {
    link: Arc<Mutex<Link>>,
    number: u64,
}

impl Link {
    pub fn new(stream: TcpStream, direction: Direction) -> Self {
        let peer = stream.peer_addr().map_or_else(|_| "a peer".to_owned(), |at| at.to_string());
        let (open, done, requests) = Default::default();
        Self { stream, peer, direction, open, next: 0, done, requests, failed: None }
    }

    /// Opens a message. Nothing moves before [`Request::test`]. The request is there until
    /// [`Request::end`], or until the link is closed, because NCCL asks no more about one that has
    /// failed.
    pub fn post(
        link: &Arc<Mutex<Self>>,
        buffer: Buffer,
        tag: i32,
    ) -> Result<*const Request, Failure> {
        let mut inner = link.lock().unwrap_or_else(PoisonError::into_inner);
        inner.check()?;
        let number = inner.next;
        inner.next += 1;
        let mut header = [0; HEADER_BYTES];
        if inner.direction == Direction::Out {
            header[..8].copy_from_slice(&(buffer.bytes as u64).to_le_bytes());
            header[8..].copy_from_slice(&i64::from(tag).to_le_bytes());
        }
        let length = buffer.bytes;
        inner.open.push_back(Message { number, buffer, tag, header, moved: 0, length });
        let request = Box::new(Request { link: Arc::clone(link), number });
        Ok(&raw const **inner.requests.entry(number).or_insert(request))
    }

    /// A link that failed once is out of step with the stream.
    fn check(&self) -> Result<(), Failure> {
        self.failed.map_or(Ok(()), |code| {
            Err(Failure::new(code, format!("the connection with {} failed before", self.peer)))
        })
    }

    /// Ends the connection, and with it the requests that are not done.
    pub fn close(&mut self) {
        // A connection that the peer ended is closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
        self.open.clear();
        self.requests.clear();
        self.failed.get_or_insert(INTERNAL_ERROR);
    }

    /// Moves bytes as long as that does not block.
    fn go_on(&mut self) -> Result<(), Failure> {
        self.check()?;
        let moved = self.move_messages();
        if let Err(failure) = &moved {
            self.failed = Some(failure.code);
        }
        moved
    }

    fn move_messages(&mut self) -> Result<(), Failure> {
        let mut budget = TURN_BYTES;
        while let Some(message) = self.open.front_mut() {
            while !message.is_done() {
                if budget == 0 {
                    return Ok(());
                }
                match message.move_some(&mut self.stream, self.direction, budget) {
                    Ok(0) => return Err(lost(&self.peer, "it closed the connection")),
                    Ok(bytes) => {
                        let had_header = message.moved >= HEADER_BYTES;
                        message.moved += bytes;
                        budget = budget.saturating_sub(bytes);
                        let has_header = message.moved >= HEADER_BYTES;
                        if self.direction == Direction::In && has_header && !had_header {
                            message.read_header(&self.peer)?;
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(lost(&self.peer, &error.to_string())),
                }
            }
            self.done.insert(message.number, message.length);
            self.open.pop_front();
        }
        Ok(())
    }
}

fn lost(peer: &str, why: &str) -> Failure {
    Failure::new(REMOTE_ERROR, format!("lost the connection with {peer}: {why}"))
}

impl Message {
    fn is_done(&self) -> bool {
        self.moved >= HEADER_BYTES && self.moved - HEADER_BYTES == self.length
    }

    /// One read or write of at most `limit` bytes, of the header or of the payload.
    fn move_some(
        &mut self,
        stream: &mut TcpStream,
        direction: Direction,
        limit: usize,
    ) -> io::Result<usize> {
        if self.moved < HEADER_BYTES {
            let rest = &mut self.header[self.moved..];
            return match direction {
                Direction::Out => stream.write(rest),
                Direction::In => stream.read(rest),
            };
        }
        let at = self.moved - HEADER_BYTES;
        let bytes = (self.length - at).min(limit);
        // SAFETY: NCCL lent `buffer.bytes` bytes there, and `at + bytes <= length <= buffer.bytes`.
        let data = unsafe { self.buffer.data.add(at) };
        match direction {
            // SAFETY: as above; NCCL does not change what it sends.
            Direction::Out => stream.write(unsafe { std::slice::from_raw_parts(data, bytes) }),
            // SAFETY: as above; nobody else accesses it.
            Direction::In => stream.read(unsafe { std::slice::from_raw_parts_mut(data, bytes) }),
        }
    }

    fn read_header(&mut self, peer: &str) -> Result<(), Failure> {
        let (length, tag) = self.header.split_at(8);
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let (length, tag) = (number(length), number(tag).cast_signed());
        if tag != i64::from(self.tag) {
            let ours = self.tag;
            let why = format!("{peer} sent a message with tag {tag}, but {ours} is next here");
            return Err(Failure::new(INTERNAL_ERROR, why));
        }
        match usize::try_from(length) {
            Ok(length) if length <= self.buffer.bytes => self.length = length,
            _ => {
                let room = self.buffer.bytes;
                let why = format!("{peer} sent {length} bytes, but there is room for {room}");
                return Err(Failure::new(INVALID_USAGE, why));
            }
        }
        Ok(())
    }
}

impl Request {
    /// Continues the message, and returns its length once it is done.
    pub fn test(&self) -> Result<Option<usize>, Failure> {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(length) = link.done.remove(&self.number) {
            return Ok(Some(length));
        }
        let moved = link.go_on();
        // A message that is done counts, even if the connection ended after it.
        match link.done.remove(&self.number) {
            Some(length) => Ok(Some(length)),
            None => moved.map(|()| None),
        }
    }

    /// The link, and the message's number there: what [`Self::end`] takes.
    pub fn place(&self) -> (Arc<Mutex<Link>>, u64) {
        (Arc::clone(&self.link), self.number)
    }

    /// Ends a request. Nobody may look at it any more.
    pub fn end((link, number): (Arc<Mutex<Link>>, u64)) {
        link.lock().unwrap_or_else(PoisonError::into_inner).requests.remove(&number);
    }
}
