//! The devices that both of NCCL's tables have: this host's interfaces.

use crate::abi::{HOST_MEMORY, INVALID_ARGUMENT, Logger, SYSTEM_ERROR};
use crate::interfaces::{self, Device};
use crate::log::{Failure, set_logger};
use std::ffi::c_int;
use std::sync::OnceLock;

/// Most connections or groups that a device may have: as many as NCCL's own sockets allow.
pub const MAX_CONNECTIONS: c_int = 65_536;

static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();

/// Finds the devices; later calls change nothing.
pub fn init(logger: Option<Logger>) -> Result<(), Failure> {
    if let Some(logger) = logger {
        set_logger(logger);
    }
    let filter = std::env::var("NCCL_SOCKET_IFNAME").ok().filter(|filter| !filter.is_empty());
    let found = interfaces::usable(filter.as_deref()).map_err(|error| {
        Failure::new(SYSTEM_ERROR, format!("cannot list this host's interfaces: {error}"))
    })?;
    if found.is_empty() {
        let filter = filter.unwrap_or_default();
        let why = format!(
            "no interface with an address matches NCCL_SOCKET_IFNAME=\"{filter}\": name one, or \
             unset it"
        );
        return Err(Failure::new(SYSTEM_ERROR, why));
    }
    DEVICES.get_or_init(|| found);
    Ok(())
}

/// The number of devices.
pub fn count() -> c_int {
    let devices = DEVICES.get().map_or(0, Vec::len);
    c_int::try_from(devices).unwrap_or(c_int::MAX)
}

/// A device by its number.
pub fn device(number: c_int) -> Result<&'static Device, Failure> {
    let devices = DEVICES.get().map_or(&[][..], Vec::as_slice);
    usize::try_from(number).ok().and_then(|number| devices.get(number)).ok_or_else(|| {
        let count = devices.len();
        Failure::new(INVALID_ARGUMENT, format!("device {number} of {count} does not exist"))
    })
}

/// Whether devices can use memory of this kind.
pub fn check_memory(kind: c_int) -> Result<(), Failure> {
    if kind == HOST_MEMORY {
        return Ok(());
    }
    let why = format!("memory of kind {kind} cannot be used, only the host's (1)");
    Err(Failure::new(INVALID_ARGUMENT, why))
}
