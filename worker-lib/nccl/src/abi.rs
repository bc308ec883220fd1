//! NCCL's interface for plugins, as laid out in memory: ncclNet, ncclCollNet, and what both share.

pub mod coll_net;
pub mod net;

use std::ffi::{c_char, c_int, c_ulong};

/// A `ncclResult_t`.
pub type Code = c_int;

/// `ncclSuccess`.
pub const SUCCESS: Code = 0;
/// `ncclSystemError`: the operating system refused something.
pub const SYSTEM_ERROR: Code = 2;
/// `ncclInternalError`: a fault of the plugin or of NCCL.
pub const INTERNAL_ERROR: Code = 3;
/// `ncclInvalidArgument`.
pub const INVALID_ARGUMENT: Code = 4;
/// `ncclInvalidUsage`: the two ends do not fit together.
pub const INVALID_USAGE: Code = 5;
/// `ncclRemoteError`: the peer is gone.
pub const REMOTE_ERROR: Code = 6;

/// Memory of the host (`NCCL_PTR_HOST`), as a kind of memory and as a set of them.
pub const HOST_MEMORY: c_int = 1;
/// Bytes of a handle.
pub const HANDLE_BYTES: usize = 128;

/// NCCL's logger: level, subsystems, file, line, a format of printf's and its values.
pub type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);
