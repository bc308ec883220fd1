//! What functions return, and what they say of the last failure on a thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

/// What a function returns.
#[repr(C)]
#[expect(clippy::enum_variant_names, reason = "the names that C sees")]
pub enum Status {
    /// Done.
    SwitchmlOk = 0,
    /// The arguments or settings make no sense, or the reduction is not offered. Nothing was
    /// changed.
    SwitchmlInvalid = 1,
    /// The communicator failed, for good; or there is none.
    SwitchmlFailed = 2,
}

/// Arguments that make no sense: what was given, what is allowed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub &'static str);

/// Why a function fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error(transparent)]
    Worker(#[from] switchml_worker::Error),
}

impl Error {
    fn status(&self) -> Status {
        use switchml_worker::Error::{Root, Setting, Unsupported};
        match self {
            Self::Invalid(_) | Self::Worker(Root { .. } | Setting { .. } | Unsupported(_)) => {
                Status::SwitchmlInvalid
            }
            Self::Worker(_) => Status::SwitchmlFailed,
        }
    }

    fn ranks(&self) -> Vec<u16> {
        match self {
            Self::Invalid(_) => Vec::new(),
            Self::Worker(error) => error.ranks(),
        }
    }
}

/// A failure, as C is told of it.
#[derive(Default)]
struct Told {
    message: CString,
    ranks: Vec<u16>,
}

thread_local! {
    static LAST: RefCell<Told> = RefCell::default();
}

/// Runs a function's body and keeps what it fails with.
pub fn answer(body: impl FnOnce() -> Result<(), Error>) -> Status {
    let Err(error) = body() else { return Status::SwitchmlOk };
    let mut message = error.to_string().into_bytes();
    message.retain(|byte| *byte != 0);
    let message = CString::new(message).unwrap_or_default();
    LAST.with_borrow_mut(|last| *last = Told { message, ranks: error.ranks() });
    error.status()
}

/// What failed last on this thread, in one line: what was given, what is allowed, what to do. The
/// string is the library's, and lasts until another of its functions fails on this thread. Empty if
/// none has.
#[unsafe(no_mangle)]
pub extern "C" fn switchml_error_message() -> *const c_char {
    LAST.with_borrow(|last| last.message.as_ptr())
}

/// How many ranks are at fault for what failed last on this thread: missing, gone, or those that
/// disagree with the rest; 0 if that is not known. Up to capacity of them are written to ranks,
/// which may be null if capacity is 0.
///
/// # Safety
/// ranks points to room for capacity numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn switchml_error_ranks(ranks: *mut u32, capacity: usize) -> usize {
    LAST.with_borrow(|last| {
        if !ranks.is_null() {
            for (place, rank) in last.ranks.iter().take(capacity).enumerate() {
                // SAFETY: the caller's promise, and `place` is less than `capacity`.
                unsafe { ranks.add(place).write((*rank).into()) };
            }
        }
        last.ranks.len()
    })
}
