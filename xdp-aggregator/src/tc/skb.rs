//! Access to a socket buffer, most of which may be in pages that a program cannot reach by pointer.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::{
    bpf_l4_csum_replace, bpf_skb_change_tail, bpf_skb_load_bytes, bpf_skb_pull_data,
    bpf_skb_store_bytes,
};
use core::arch::asm;
use core::mem::{MaybeUninit, offset_of};
use switchml_protocol::U32;
use switchml_protocol::bpf_types::maps::Endpoint;
use switchml_protocol::node::frame::{Checksum, ETHERNET_LEN, Envelope, Network, Tag};
use switchml_protocol::node::ingress::Hook;

use super::scratch::{LOADED_LEN, MAX_PACKET_LEN, MAX_SEGMENTS, Segment};
use crate::tables;

/// The socket buffer that the program runs for.
pub struct Skb {
    ctx: *mut __sk_buff,
}

impl Hook for Skb {
    #[inline(always)]
    fn frame_len(&self) -> usize {
        self.len() as usize
    }

    #[inline(always)]
    fn ifindex(&self) -> u32 {
        // SAFETY: the context outlives the program's run.
        unsafe { (*self.ctx).ifindex }
    }

    /// The kernel has taken the tag off before tc ingress, and puts it in again on the way out.
    #[inline(always)]
    fn tag(&self) -> Tag {
        // SAFETY: as above.
        if unsafe { (*self.ctx).vlan_present } == 0 {
            return Tag::NONE;
        }
        // SAFETY: as above. In network byte order, and in the host's.
        let (kind, value) = unsafe { ((*self.ctx).vlan_proto, (*self.ctx).vlan_tci) };
        Tag::new(u16::from_be(kind as u16), value as u16)
    }

    #[inline(always)]
    fn word(&self, offset: usize) -> Option<[u8; 4]> {
        let mut word = MaybeUninit::<[u8; 4]>::uninit();
        // SAFETY: the helper writes four bytes, or fails.
        unsafe {
            let result =
                bpf_skb_load_bytes(self.ctx.cast(), offset as u32, word.as_mut_ptr().cast(), 4);
            (result == 0).then(|| word.assume_init())
        }
    }

    #[inline(always)]
    fn is_local(&self, endpoint: Endpoint) -> bool {
        tables::is_local(endpoint)
    }
}

impl Skb {
    /// The socket buffer of this context.
    ///
    /// # Safety
    ///
    /// The context is the one that the kernel called the program with.
    #[inline(always)]
    pub const unsafe fn new(ctx: *mut __sk_buff) -> Self {
        Self { ctx }
    }

    /// The context.
    #[inline(always)]
    pub const fn context(&self) -> *mut __sk_buff {
        self.ctx
    }

