//! The loopback interface, by which packets of ranks on the aggregator's own host come in.
//!
//! What the program sends there that came in by another port comes from the host's own address, and
//! the kernel takes that for forged unless told otherwise. How it was before is noted beside the
//! pins, as in [`tags`](super::tags).

use std::fs;

use switchml_protocol::job::Binding;
use tracing::warn;

use super::pins::{PinError, Pins};

/// Its number, in every network namespace.
pub const INDEX: u32 = 1;
/// The note's name, and the setting's.
pub const ACCEPT_LOCAL: &str = "accept_local";
const SETTING: &str = "/proc/sys/net/ipv4/conf/lo/accept_local";

/// Whether a rank lives behind it. Such ones hear the group at the interface that has the address,
/// so it never reaches them.
pub const fn is_behind(member: &Binding) -> bool {
    member.ifindex == INDEX
}

/// Has the kernel take packets from its own addresses there.
///
/// # Errors
///
/// When it cannot be noted.
pub fn open(pins: &Pins) -> Result<(), PinError> {
    if fs::read_to_string(SETTING).is_ok_and(|setting| setting.trim() != "0") {
        return Ok(());
    }
    pins.note_offload(INDEX, ACCEPT_LOCAL)?;
    set("1");
    Ok(())
}

/// The kernel takes them for forged again.
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
