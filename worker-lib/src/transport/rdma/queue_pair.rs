//! A queue pair for unreliable datagrams, with memory for what it sends and receives.
#![allow(unsafe_code)]

use std::alloc::{self, Layout};
use std::ffi::{CStr, c_int};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::slice;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use switchml_protocol::node::roce::KEY;

use super::device::{Entry, as_gid};
use super::unusable::Unusable;
use super::verbs::{
    self, AddressAttributes, Capacity, Channel, Completion, Context, Gid, Opaque, Pair,
    PairAttributes, PairState, Piece, PortAttributes, Receive, Region, Send, Verbs,
};

/// Bytes in front of a received packet, with its IP header.
pub const GRH_LEN: usize = 40;
/// Sends and receives that are posted at once, at most.
pub const BATCH: usize = 32;
const PAGE: usize = 4096;

/// Where packets go: an address, and the number of its queue pair.
#[derive(Clone, Copy)]
pub struct Peer {
    pub address: IpAddr,
    pub pair: u32,
}

/// See the [module's documentation](self). Buffers are numbered from 0: first those for packets to
/// send, then those for packets that come.
pub struct QueuePair {
    verbs: &'static Verbs,
    context: *mut Context,
    domain: Opaque,
    channel: *mut Channel,
    sent: Opaque,
    received: Opaque,
    region: *mut Region,
    pair: *mut Pair,
    address: Opaque,
    peer: Peer,
    memory: Memory,
    mtu: Mtu,
}

/// The most bytes of a packet on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mtu {
    /// As the port is set up.
    pub active: usize,
    /// As the device could be set up.
    pub most: usize,
}

// SAFETY: the library may be used by any thread; nothing here is tied to one.
unsafe impl std::marker::Send for QueuePair {}

impl QueuePair {
    /// Opens one on a device, that talks to this peer, with so many buffers to send and to receive.
    pub fn open(
        entry: &Entry,
        peer: Peer,
        sends: usize,
        receives: usize,
    ) -> Result<Self, Unusable> {
        let verbs = verbs::verbs().map_err(Unusable::NoLibrary)?;
        let mut this = Self {
            verbs,
            context: open_device(verbs, &entry.device)?,
            domain: ptr::null_mut(),
            channel: ptr::null_mut(),
            sent: ptr::null_mut(),
            received: ptr::null_mut(),
            region: ptr::null_mut(),
            pair: ptr::null_mut(),
            address: ptr::null_mut(),
            peer,
            memory: Memory::EMPTY,
            mtu: Mtu { active: 0, most: 0 },
        };
        this.mtu = this.query_mtu(entry.port)?;
        this.memory = Memory::new((sends + receives) * (GRH_LEN + this.mtu.active));
        this.make_queues(sends, receives)?;
        this.connect(entry)?;
        Ok(this)
    }

