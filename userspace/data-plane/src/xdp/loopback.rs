//! The loopback interface, by which packets of ranks on the aggregator's own host come in.
//!
//! RESULTs that the program sends to loopback, made of frames from other ports, have the host's own
//! address as their source, and the kernel drops such frames as forged by default. The old setting
//! is noted beside the pins, as in [`tags`](super::tags).

use std::fs;

use switchml_protocol::bpf_types::job::Binding;
use tracing::warn;

use super::pins::{PinError, Pins};

/// Index of the loopback interface, in every network namespace.
pub const INDEX: u32 = 1;
/// Name of the note and of the setting.
pub const ACCEPT_LOCAL: &str = "accept_local";
const SETTING: &str = "/proc/sys/net/ipv4/conf/lo/accept_local";

/// Whether a rank lives behind loopback. Such ranks listen to the group at the interface that has
/// the address, so the group never reaches them.
pub const fn is_behind(member: &Binding) -> bool {
    member.ifindex == INDEX
}

/// Has the kernel accept packets from its own addresses at loopback.
///
/// # Errors
///
/// When the old setting cannot be noted.
pub fn open(pins: &Pins) -> Result<(), PinError> {
    if fs::read_to_string(SETTING).is_ok_and(|setting| setting.trim() != "0") {
        return Ok(());
    }
    pins.note_offload(INDEX, ACCEPT_LOCAL)?;
    set("1");
    Ok(())
}

/// Has the kernel drop such packets as forged again.
pub fn close() {
    set("0");
}

fn set(value: &str) {
    if let Err(error) = fs::write(SETTING, value) {
        warn!(
            "cannot set net.ipv4.conf.lo.accept_local to {value}: {error}; ranks on this host get \
             no results that other ranks complete without `sysctl -w \
             net.ipv4.conf.lo.accept_local=1`"
        );
    }
}
