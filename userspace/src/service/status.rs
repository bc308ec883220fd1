//! The gRPC status of a refused request.

use switchml_userspace_core::control_plane::RequestError;
use switchml_userspace_core::data_plane;
use switchml_userspace_core::jobs::{JoinError, MemberError};
use tonic::{Code, Status};

use crate::refusals::Reason;
use crate::tokens::TokenError;

pub fn join_refused(error: JoinError) -> Status {
    let code = match error {
        JoinError::Name(_)
        | JoinError::Host(_)
        | JoinError::Tenant(_)
        | JoinError::WorldSize { .. }
        | JoinError::Rank { .. } => Code::InvalidArgument,
        JoinError::DuplicateRank { .. } => Code::AlreadyExists,
        JoinError::OtherTenant { .. } => Code::PermissionDenied,
        JoinError::OtherWorldSize { .. }
        | JoinError::OtherStripe { .. }
        | JoinError::LinkLocal(_)
        | JoinError::NoPartialSums(_)
        | JoinError::Tags(_) => Code::FailedPrecondition,
        JoinError::TooManyWaiting { .. }
        | JoinError::OverQuota { .. }
        | JoinError::NeverInQuota { .. }
        | JoinError::TooManyJoins { .. } => Code::ResourceExhausted,
    };
    Status::new(code, error.to_string())
}

/// The reason by which the error is counted.
pub fn reason(error: &JoinError) -> Reason {
    match error {
        JoinError::DuplicateRank { .. } => Reason::TakenRank,
        JoinError::OtherTenant { .. } => Reason::OtherTenant,
        JoinError::TooManyWaiting { .. } => Reason::TooManyWaiting,
        JoinError::OverQuota { .. }
        | JoinError::NeverInQuota { .. }
        | JoinError::TooManyJoins { .. } => Reason::OverQuota,
        JoinError::Name(_)
        | JoinError::Host(_)
        | JoinError::Tenant(_)
        | JoinError::WorldSize { .. }
        | JoinError::Rank { .. }
        | JoinError::OtherWorldSize { .. }
        | JoinError::OtherStripe { .. }
        | JoinError::LinkLocal(_)
        | JoinError::NoPartialSums(_)
        | JoinError::Tags(_) => Reason::WrongJoin,
    }
}

pub fn request_failed(error: RequestError) -> Status {
    use RequestError::{DataPlane, Member};
    let code = match error {
        Member(MemberError::NoMember { .. }) => Code::NotFound,
        Member(MemberError::Lanes { .. } | MemberError::Buckets { .. }) => Code::InvalidArgument,
        Member(MemberError::NoHello(_))
        | Member(MemberError::NotAssigned { .. })
        | Member(MemberError::NotStarted { .. }) => Code::FailedPrecondition,
        DataPlane(_) => Code::Internal,
    };
    Status::new(code, error.to_string())
}

pub fn token_refused(error: &TokenError) -> Status {
    let code = match error {
        TokenError::OtherJobs { .. } => Code::PermissionDenied,
        TokenError::Missing
        | TokenError::Forged
        | TokenError::UnknownKey { .. }
        | TokenError::Expired { .. } => Code::Unauthenticated,
    };
    Status::new(code, error.to_string())
}

/// The data plane failed to answer.
pub fn internal(error: data_plane::Error) -> Status {
    Status::internal(error.to_string())
}
