//! Access to the frame's bytes, behind the bounds checks that the verifier asks for.

use core::arch::asm;
use core::mem::offset_of;

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::{bpf_xdp_adjust_head, bpf_xdp_adjust_tail};
use switchml_protocol::bpf_types::maps::Endpoint;
use switchml_protocol::lanes::Block;
use switchml_protocol::node::frame::{ETHERNET_LEN, Envelope, Ipv4, Network, TAG_LEN, Tag, Tagged};
use switchml_protocol::node::ingress::Hook;
use switchml_protocol::node::roce::{Headers, ICRC_LEN};
use switchml_protocol::wire::header::{self, HEADER_LEN, Header};
use switchml_protocol::{MAX_LANES, U64};

use crate::bounds::at_most;
use crate::payload::Pointer;
use crate::tables;

/// Where a packet begins in a frame that [`Frame::align`] has seen.
const PACKET: usize = Envelope::<Ipv4>::LEN;
const HEADERS_LEN: usize = PACKET + HEADER_LEN;
const BLOCK_LEN: usize = size_of::<Block>();
/// Lanes and tag of the longest packet, in words.
const MAX_WORDS: usize = MAX_LANES + header::TAG_LEN / 4;

/// The frame that the program runs for, without its VLAN tag.
///
/// While its packet is served, [`Frame::align`] moves the frame's beginning so that the packet is
/// at the same offset as over IPv4. So the code for packets exists once.
pub struct Frame {
    ctx: *mut xdp_md,
    tag: Tag,
    /// [`Binding::roce`](switchml_protocol::bpf_types::job::Binding::roce) of who sent it.
    pub roce: [u8; 2],
}

impl Hook for Frame {
    #[inline(always)]
    fn frame_len(&self) -> usize {
        self.end() - self.start()
    }

    #[inline(always)]
    fn ifindex(&self) -> u32 {
        // SAFETY: the context outlives the program's run.
        unsafe { (*self.ctx).ingress_ifindex }
    }

    #[inline(always)]
    fn tag(&self) -> Tag {
        self.tag
    }

    #[inline(always)]
    fn word(&self, offset: usize) -> Option<[u8; 4]> {
        let address = self.bytes(offset, 4)? as *const [u8; 4];
        // SAFETY: the bytes are in the frame, and an array of bytes may be at any address.
        Some(unsafe { address.read() })
    }

    #[inline(always)]
    fn is_local(&self, endpoint: Endpoint) -> bool {
        tables::is_local(endpoint)
    }
}

impl Frame {
    /// The frame of this context.
    ///
    /// # Safety
    ///
    /// The context is the one that the kernel called the program with. References that the Frame's
    /// methods returned are not used after [`Self::resize`], [`Self::take_tag`] or
    /// [`Self::put_tag`], nor together with others to the same bytes.
    #[inline(always)]
    pub const unsafe fn new(ctx: *mut xdp_md) -> Self {
        Self { ctx, tag: Tag::NONE, roce: [0; 2] }
    }

    /// Takes off the frame's tag of 802.1Q, if it has one: XDP comes before the kernel does that.
    #[inline(always)]
    pub fn take_tag(&mut self) -> Result<(), i64> {
        // The length includes the EtherType: the kernel keeps no frame shorter than an Ethernet
        // header.
        let Some(start) = self.first(ETHERNET_LEN + TAG_LEN) else { return Ok(()) };
        // SAFETY: the bytes are in the frame; valid for any bytes, at any address.
        let tagged = unsafe { (start as *const Tagged).read() };
        self.tag = tagged.dot1q();
        if self.tag == Tag::NONE {
            return Ok(());
        }
        self.move_start(TAG_LEN as i32)?;
        let macs = self.first(tagged.macs.len()).ok_or(-1)? as *mut [u8; 12];
        // SAFETY: the bytes are in the frame.
        unsafe { macs.write(tagged.macs) };
        Ok(())
    }

    /// Rule 5.10: puts the tag in again, if there was one.
    #[inline(always)]
    pub fn put_tag(&self) -> Result<(), i64> {
        if self.tag == Tag::NONE {
            return Ok(());
        }
        let macs = self.first(12).ok_or(-1)? as *const [u8; 12];
        // SAFETY: the bytes are in the frame.
        let tagged = Tagged::new(unsafe { macs.read() }, self.tag);
        self.move_start(-(TAG_LEN as i32))?;
        let start = self.first(size_of::<Tagged>()).ok_or(-1)? as *mut Tagged;
        // SAFETY: as above.
        unsafe { start.write(tagged) };
        Ok(())
    }

