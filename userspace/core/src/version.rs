//! A rank that joins must speak this build's version of the protocol.

use std::net::IpAddr;

use switchml_control as control;
use switchml_protocol::VERSION;

use crate::jobs::in_words;

/// A rank, or the combiner by which it comes, that speaks another version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{who} has {theirs} of the protocol, this aggregator version {VERSION} (switchml {}); \
     install the same build of switchml on both",
    env!("CARGO_PKG_VERSION")
)]
pub struct OtherVersion {
    who: String,
    theirs: String,
}

/// Checks the version of a rank that joins from `peer`, and of the combiner that forwarded the
/// request. Each combiner has checked the one before it.
pub fn check(request: &control::JoinRequest, peer: IpAddr) -> Result<(), OtherVersion> {
    let refuse = |who, theirs| {
        let theirs = match theirs {
            0 => "an unknown version".to_owned(),
            known => format!("version {known}"),
        };
        Err(OtherVersion { who, theirs })
    };
    match request.via.last() {
        Some(last) if last.protocol_version != u32::from(VERSION) => {
            refuse(format!("combiner {}", in_words(last)), last.protocol_version)
        }
        _ if request.protocol_version != u32::from(VERSION) => {
            refuse(format!("rank {} from {peer}", request.rank), request.protocol_version)
        }
        _ => Ok(()),
    }
}
