//! Keeps VLAN tags visible to XDP: offloads that hide them are off while XDP runs at an interface,
//! and on again afterwards.
//!
//! Offloads that were on are noted beside the pins before they are switched off, so that the last
//! daemon can switch them on again.

use tracing::{info, warn};

use super::loopback;
use super::pins::{PinError, Pins};
use switchml_host::interfaces::{self, Interface};
use switchml_host::netlink::NetlinkError;
use switchml_host::offloads;

/// Switches off offloads that hide tags from XDP at the interface, and logs the result. At tc
/// ingress this is not needed: the kernel tells programs the tags.
///
/// # Errors
///
/// When an offload cannot be noted.
pub fn show(interface: &Interface, pins: &Pins) -> Result<(), PinError> {
    let name = &interface.name;
    match switch_off(interface.index, pins)? {
        Ok(Tags::Shown) => {}
        Ok(Tags::NowShown) => {
            info!(
                "interface {name}: it leaves VLAN tags in frames (rxvlan off) while XDP runs there"
            )
        }
        Ok(Tags::Hidden) => warn!(
            "interface {name} strips VLAN tags before XDP sees them, and cannot stop that: answers \
             to tagged frames go out without a tag; use --mode bundle if ranks are in VLANs"
        ),
        Err(error) => {
            warn!("cannot tell whether interface {name} hides VLAN tags from XDP: {error}")
        }
    }
    if interface.kind.as_deref() == Some("veth") {
        warn!(
            "interface {name} is a veth, whose other end hides VLAN tags from XDP: answers to \
             tagged frames go out without a tag until `ethtool -K <other end> txvlan off \
             tx-vlan-stag-hw-insert off`; or use --mode bundle"
        );
    }
    Ok(())
}

/// Whether XDP sees tags.
enum Tags {
    Shown,
    NowShown,
    Hidden,
}

fn switch_off(index: u32, pins: &Pins) -> Result<Result<Tags, NetlinkError>, PinError> {
    let hiding = match offloads::that_hide_tags(index) {
        Ok(hiding) if hiding.is_empty() => return Ok(Ok(Tags::Shown)),
        Ok(hiding) => hiding,
        Err(error) => return Ok(Err(error)),
    };
    for feature in hiding {
        pins.note_offload(index, feature)?;
        if let Err(error) = offloads::set(index, feature, false) {
            return Ok(Err(error));
        }
    }
    let left = offloads::that_hide_tags(index);
    Ok(left.map(|left| if left.is_empty() { Tags::NowShown } else { Tags::Hidden }))
}

/// Switches the noted offloads on again, at the interface with this index or at all. An interface
/// that is gone is ignored.
pub fn hide_again(pins: &Pins, only: Option<u32>) {
    let noted = pins
        .noted_offloads()
        .into_iter()
        .filter(|(index, _)| only.is_none_or(|only| only == *index));
    let interfaces = interfaces::list().unwrap_or_default();
    for (index, feature) in noted {
        if feature == loopback::ACCEPT_LOCAL {
            loopback::close();
        } else if interfaces.iter().any(|interface| interface.index == index)
            && let Err(error) = offloads::set(index, &feature, true)
        {
            warn!("cannot switch {feature} of interface number {index} on again: {error}");
        }
        pins.forget_offload(index, &feature);
    }
}