    /// Address of the frame's first `len` bytes.
    ///
    /// The context is hidden from the compiler, which would otherwise share one reading of the
    /// start with the code for frames without a tag. It cuts such a reading to 32 bits, which the
    /// verifier no longer takes for a pointer.
    #[inline(always)]
    fn first(&self, len: usize) -> Option<usize> {
        let mut ctx = self.ctx;
        // The register is named for the same reason as in `payload::made`.
        // SAFETY: no instruction.
        unsafe { asm!("", inout("r7") ctx) };
        // SAFETY: it is the same context.
        unsafe { Self::new(ctx) }.bytes(0, len)
    }

    /// Moves the frame's beginning by so many bytes, which have any content in front of it.
    #[inline(always)]
    pub fn move_start(&self, by: i32) -> Result<(), i64> {
        // SAFETY: the context is that of the running program.
        match unsafe { bpf_xdp_adjust_head(self.ctx, by) } {
            0 => Ok(()),
            error => Err(error),
        }
    }

    /// The context.
    #[inline(always)]
    pub const fn context(&self) -> *mut xdp_md {
        self.ctx
    }

    /// Whether the frame's EtherType is that of this kind of IP.
    #[inline(always)]
    pub fn is<N: Network>(&self) -> bool {
        let Some(start) = self.first(ETHERNET_LEN) else { return false };
        // SAFETY: the bytes are in the frame, and may be at any address.
        let ethertype = unsafe { ((start + ETHERNET_LEN - 2) as *const [u8; 2]).read() };
        ethertype == N::ETHERTYPE.to_be_bytes()
    }

