//! The part of libibverbs that a queue pair needs, loaded when a rank wants RDMA: a rank without it
//! runs where the library is missing. Names in the library are in the fields' and types' comments;
//! sizes and places are those of its stable interface (`infiniband/verbs.h`, IBVERBS_1.1).
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::{self, offset_of, size_of};
use std::ptr;
use std::sync::OnceLock;

use libloading::Library;

const LIBRARY: &str = "libibverbs.so.1";

/// What the library keeps, and nobody here looks into.
pub type Opaque = *mut c_void;

macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// Functions of the library.
        pub struct Verbs {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Verbs {
            fn load() -> Result<Self, String> {
                let missing = |error| format!("{LIBRARY} cannot be loaded: {error}");
                // SAFETY: the library's initialisation is libc's business; it needs no care.
                let library = unsafe { Library::new(LIBRARY) }.map_err(missing)?;
                let verbs = Self {
                    $($name: {
                        // SAFETY: the type is the function's in the library's header.
                        *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                            .map_err(missing)?
                    },)*
                };
                // It stays: the functions are called as long as the process lives.
                mem::forget(library);
                Ok(verbs)
            }
        }
    };
}

functions! {
    ibv_get_device_list(*mut c_int) -> *mut Opaque;
    ibv_free_device_list(*mut Opaque);
    ibv_get_device_name(Opaque) -> *const c_char;
    ibv_open_device(Opaque) -> *mut Context;
    ibv_close_device(*mut Context) -> c_int;
    ibv_query_port(*mut Context, u8, *mut PortAttributes) -> c_int;
    ibv_alloc_pd(*mut Context) -> Opaque;
    ibv_dealloc_pd(Opaque) -> c_int;
    ibv_reg_mr(Opaque, *mut c_void, usize, c_int) -> *mut Region;
    ibv_dereg_mr(*mut Region) -> c_int;
    ibv_create_comp_channel(*mut Context) -> *mut Channel;
    ibv_destroy_comp_channel(*mut Channel) -> c_int;
    ibv_create_cq(*mut Context, c_int, Opaque, *mut Channel, c_int) -> Opaque;
    ibv_destroy_cq(Opaque) -> c_int;
    ibv_get_cq_event(*mut Channel, *mut Opaque, *mut Opaque) -> c_int;
    ibv_ack_cq_events(Opaque, c_uint);
    ibv_create_qp(Opaque, *mut PairAttributes) -> *mut Pair;
    ibv_modify_qp(*mut Pair, *mut PairState, c_int) -> c_int;
    ibv_destroy_qp(*mut Pair) -> c_int;
    ibv_create_ah(Opaque, *mut AddressAttributes) -> Opaque;
    ibv_destroy_ah(Opaque) -> c_int;
    ibv_wc_status_str(c_uint) -> *const c_char;
}

/// The library, loaded once; or why it cannot be.
pub fn verbs() -> Result<&'static Verbs, String> {
    static VERBS: OnceLock<Result<Verbs, String>> = OnceLock::new();
    VERBS.get_or_init(Verbs::load).as_ref().map_err(Clone::clone)
}

/// `struct ibv_context` up to what is called here. The device's functions for packets are in a
/// table, not in the library.
#[repr(C)]
pub struct Context {
    device: Opaque,
    others_before: [Opaque; 11],
    pub poll_cq: unsafe extern "C" fn(Opaque, c_int, *mut Completion) -> c_int,
    pub req_notify_cq: unsafe extern "C" fn(Opaque, c_int) -> c_int,
    others_between: [Opaque; 12],
    pub post_send: unsafe extern "C" fn(*mut Pair, *mut Send, *mut *mut Send) -> c_int,
    pub post_recv: unsafe extern "C" fn(*mut Pair, *mut Receive, *mut *mut Receive) -> c_int,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Default)]
pub struct PortAttributes {
    state: u32,
    pub max_mtu: u32,
    /// 1 for 256 bytes, 2 for 512, and so on.
    pub active_mtu: u32,
    /// Longer than the library's, so that it may grow.
    others: [u32; 21],
}

/// `struct ibv_mr`: registered memory.
#[repr(C)]
pub struct Region {
    others: [Opaque; 4],
    handle: u32,
    pub lkey: u32,
    rkey: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub struct Channel {
    context: *mut Context,
    pub fd: c_int,
    references: c_int,
}

/// `struct ibv_qp` up to its number.
#[repr(C)]
pub struct Pair {
    others: [Opaque; 6],
    handle: u32,
    pub number: u32,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Default)]
pub struct Capacity {
    pub sends: u32,
    pub receives: u32,
    pub pieces_of_a_send: u32,
    pub pieces_of_a_receive: u32,
    pub inline_bytes: u32,
}

/// `IBV_QPT_UD`: unreliable datagrams.
pub const DATAGRAMS: u32 = 4;

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub struct PairAttributes {
    pub context: Opaque,
    /// The completion queues of sends and receives.
    pub sent: Opaque,
    pub received: Opaque,
    pub shared_receives: Opaque,
    pub capacity: Capacity,
    /// [`DATAGRAMS`].
    pub kind: u32,
    /// Whether each send has a completion.
    pub signals_all: c_int,
}

