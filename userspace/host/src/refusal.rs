//! Why a driver refuses an XDP program, in its own words. A BPF link fails with an error number
//! alone; netlink's extended acknowledgement has the driver's sentence, too.

use std::os::fd::{AsRawFd, BorrowedFd};

use neli::consts::nl::{NlmF, NlmsgerrAttr};
use neli::consts::rtnl::{Ifla, RtAddrFamily, RtaType, Rtm};
use neli::consts::socket::NlFamily;
use neli::neli_enum;
use neli::nl::{NlPayload, Nlmsghdr, NlmsghdrBuilder};
use neli::rtnl::{Ifinfomsg, IfinfomsgBuilder, RtattrBuilder};
use neli::socket::synchronous::NlSocketHandle;
use neli::types::{Buffer, RtBuffer};
use neli::utils::Groups;

use crate::netlink::{NetlinkError, failed};

/// Attributes of an interface's XDP. (`IFLA_XDP_*` of linux/if_link.h.)
#[neli_enum(serialized_type = "u16")]
enum XdpAttribute {
    Fd = 1,
    Flags = 3,
}

impl RtaType for XdpAttribute {}

// `XDP_FLAGS_*` of linux/if_link.h.
const UPDATE_IF_NOEXIST: u32 = 1;
const DRV_MODE: u32 = 4;
/// In place of a program: none.
const NONE: i32 = -1;

/// The driver's sentence when it is asked to run the program natively; `None` if it says nothing.
/// If it does not refuse this time, nothing stays attached.
///
/// # Errors
///
/// When netlink cannot be used.
pub fn of_xdp(interface: u32, program: BorrowedFd<'_>) -> Result<Option<String>, NetlinkError> {
    let socket = NlSocketHandle::connect(NlFamily::Route, None, Groups::empty()).map_err(failed)?;
    socket.enable_ext_ack(true).map_err(failed)?;
    let answer = ask(&socket, interface, program.as_raw_fd(), UPDATE_IF_NOEXIST | DRV_MODE)?;
    if matches!(answer, Answer::Done) {
        ask(&socket, interface, NONE, DRV_MODE)?;
    }
    Ok(match answer {
        Answer::Refused(sentence) => sentence,
        Answer::Done => None,
    })
}

enum Answer {
    Done,
    Refused(Option<String>),
}

/// Has the interface's driver run a program.
fn ask(
    socket: &NlSocketHandle,
    interface: u32,
    program: i32,
    flags: u32,
) -> Result<Answer, NetlinkError> {
    let request = NlmsghdrBuilder::default()
        .nl_type(Rtm::Setlink)
        .nl_flags(NlmF::REQUEST | NlmF::ACK)
        .nl_payload(NlPayload::Payload(request(interface, program, flags)?));
    socket.send(&request.build().map_err(failed)?).map_err(failed)?;
    let (answers, _) = socket.recv::<Rtm, Buffer>().map_err(failed)?;
    for answer in answers {
        let answer: Nlmsghdr<Rtm, Buffer> = answer.map_err(failed)?;
        match answer.nl_payload() {
            NlPayload::Ack(_) => return Ok(Answer::Done),
            NlPayload::Err(error) => {
                let attributes = error.ext_ack().get_attr_handle();
                let sentence =
                    attributes.get_attr_payload_as_with_len::<String>(NlmsgerrAttr::Msg).ok();
                return Ok(Answer::Refused(sentence.filter(|sentence| !sentence.is_empty())));
            }
            _ => {}
        }
    }
    Err(failed("an answer without a result"))
}

fn request(interface: u32, program: i32, flags: u32) -> Result<Ifinfomsg, NetlinkError> {
    let program = RtattrBuilder::default().rta_type(XdpAttribute::Fd).rta_payload(program);
    let program = program.build().map_err(failed)?;
    let flags = RtattrBuilder::default().rta_type(XdpAttribute::Flags).rta_payload(flags);
    let flags = flags.build().map_err(failed)?;
    let xdp = RtattrBuilder::default().rta_type(Ifla::Xdp).rta_payload(Buffer::new());
    let xdp = xdp.build().map_err(failed)?.nest(&program).map_err(failed)?;
    let mut attributes = RtBuffer::new();
    attributes.push(xdp.nest(&flags).map_err(failed)?);
    let message = IfinfomsgBuilder::default()
        .ifi_family(RtAddrFamily::Unspecified)
        .ifi_index(i32::try_from(interface).map_err(failed)?)
        .rtattrs(attributes);
    message.build().map_err(failed)
}