    /// Ethernet, IP and UDP headers, if the frame is that long.
    #[inline(always)]
    pub fn envelope<N: Network>(&self) -> Option<&'static mut Envelope<N>> {
        let address = self.bytes(0, Envelope::<N>::LEN)? as *mut Envelope<N>;
        // SAFETY: the bytes are in the frame; an Envelope is valid for any bytes, at any address.
        Some(unsafe { &mut *address })
    }

    /// The headers in front of a message's packet, if the frame is that long.
    #[inline(always)]
    pub fn message<N: Network>(&self) -> Option<&'static mut Headers<N>> {
        let address = self.bytes(0, Headers::<N>::LEN)? as *mut Headers<N>;
        // SAFETY: as in `envelope`.
        Some(unsafe { &mut *address })
    }

    /// Envelope and protocol header, if the frame is that long.
    #[inline(always)]
    pub fn headers<N: Network>(&self) -> Option<(&'static mut Envelope<N>, &'static mut Header)> {
        let address = self.bytes(0, Envelope::<N>::LEN + HEADER_LEN)?;
        // SAFETY: as in `envelope`; the two do not overlap.
        Some(unsafe {
            (
                &mut *(address as *mut Envelope<N>),
                &mut *((address + Envelope::<N>::LEN) as *mut Header),
            )
        })
    }

    /// Moves the frame's beginning so that its packet is at the same offset as over IPv4; the bytes
    /// before the packet stay.
    #[inline(always)]
    pub fn align<N: Network>(&self) -> Result<(), i64> {
        self.move_unless_aligned::<N>(1)
    }

    /// Has it begin with its envelope again.
    #[inline(always)]
    pub fn align_back<N: Network>(&self) -> Result<(), i64> {
        self.move_unless_aligned::<N>(-1)
    }

    #[inline(always)]
    fn move_unless_aligned<N: Network>(&self, sign: i32) -> Result<(), i64> {
        match (Envelope::<N>::LEN - PACKET) as i32 {
            0 => Ok(()),
            by => self.move_start(sign * by),
        }
    }

    /// Protocol header of an aligned frame, if that is so long.
    #[inline(always)]
    pub fn header(&self) -> Option<&'static mut Header> {
        let address = self.bytes(PACKET, HEADER_LEN)? as *mut Header;
        // SAFETY: as in `envelope`.
        Some(unsafe { &mut *address })
    }

    /// Block `index` of the payload of an aligned frame, if that is so long.
    #[inline(always)]
    pub fn block(&self, index: usize) -> Option<*mut Block> {
        self.bytes(HEADERS_LEN + index * BLOCK_LEN, BLOCK_LEN).map(|address| address as *mut Block)
    }

    /// The two lanes of an aligned frame's payload from `lane` on, if it is that long.
    #[inline(always)]
    pub fn pair(&self, lane: usize) -> Option<*mut U64> {
        self.at_lane(HEADERS_LEN, lane, size_of::<U64>()).map(|address| address as *mut U64)
    }

    /// Lane `lane` of an aligned frame's payload, or what is behind its last one, if it is that
    /// long.
    #[inline(always)]
    pub fn lane(&self, lane: usize) -> Option<*mut [u8; 4]> {
        self.at_lane(HEADERS_LEN, lane, 4).map(|address| address as *mut [u8; 4])
    }

    /// The ICRC behind so many lanes of a message, if it is that long.
    #[inline(always)]
    pub fn icrc<N: Network>(&self, lanes: usize) -> Option<*mut [u8; ICRC_LEN]> {
        let begin = Headers::<N>::LEN + HEADER_LEN;
        self.at_lane(begin, lanes, ICRC_LEN).map(|address| address as *mut [u8; ICRC_LEN])
    }

    /// Address of `len` bytes of the frame behind `begin` bytes and so many lanes.
    #[inline(always)]
    fn at_lane(&self, begin: usize, lanes: usize, len: usize) -> Option<usize> {
        let mut address = self.start() + begin + 4 * at_most(MAX_WORDS, lanes)?;
        // The verifier has to see one register checked and used. The register is named for the same
        // reason as in `payload::made`.
        // SAFETY: no instruction.
        unsafe { asm!("", inout("r7") address) };
        (address + len <= self.end()).then_some(address)
    }

    /// Cuts so many bytes off the frame's end.
    #[inline(always)]
    pub fn cut(&self, bytes: usize) -> Option<()> {
        // SAFETY: the context is that of the running program.
        (unsafe { bpf_xdp_adjust_tail(self.ctx, -(bytes as i32)) } == 0).then_some(())
    }

    /// Cuts an aligned frame down to its headers and `lanes` words of payload.
    ///
    /// # Errors
    ///
    /// The kernel's error number.
    #[inline(always)]
    pub fn resize(&self, lanes: u16) -> Result<(), i64> {
        let wanted = HEADERS_LEN + 4 * usize::from(lanes);
        let delta = wanted as i32 - self.frame_len() as i32;
        if delta == 0 {
            return Ok(());
        }
        // SAFETY: the context is that of the running program.
        match unsafe { bpf_xdp_adjust_tail(self.ctx, delta) } {
            0 => Ok(()),
            error => Err(error),
        }
    }

    /// Address of `len` bytes of the frame from `offset` on.
    #[inline(always)]
    fn bytes(&self, offset: usize, len: usize) -> Option<usize> {
        let address = self.start() + offset;
        (address + len <= self.end()).then_some(address)
    }

    #[inline(always)]
    fn start(&self) -> usize {
        // SAFETY: the context outlives the program's run.
        unsafe { (*self.ctx).data as usize }
    }

    /// Read again for each check, so that the compiler does not merge the checks inside a loop into
    /// one before it, which the verifier would not understand. The verifier would not understand
    /// the field's address either, which the compiler would compute for several readings.
    #[inline(always)]
    fn end(&self) -> usize {
        let end: usize;
        // SAFETY: as in `start`; it is the field's offset.
        unsafe {
            asm!("{end} = *(u32 *)({ctx} + {at})", end = out(reg) end, ctx = in(reg) self.ctx,
                at = const offset_of!(xdp_md, data_end), options(readonly, nostack));
        }
        end
    }
}

impl Pointer for *mut xdp_md {
    #[inline(always)]
    fn is_null(self) -> bool {
        false
    }

    /// Verifiers forget what they learn about a number in a function that is checked on its own.
    const FETCHES: bool = true;

    #[inline(always)]
    unsafe fn block(self, index: usize) -> Option<*mut Block> {
        // SAFETY: the caller vouches for the context.
        unsafe { Frame::new(self) }.block(index)
    }

    #[inline(always)]
    unsafe fn pair(self, lane: usize) -> Option<*mut U64> {
        // SAFETY: as above.
        unsafe { Frame::new(self) }.pair(lane)
    }
}