/// `struct ibv_ah_attr`, with the `ibv_global_route` that it begins with.
#[repr(C)]
#[derive(Default)]
pub struct AddressAttributes {
    /// The receiver's GID.
    pub receiver: Gid,
    pub flow_label: u32,
    /// The place of the sender's GID in the port's table.
    pub sender: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub local_id: u16,
    pub service_level: u8,
    pub path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port: u8,
}

/// `union ibv_gid`, as long and as aligned.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub struct Gid(pub [u8; 16]);

/// Masks of `ibv_modify_qp`, and states.
pub const STATE: c_int = 1;
pub const PARTITION: c_int = 1 << 4;
pub const PORT: c_int = 1 << 5;
pub const KEY: c_int = 1 << 6;
pub const FIRST_NUMBER: c_int = 1 << 16;
pub const INITIAL: u32 = 1;
pub const READY_TO_RECEIVE: u32 = 2;
pub const READY_TO_SEND: u32 = 3;

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Default)]
pub struct PairState {
    pub state: u32,
    pub before_the_key: [u32; 3],
    pub key: u32,
    pub receive_number: u32,
    pub send_number: u32,
    pub receiver: u32,
    pub access: u32,
    pub capacity: Capacity,
    pub addresses: [AddressAttributes; 2],
    pub partition: u16,
    pub other_partition: u16,
    pub before_the_port: [u8; 5],
    pub port: u8,
    pub behind_the_port: [u8; 5],
    pub rate_limit: u32,
}

/// `IBV_ACCESS_LOCAL_WRITE`.
pub const LOCAL_WRITE: c_int = 1;
/// `IBV_WR_SEND`.
pub const SEND: u32 = 2;
/// `IBV_SEND_SIGNALED`: the send has a completion.
pub const SIGNALED: u32 = 2;

/// `struct ibv_sge`: where a packet is in registered memory.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Piece {
    pub address: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Receive {
    pub id: u64,
    pub next: *mut Receive,
    pub pieces: *mut Piece,
    pub piece_count: c_int,
}

impl Default for Receive {
    fn default() -> Self {
        Self { id: 0, next: ptr::null_mut(), pieces: ptr::null_mut(), piece_count: 1 }
    }
}

/// `struct ibv_send_wr`, with the fields of a datagram.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Send {
    pub id: u64,
    pub next: *mut Send,
    pub pieces: *mut Piece,
    pub piece_count: c_int,
    pub operation: u32,
    pub flags: u32,
    immediate: u32,
    /// The address handle, queue pair and Q_Key of the receiver.
    pub address: Opaque,
    pub receiver: u32,
    pub key: u32,
    others: [u64; 9],
}

impl Default for Send {
    fn default() -> Self {
        Self {
            id: 0,
            next: ptr::null_mut(),
            pieces: ptr::null_mut(),
            piece_count: 1,
            operation: SEND,
            flags: 0,
            immediate: 0,
            address: ptr::null_mut(),
            receiver: 0,
            key: 0,
            others: [0; 9],
        }
    }
}

/// `struct ibv_wc`: a send or a receive is over.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Completion {
    pub id: u64,
    /// 0 for success.
    pub status: u32,
    operation: u32,
    vendor_error: u32,
    pub length: u32,
    immediate: u32,
    pair: u32,
    /// The sender's queue pair.
    pub sender: u32,
    flags: u32,
    others: u64,
}

// As a C compiler has them, from the header of rdma-core 44 on x86-64; on arm64 they are the same.
const _: () = {
    assert!(offset_of!(Context, poll_cq) == 8 + 88 && offset_of!(Context, req_notify_cq) == 8 + 96);
    assert!(offset_of!(Context, post_send) == 8 + 200 && offset_of!(Context, post_recv) == 8 + 208);
    assert!(offset_of!(PortAttributes, active_mtu) == 8 && size_of::<PortAttributes>() >= 52);
    assert!(offset_of!(Region, lkey) == 36 && offset_of!(Channel, fd) == 8);
    assert!(offset_of!(Pair, number) == 52);
    assert!(size_of::<PairAttributes>() == 64 && offset_of!(PairAttributes, kind) == 52);
    assert!(size_of::<AddressAttributes>() == 32 && offset_of!(AddressAttributes, port) == 30);
    assert!(offset_of!(AddressAttributes, sender) == 20);
    assert!(offset_of!(AddressAttributes, local_id) == 24);
    assert!(size_of::<PairState>() == 144 && offset_of!(PairState, partition) == 120);
    assert!(offset_of!(PairState, key) == 16 && offset_of!(PairState, send_number) == 24);
    assert!(offset_of!(PairState, port) == 129 && offset_of!(PairState, rate_limit) == 136);
    assert!(size_of::<Piece>() == 16 && size_of::<Receive>() == 32);
    assert!(size_of::<Send>() == 128 && offset_of!(Send, flags) == 32);
    assert!(offset_of!(Send, address) == 40);
    assert!(size_of::<Completion>() == 48 && offset_of!(Completion, sender) == 32);
    assert!(offset_of!(Completion, length) == 20);
};
