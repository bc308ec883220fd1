//! Requests to the kernel over netlink, and its answers.

use std::fmt::{Debug, Display};

use neli::consts::genl::{Cmd, NlAttrType};
use neli::consts::nl::{NlType, NlmF};
use neli::consts::rtnl::Rtm;
use neli::consts::socket::NlFamily;
use neli::genl::{AttrTypeBuilder, Genlmsghdr, GenlmsghdrBuilder, Nlattr, NlattrBuilder};
use neli::nl::{NlPayload, Nlmsghdr};
use neli::router::synchronous::NlRouter;
use neli::types::{Buffer, GenlBuffer};
use neli::utils::Groups;
use neli::{FromBytesWithInput, Size, ToBytes};

/// Netlink did not answer as it should.
#[derive(Debug, thiserror::Error)]
#[error("cannot ask the kernel for its interfaces over netlink: {0}")]
pub struct NetlinkError(String);

/// Turns an error of netlink into a [`NetlinkError`].
pub fn failed(error: impl Display) -> NetlinkError {
    NetlinkError(error.to_string())
}

/// The answers to a request of rtnetlink.
pub fn route<M>(command: Rtm, flags: NlmF, request: M) -> Result<Vec<M>, NetlinkError>
where
    M: Clone + Debug + Size + ToBytes + FromBytesWithInput<Input = usize>,
{
    ask(&connect(NlFamily::Route)?, command, flags, request)
}

/// The results of `read` for each answer to a request of rtnetlink.
pub fn read_route<M, T>(
    command: Rtm,
    flags: NlmF,
    request: M,
    read: impl FnMut(&M) -> Option<T>,
) -> Result<Vec<T>, NetlinkError>
where
    M: Debug + Size + ToBytes + FromBytesWithInput<Input = usize>,
{
    read_answers(&connect(NlFamily::Route)?, command, flags, request, read)
}

/// The answers to a request of this family of generic netlink; `None` if the kernel does not have
/// the family.
pub fn generic<C: Cmd + Debug + Clone, A: NlAttrType + Debug + Clone>(
    family: &str,
    command: C,
    attributes: impl IntoIterator<Item = Nlattr<A, Buffer>>,
) -> Result<Option<Vec<Genlmsghdr<C, A>>>, NetlinkError> {
    let router = connect(NlFamily::Generic)?;
    let Ok(family) = router.resolve_genl_family(family) else { return Ok(None) };
    let attributes = attributes.into_iter().collect::<GenlBuffer<_, _>>();
    let request = GenlmsghdrBuilder::default().cmd(command).version(1).attrs(attributes);
    ask(&router, family, NlmF::ACK, request.build().map_err(failed)?).map(Some)
}

/// An attribute of generic netlink.
pub fn attribute<T: NlAttrType, P: Size + ToBytes>(
    kind: T,
    payload: P,
) -> Result<Nlattr<T, Buffer>, NetlinkError> {
    let kind = AttrTypeBuilder::default().nla_type(kind).build().map_err(failed)?;
    NlattrBuilder::default().nla_type(kind).nla_payload(payload).build().map_err(failed)
}

fn connect(family: NlFamily) -> Result<NlRouter, NetlinkError> {
    NlRouter::connect(family, None, Groups::empty()).map(|(router, _)| router).map_err(failed)
}

fn ask<T, M>(router: &NlRouter, kind: T, flags: NlmF, request: M) -> Result<Vec<M>, NetlinkError>
where
    T: NlType + Debug,
    M: Clone + Debug + Size + ToBytes + FromBytesWithInput<Input = usize>,
{
    read_answers(router, kind, flags, request, |answer| Some(answer.clone()))
}

fn read_answers<T, M, R>(
    router: &NlRouter,
    kind: T,
    flags: NlmF,
    request: M,
    mut read: impl FnMut(&M) -> Option<R>,
) -> Result<Vec<R>, NetlinkError>
where
    T: NlType + Debug,
    M: Debug + Size + ToBytes + FromBytesWithInput<Input = usize>,
{
    let replies = router.send::<_, _, T, M>(kind, flags, NlPayload::Payload(request));
    let mut answers = Vec::new();
    for reply in replies.map_err(failed)? {
        let reply: Nlmsghdr<T, M> = reply.map_err(failed)?;
        answers.extend(reply.get_payload().and_then(&mut read));
    }
    Ok(answers)
}