    /// The most bytes of a packet.
    pub fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// Becomes readable when a packet comes after [`Self::arm`].
    pub fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as this, and has a descriptor.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }

    /// The bytes of a buffer: [`GRH_LEN`], then a packet.
    pub fn buffer(&mut self, number: usize) -> &mut [u8] {
        let size = GRH_LEN + self.mtu.active;
        self.memory.part(number * size, size)
    }

    /// Sends packets of these lengths from buffers; the first and the last have completions with
    /// the id that they come with. Returns how many were taken, fewer if the device has no room.
    pub fn send(&mut self, packets: &[(usize, usize, u64)]) -> io::Result<usize> {
        let mut pieces = [Piece::default(); BATCH];
        let mut requests = [Send::default(); BATCH];
        let count = packets.len().min(BATCH);
        for (i, &(buffer, length, id)) in packets[..count].iter().enumerate() {
            pieces[i] = self.piece(buffer, GRH_LEN, length);
            requests[i].id = id;
            requests[i].flags = if i == 0 || i == count - 1 { verbs::SIGNALED } else { 0 };
            requests[i].address = self.address;
            requests[i].receiver = self.peer.pair;
            requests[i].key = KEY;
        }
        for i in 0..count {
            requests[i].pieces = &raw mut pieces[i];
            requests[i].next =
                if i + 1 < count { &raw mut requests[i + 1] } else { ptr::null_mut() };
        }
        let mut refused = ptr::null_mut();
        // SAFETY: requests and pieces outlive the call, which copies them; the buffers live as long
        // as this, and the caller leaves them alone until they have been sent.
        let error = unsafe {
            ((*self.context).post_send)(self.pair, requests.as_mut_ptr(), &raw mut refused)
        };
        let taken =
            || (0..count).take_while(|i| !ptr::eq(&raw const requests[*i], refused)).count();
        match error {
            0 => Ok(count),
            libc::ENOMEM | libc::EAGAIN => Ok(taken()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Gives buffers to the device for packets that come.
    pub fn post(&mut self, buffers: &[usize]) -> io::Result<()> {
        for buffers in buffers.chunks(BATCH) {
            let mut pieces = [Piece::default(); BATCH];
            let mut requests = [Receive::default(); BATCH];
            for (i, &buffer) in buffers.iter().enumerate() {
                pieces[i] = self.piece(buffer, 0, GRH_LEN + self.mtu.active);
                requests[i].id = buffer as u64;
            }
            for i in 0..buffers.len() {
                requests[i].pieces = &raw mut pieces[i];
                let next =
                    if i + 1 < buffers.len() { &raw mut requests[i + 1] } else { ptr::null_mut() };
                requests[i].next = next;
            }
            let mut refused = ptr::null_mut();
            // SAFETY: as for sends; a buffer is the device's until its completion.
            let error = unsafe {
                ((*self.context).post_recv)(self.pair, requests.as_mut_ptr(), &raw mut refused)
            };
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
        }
        Ok(())
    }

    /// Sends that are over, and how many.
    pub fn sent(&self, completions: &mut [Completion]) -> io::Result<usize> {
        self.poll(self.sent, completions)
    }

    /// Packets that have come, and how many. Each completion's id is its buffer's number.
    pub fn received(&self, completions: &mut [Completion]) -> io::Result<usize> {
        self.poll(self.received, completions)
    }

    /// Whether the peer sent the packet that completed so, by the IP header in front of it.
    pub fn is_from_peer(&mut self, completion: &Completion) -> bool {
        let (peer, header) = (self.peer, self.buffer(completion.id as usize));
        let is_from = match peer.address {
            IpAddr::V4(address) => header[32..36] == address.octets(),
            IpAddr::V6(address) => header[8..24] == address.octets(),
        };
        is_from && completion.sender == peer.pair
    }

    /// Makes [`Self::events`] readable with the next packet that comes.
    pub fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue lives as long as this.
        match unsafe { ((*self.context).req_notify_cq)(self.received, 0) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Takes the events that have come.
    pub fn clear_events(&self) {
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel lives as long as this; its descriptor does not block.
        while unsafe {
            (self.verbs.ibv_get_cq_event)(self.channel, &raw mut queue, &raw mut context)
        } == 0
        {
            // SAFETY: the event was one of this queue.
            unsafe { (self.verbs.ibv_ack_cq_events)(queue, 1) };
        }
    }

    fn poll(&self, queue: Opaque, completions: &mut [Completion]) -> io::Result<usize> {
        let most = completions.len() as c_int;
        // SAFETY: the queue lives as long as this, and there is room for so many.
        let count = unsafe { ((*self.context).poll_cq)(queue, most, completions.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| io::Error::other("a queue overflowed"))?;
        match completions[..count].iter().find(|completion| completion.status != 0) {
            Some(failed) => Err(io::Error::other(self.describe(failed.status))),
            None => Ok(count),
        }
    }

    fn describe(&self, status: u32) -> String {
        // SAFETY: the library returns a text of its own for any number.
        let text = unsafe { CStr::from_ptr((self.verbs.ibv_wc_status_str)(status)) };
        format!("the RDMA device says: {}", text.to_string_lossy())
    }

    fn piece(&self, buffer: usize, offset: usize, length: usize) -> Piece {
        // SAFETY: the region lives as long as this.
        let lkey = unsafe { (*self.region).lkey };
        let address =
            self.memory.start as u64 + (buffer * (GRH_LEN + self.mtu.active) + offset) as u64;
        Piece { address, length: length as u32, lkey }
    }

    fn query_mtu(&self, port: u8) -> io::Result<Mtu> {
        let mut attributes = PortAttributes::default();
        // SAFETY: the device is open, and the attributes are as long as the library's or longer.
        let error = unsafe { (self.verbs.ibv_query_port)(self.context, port, &raw mut attributes) };
        let PortAttributes { active_mtu, max_mtu, .. } = attributes;
        match (error, active_mtu, max_mtu) {
            (0, active @ 1..=5, most @ 1..=5) => {
                Ok(Mtu { active: 128 << active, most: 128 << most })
            }
            (0, ..) => Err(io::Error::other(format!("path MTU number {active_mtu} of {max_mtu}"))),
            (error, ..) => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Registers the memory, and makes the queues.
    fn make_queues(&mut self, sends: usize, receives: usize) -> Result<(), Unusable> {
        let verbs = self.verbs;
        let (start, length) = (self.memory.start.cast(), self.memory.layout.size());
        // SAFETY: all that is passed was just made, is checked, and lives as long as this; the
        // memory stays where it is until the region is gone.
        unsafe {
            self.domain = made("protection domain", (verbs.ibv_alloc_pd)(self.context))?;
            let region = (verbs.ibv_reg_mr)(self.domain, start, length, verbs::LOCAL_WRITE);
            if region.is_null() {
                return Err(Unusable::NoMemory(io::Error::last_os_error().to_string()));
            }
            self.region = region;
            let channel = (verbs.ibv_create_comp_channel)(self.context);
            self.channel = made("completion channel", channel)?;
            let queue = |room: usize, channel| {
                let none = ptr::null_mut();
                let queue = (verbs.ibv_create_cq)(self.context, room as c_int, none, channel, 0);
                made("completion queue", queue)
            };
            self.sent = queue(sends, ptr::null_mut())?;
            self.received = queue(receives, self.channel)?;
            let mut attributes = PairAttributes {
                context: ptr::null_mut(),
                sent: self.sent,
                received: self.received,
                shared_receives: ptr::null_mut(),
                capacity: Capacity {
                    sends: sends as u32,
                    receives: receives as u32,
                    pieces_of_a_send: 1,
                    pieces_of_a_receive: 1,
                    inline_bytes: 0,
                },
                kind: verbs::DATAGRAMS,
                signals_all: 0,
            };
            let pair = (verbs.ibv_create_qp)(self.domain, &raw mut attributes);
            self.pair = made("queue pair", pair)?;
        }
        let flags = fcntl_getfl(self.events()).map_err(io::Error::from)?;
        fcntl_setfl(self.events().as_fd(), flags | OFlags::NONBLOCK).map_err(io::Error::from)?;
        Ok(())
    }

    /// Readies the queue pair, and resolves the peer's address.
    fn connect(&mut self, entry: &Entry) -> Result<(), Unusable> {
        let state = |state| PairState { state, ..PairState::default() };
        let first = PairState { key: KEY, port: entry.port, ..state(verbs::INITIAL) };
        let steps = [
            (first, verbs::STATE | verbs::PARTITION | verbs::PORT | verbs::KEY),
            (state(verbs::READY_TO_RECEIVE), verbs::STATE),
            (state(verbs::READY_TO_SEND), verbs::STATE | verbs::FIRST_NUMBER),
        ];
        for (mut state, mask) in steps {
            // SAFETY: the queue pair lives, and the state outlives the call.
            let error = unsafe { (self.verbs.ibv_modify_qp)(self.pair, &raw mut state, mask) };
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error).into());
            }
        }
        let mut attributes = AddressAttributes {
            receiver: Gid(as_gid(self.peer.address).octets()),
            sender: entry.index,
            hop_limit: 64,
            is_global: 1,
            port: entry.port,
            ..AddressAttributes::default()
        };
        // SAFETY: the domain lives, and the attributes outlive the call.
        let address = unsafe { (self.verbs.ibv_create_ah)(self.domain, &raw mut attributes) };
        self.address = made("way to the aggregator (is there a route?)", address)?;
        Ok(())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let verbs = self.verbs;
        // SAFETY: each was made by this, is used by none that is left, and is given back once.
        unsafe {
            if !self.pair.is_null() {
                (verbs.ibv_destroy_qp)(self.pair);
            }
            if !self.address.is_null() {
                (verbs.ibv_destroy_ah)(self.address);
            }
            for queue in [self.received, self.sent] {
                if !queue.is_null() {
                    (verbs.ibv_destroy_cq)(queue);
                }
            }
            if !self.channel.is_null() {
                (verbs.ibv_destroy_comp_channel)(self.channel);
            }
            if !self.region.is_null() {
                (verbs.ibv_dereg_mr)(self.region);
            }
            if !self.domain.is_null() {
                (verbs.ibv_dealloc_pd)(self.domain);
            }
            (verbs.ibv_close_device)(self.context);
        }
    }
}

fn made<T>(what: &str, pointer: *mut T) -> io::Result<*mut T> {
    if pointer.is_null() {
        let error = io::Error::last_os_error();
        return Err(io::Error::new(
            error.kind(),
            format!("the RDMA device gives no {what}: {error}"),
        ));
    }
    Ok(pointer)
}

fn open_device(verbs: &Verbs, name: &str) -> Result<*mut Context, Unusable> {
    let mut count = 0;
    // SAFETY: the list has so many devices, and is given back after the last use.
    unsafe {
        let list = (verbs.ibv_get_device_list)(&raw mut count);
        if list.is_null() {
            return Err(io::Error::last_os_error().into());
        }
        let devices = slice::from_raw_parts(list, count as usize);
        let is_wanted = |device: &&Opaque| {
            CStr::from_ptr((verbs.ibv_get_device_name)(**device)).to_bytes() == name.as_bytes()
        };
        let context = match devices.iter().find(is_wanted) {
            Some(device) => {
                made("context", (verbs.ibv_open_device)(*device)).map_err(Unusable::from)
            }
            None => Err(Unusable::NoProvider(name.to_owned())),
        };
        (verbs.ibv_free_device_list)(list);
        context
    }
}

/// Zeroed memory of whole pages, which the device writes to.
struct Memory {
    start: *mut u8,
    layout: Layout,
}

impl Memory {
    const EMPTY: Self = Self { start: ptr::null_mut(), layout: Layout::new::<()>() };

    fn new(length: usize) -> Self {
        let layout = Layout::from_size_align(length.next_multiple_of(PAGE), PAGE)
            .unwrap_or_else(|_| alloc::handle_alloc_error(Layout::new::<u8>()));
        // SAFETY: it has a page at least.
        let start = unsafe { alloc::alloc_zeroed(layout) };
        if start.is_null() {
            alloc::handle_alloc_error(layout);
        }
        Self { start, layout }
    }

    /// A part of it.
    fn part(&mut self, start: usize, length: usize) -> &mut [u8] {
        assert!(start + length <= self.layout.size());
        // SAFETY: so many bytes were allocated, and only this owns them. The device writes to those
        // buffers alone that were posted and have not completed, and nobody asks for these.
        unsafe { slice::from_raw_parts_mut(self.start.add(start), length) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.start.is_null() {
            // SAFETY: it was allocated with this layout.
            unsafe { alloc::dealloc(self.start, self.layout) };
        }
    }
}
