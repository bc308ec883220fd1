//! Access to the frame's bytes, behind the bounds checks that the verifier asks for.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::bpf_xdp_adjust_tail;
use switchml_protocol::frame::{ENVELOPE_LEN, Envelope};
use switchml_protocol::header::{HEADER_LEN, Header};
use switchml_protocol::lanes::Block;
use switchml_protocol::maps::Endpoint;
use switchml_protocol::shell::Hook;

use crate::tables;

const HEADERS_LEN: usize = ENVELOPE_LEN + HEADER_LEN;
const BLOCK_LEN: usize = size_of::<Block>();

/// The frame that the program runs for.
pub struct Frame {
    ctx: *mut xdp_md,
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

    /// XDP comes before the kernel looks for tags.
    #[inline(always)]
    fn has_tag(&self) -> bool {
        false
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
    /// The frame of that context.
    ///
    /// # Safety
    ///
    /// The context is the one that the kernel called the program with. References that the Frame's
    /// methods have handed out are not used after [`Self::resize`], nor beside others to the same
    /// bytes.
    #[inline(always)]
    pub const unsafe fn new(ctx: *mut xdp_md) -> Self {
        Self { ctx }
    }

    /// The context.
    #[inline(always)]
    pub const fn context(&self) -> *mut xdp_md {
        self.ctx
    }

    /// Ethernet, IPv4 and UDP headers, if the frame is that long.
    #[inline(always)]
    pub fn envelope(&self) -> Option<&'static Envelope> {
        let address = self.bytes(0, ENVELOPE_LEN)? as *const Envelope;
        // SAFETY: the bytes are in the frame; an Envelope is valid for any bytes, at any address.
        Some(unsafe { &*address })
    }

    /// Envelope and protocol header, if the frame is that long.
    #[inline(always)]
    pub fn headers(&self) -> Option<(&'static mut Envelope, &'static mut Header)> {
        let address = self.bytes(0, HEADERS_LEN)?;
        // SAFETY: as in `envelope`; the two do not overlap.
        Some(unsafe {
            (&mut *(address as *mut Envelope), &mut *((address + ENVELOPE_LEN) as *mut Header))
        })
    }

    /// Block `index` of the payload, if the frame is that long.
    #[inline(always)]
    pub fn block(&self, index: usize) -> Option<*mut Block> {
        self.bytes(HEADERS_LEN + index * BLOCK_LEN, BLOCK_LEN).map(|address| address as *mut Block)
    }

    /// Cuts the frame down to its headers and `lanes` words of payload.
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

    /// Read again for each check, so that the compiler does not make one check before a loop of
    /// those inside it, which the verifier would not understand.
    #[inline(always)]
    fn end(&self) -> usize {
        // SAFETY: as in `start`.
        unsafe { (&raw const (*self.ctx).data_end).read_volatile() as usize }
    }
}