    /// Length in bytes from the Ethernet header on.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        // SAFETY: the context outlives the program's run; so below.
        unsafe { (*self.ctx).len }
    }

    /// Bytes of UDP payload in each segment of a superpacket except the last; 0 if the frame is no
    /// superpacket.
    #[inline(always)]
    pub fn segment_len(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.ctx).gso_size }
    }

    /// Whether the frame's EtherType is that of this kind of IP.
    #[inline(always)]
    pub fn is<N: Network>(&self) -> bool {
        let [high, low] = N::ETHERTYPE.to_be_bytes();
        matches!(self.word(ETHERNET_LEN - 2), Some([a, b, ..]) if (a, b) == (high, low))
    }

    /// Copies the bytes from `offset` on.
    #[inline(always)]
    pub fn load<N: Network>(&self, offset: u32, to: &mut Envelope<N>) -> Result<(), i64> {
        // SAFETY: an Envelope is valid for any bytes.
        done(unsafe {
            bpf_skb_load_bytes(
                self.ctx.cast(),
                offset,
                (&raw mut *to).cast(),
                Envelope::<N>::LEN as u32,
            )
        })
    }

    /// Copies `len` bytes from `offset` on, 1 to [`LOADED_LEN`].
    #[inline(always)]
    pub fn load_bytes(&self, offset: u32, to: *mut [u8; LOADED_LEN], len: u32) -> Result<(), i64> {
        let len = in_bounds(len, LOADED_LEN)?;
        // SAFETY: `to` has room for that many.
        done(unsafe { bpf_skb_load_bytes(self.ctx.cast(), offset, to.cast(), len) })
    }

    /// Overwrites the bytes from `offset` on.
    #[inline(always)]
    pub fn store<T>(&self, offset: u32, from: &T) -> Result<(), i64> {
        // SAFETY: the helper reads `from`, all of whose bytes are initialised: the types that this
        // is used with have no padding.
        done(unsafe {
            bpf_skb_store_bytes(
                self.ctx.cast(),
                offset,
                (&raw const *from).cast(),
                size_of::<T>() as u32,
                0,
            )
        })
    }

    /// Overwrites `len` bytes from `offset` on, 1 to [`LOADED_LEN`].
    #[inline(always)]
    pub fn store_bytes(
        &self,
        offset: u32,
        from: *const [u8; LOADED_LEN],
        len: u32,
    ) -> Result<(), i64> {
        let len = in_bounds(len, LOADED_LEN)?;
        // SAFETY: `from` is that long.
        done(unsafe { bpf_skb_store_bytes(self.ctx.cast(), offset, from.cast(), len, 0) })
    }

    /// Overwrites `len` bytes from `offset` on, 1 to [`MAX_PACKET_LEN`], with the bytes of a
    /// packet.
    #[inline(always)]
    pub fn store_segment(&self, offset: u32, from: *const Segment, len: u32) -> Result<(), i64> {
        let len = in_bounds(len, MAX_PACKET_LEN)?;
        // SAFETY: `from` is that long.
        done(unsafe { bpf_skb_store_bytes(self.ctx.cast(), offset, from.cast(), len, 0) })
    }

    /// Overwrites `len` bytes from `offset` on, 1 to 4 for each segment, with the bytes of lanes.
    #[inline(always)]
    pub fn store_lanes(
        &self,
        offset: u32,
        from: *const [U32; MAX_SEGMENTS],
        len: u32,
    ) -> Result<(), i64> {
        let len = in_bounds(len, 4 * MAX_SEGMENTS)?;
        // SAFETY: `from` is that long.
        done(unsafe { bpf_skb_store_bytes(self.ctx.cast(), offset, from.cast(), len, 0) })
    }

    /// Cuts it down to that length; a superpacket is one packet from then on.
    #[inline(always)]
    pub fn cut(&self, len: u32) -> Result<(), i64> {
        // SAFETY: the context is that of the running program; no pointer into the packet is held.
        done(unsafe { bpf_skb_change_tail(self.ctx, len, 0) })
    }

    /// Makes the buffer one contiguous piece that is not shared; does nothing if it is.
    #[inline(always)]
    pub fn make_writable(&self) -> Result<(), i64> {
        // SAFETY: the context is that of the running program.
        let in_reach = unsafe { (*self.ctx).data_end - (*self.ctx).data };
        if in_reach == self.len() {
            return Ok(());
        }
        // SAFETY: as above; no pointer into the packet is held.
        done(unsafe { bpf_skb_pull_data(self.ctx, self.len()) })
    }

    /// Who fills in the UDP checksum; `envelope` holds its present value. Overwrites the field in
    /// the frame.
    #[inline(always)]
    pub fn checksum<N: Network>(&self, envelope: &Envelope<N>) -> Checksum {
        if self.segment_len() != 0 {
            // The checksums are filled in where the superpacket is split.
            return Checksum::Offloaded;
        }
        // The kernel does not tell a program. But this helper, which corrects a checksum for a
        // change of data, leaves a checksum unchanged that is yet to be filled in.
        const TWO_BYTES: u64 = 2;
        let at = offset_of!(Envelope<N>, udp_checksum) as u32;
        let mut now = MaybeUninit::<[u8; 2]>::uninit();
        // SAFETY: the helper writes two bytes, or fails.
        let now = unsafe {
            bpf_l4_csum_replace(self.ctx, at, 0, 1, TWO_BYTES);
            let result = bpf_skb_load_bytes(self.ctx.cast(), at, now.as_mut_ptr().cast(), 2);
            if result != 0 {
                return Checksum::Whole;
            }
            now.assume_init()
        };
        if u16::from_be_bytes(now) == envelope.udp_checksum.get() {
            Checksum::Offloaded
        } else {
            Checksum::Whole
        }
    }
}

/// The length, if it is 1 to `max`, computed so that every verifier learns these bounds.
///
/// Two comparisons become one, of `len - 1`, in another register; verifiers from Linux 6.12 to 6.18
/// do not learn from it the bounds of `len`, and refuse the helper's call ("invalid zero-sized
/// read"). Linux 6.1 learns nothing from a comparison with zero. So one number is compared, and the
/// length is computed from it.
#[inline(always)]
fn in_bounds(len: u32, max: usize) -> Result<u32, i64> {
    let mut less_one = u64::from(len).wrapping_sub(1);
    // The register is named for the same reason as in `payload::made`. SAFETY: there is no
    // instruction; but the compiler no longer knows that the sum below is `len`.
    unsafe { asm!("", inout("r4") less_one) };
    if less_one < max as u64 { Ok(less_one as u32 + 1) } else { Err(-1) }
}

#[inline(always)]
fn done(result: i64) -> Result<(), i64> {
    if result == 0 { Ok(()) } else { Err(result) }
}
