//! Programs at the tc ingress of interfaces: attached by links where the kernel has them (TCX,
//! Linux 6.6), by filters of its classifier `bpf` before.
//!
//! A filter stays until it is removed, whichever process dies. Its handle names its owner: the
//! number of the folder in which the data plane is kept.

use std::error::Error as StdError;
use std::io;
use std::mem::forget;

use aya::programs::tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions};
use aya::programs::{ProgramError, ProgramInfo, SchedClassifier, TcAttachType};
use neli::consts::nl::NlmF;
use neli::consts::rtnl::{RtaType, Rtm, Tca};
use neli::neli_enum;
use neli::rtnl::{Tcmsg, TcmsgBuilder};

use switchml_host::interfaces::{self, Interface};
use switchml_host::netlink::{self, NetlinkError, failed};

/// Run before other filters, as XDP would: those are meant for other packets than the aggregator's.
const PRIORITY: u16 = 1;
// The queueing discipline that filters are attached to, and its two sides, from linux/pkt_sched.h.
const CLSACT: u32 = 0xFFFF_0000;
const CLSACT_PARENT: u32 = 0xFFFF_FFF1;
const INGRESS: u32 = 0xFFFF_FFF2;
const EGRESS: u32 = 0xFFFF_FFF3;

/// Options of the classifier `bpf`. (`TCA_BPF_*` of linux/pkt_cls.h.)
#[neli_enum(serialized_type = "u16")]
enum BpfOption {
    Id = 11,
}

impl RtaType for BpfOption {}

/// Whether this kernel attaches programs at tc ingress by links.
pub fn has_links() -> bool {
    // Every namespace has a loopback interface. A kernel that has no links does not know the
    // question.
    let answer = SchedClassifier::query_tcx("lo", TcAttachType::Ingress);
    answer.map_or_else(|error| errno(&error) != Some(libc::EINVAL), |_| true)
}

/// Ids of the programs at the interface's tc ingress; `None` if this process may not ask for them,
/// which takes CAP_SYS_ADMIN where they are attached by links.
pub fn programs(interface: &Interface) -> Option<Vec<u32>> {
    match SchedClassifier::query_tcx(&interface.name, TcAttachType::Ingress) {
        Ok((_, programs)) => Some(programs.iter().map(ProgramInfo::id).collect()),
        Err(error) if errno(&error) == Some(libc::EPERM) => None,
        // This kernel has no links, or the interface is gone.
        Err(_) => Some(
            filters(interface.index, INGRESS)
                .ok()?
                .into_iter()
                .filter_map(|filter| filter.program)
                .collect(),
        ),
    }
}

/// Id of the program at the interface's tc ingress that sees frames first, if this process may ask.
pub fn first(interface: &Interface) -> Option<u32> {
    programs(interface)?.first().copied()
}

/// Id of the program that the owner's filter at the interface runs, if there is such a filter.
pub fn filtered(index: u32, owner: u32) -> Option<u32> {
    filters(index, INGRESS).ok()?.into_iter().find(|filter| filter.handle == owner)?.program
}

/// The interfaces with filters of this owner.
///
/// # Errors
///
/// When netlink cannot be used.
pub fn filtered_interfaces(owner: u32) -> Result<Vec<Interface>, NetlinkError> {
    if has_links() {
        return Ok(Vec::new());
    }
    let interfaces = interfaces::list()?.into_iter();
    Ok(interfaces.filter(|interface| filtered(interface.index, owner).is_some()).collect())
}

/// Has a loaded program serve the interface, until [`remove_filter`].
///
/// # Errors
///
/// When the kernel refuses.
pub fn add_filter(
    program: &mut SchedClassifier,
    interface: &Interface,
    owner: u32,
) -> Result<(), ProgramError> {
    // It may exist already; if it cannot be made, the next call fails.
    let _ = tc::qdisc_add_clsact(&interface.name);
    let options = NlOptions { priority: PRIORITY, handle: owner.into(), classid: None };
    let options = TcAttachOptions::Netlink(options);
    let added = program.attach_with_options(&interface.name, TcAttachType::Ingress, options)?;
    keep(program.take_link(added)?);
    Ok(())
}

/// Has a loaded program serve the interface in place of the one in the owner's filter, between one
/// packet and the next.
///
/// # Errors
///
/// When the kernel refuses.
pub fn replace_filter(
    program: &mut SchedClassifier,
    interface: &Interface,
    owner: u32,
) -> Result<(), ProgramError> {
    let replaced = program.attach_to_link(filter_of(interface, owner)?)?;
    keep(program.take_link(replaced)?);
    Ok(())
}

/// Removes the owner's filter from the interface, if there is one, and the queueing discipline if
/// it has no other filter.
///
/// # Errors
///
/// When the kernel refuses.
pub fn remove_filter(interface: &Interface, owner: u32) -> Result<(), NetlinkError> {
    if filtered(interface.index, owner).is_none() {
        return Ok(());
    }
    drop(filter_of(interface, owner).map_err(failed)?);
    for side in [INGRESS, EGRESS] {
        if !filters(interface.index, side)?.is_empty() {
            return Ok(());
        }
    }
    remove_clsact(interface.index)
}

/// Removes all filters of this owner.
///
/// # Errors
///
/// When the kernel refuses.
pub fn remove_filters(owner: u32) -> Result<(), NetlinkError> {
    filtered_interfaces(owner)?.iter().try_for_each(|interface| remove_filter(interface, owner))
}

/// The system call's error number, anywhere in the chain of causes.
pub fn errno(error: &(dyn StdError + 'static)) -> Option<i32> {
    causes(error)
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .find_map(io::Error::raw_os_error)
}

/// The error and its causes.
pub fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

/// The owner's filter. It is removed when the value is dropped.
fn filter_of(interface: &Interface, owner: u32) -> Result<SchedClassifierLink, ProgramError> {
    SchedClassifierLink::attached(
        &interface.name,
        TcAttachType::Ingress,
        PRIORITY,
        owner.into(),
        None,
    )
    .map_err(|error| tc::TcError::IoError(error).into())
}

/// Lets the filter outlive its value, which holds only numbers.
fn keep(filter: SchedClassifierLink) {
    forget(filter);
}

/// A filter of any classifier.
struct Filter {
    handle: u32,
    /// Id of its BPF program.
    program: Option<u32>,
}

fn filters(index: u32, side: u32) -> Result<Vec<Filter>, NetlinkError> {
    let mut filters = Vec::new();
    for filter in netlink::route(Rtm::Gettfilter, NlmF::DUMP, message(index, 0, side)?)? {
        let attributes = filter.rtattrs().get_attr_handle();
        let options = attributes.get_nested_attributes::<BpfOption>(Tca::Options);
        let program = options.and_then(|options| options.get_attr_payload_as(BpfOption::Id)).ok();
        // The kernel lists the classifier itself, too, with no handle.
        if *filter.tcm_handle() != 0 {
            filters.push(Filter { handle: *filter.tcm_handle(), program });
        }
    }
    Ok(filters)
}

fn remove_clsact(index: u32) -> Result<(), NetlinkError> {
    let request = message(index, CLSACT, CLSACT_PARENT)?;
    netlink::route(Rtm::Delqdisc, NlmF::ACK, request).map(drop)
}

fn message(index: u32, handle: u32, parent: u32) -> Result<Tcmsg, NetlinkError> {
    let index = i32::try_from(index).map_err(failed)?;
    let message = TcmsgBuilder::default().tcm_family(0).tcm_ifindex(index).tcm_handle(handle);
    message.tcm_parent(parent).tcm_info(0).build().map_err(failed)
}
