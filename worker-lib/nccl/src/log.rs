//! Lines in NCCL's log.

use crate::abi::{Code, INTERNAL_ERROR, Logger, SUCCESS};
use std::ffi::{CString, c_int, c_ulong};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

const WARN: c_int = 2;
const INFO: c_int = 3;
/// Every subsystem: a line is shown for any subsystem that the user asked for.
const ALL: c_ulong = c_ulong::MAX;

static LOGGER: OnceLock<Logger> = OnceLock::new();

/// Why a call failed: NCCL's code, and a line for its log.
pub struct Failure {
    pub code: Code,
    pub why: String,
}

impl Failure {
    pub fn new(code: Code, why: impl Into<String>) -> Self {
        Self { code, why: why.into() }
    }
}

/// Takes NCCL's logger; the first one stays.
pub fn set_logger(logger: Logger) {
    let _ = LOGGER.set(logger);
}

/// One line at level INFO.
pub fn info(line: &str) {
    write(INFO, line);
}

fn write(level: c_int, line: &str) {
    let (Some(logger), Ok(line)) = (LOGGER.get(), CString::new(line)) else { return };
    // SAFETY: the strings end in 0 and outlive the call; the format takes one string.
    unsafe {
        logger(level, ALL, c"switchml".as_ptr(), 0, c"NET/switchml: %s".as_ptr(), line.as_ptr());
    }
}

/// Runs one call of NCCL's: a failure becomes a line and a code, and a panic does not get out.
pub fn guarded(call: impl FnOnce() -> Result<(), Failure>) -> Code {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(failure)) => {
            write(WARN, &failure.why);
            failure.code
        }
        Err(_) => {
            let line = "a bug in the plugin: please report it, with the message on standard error";
            write(WARN, line);
            INTERNAL_ERROR
        }
    }
}
