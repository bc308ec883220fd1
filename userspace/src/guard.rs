//! The rules of who may talk to the control plane, and counts of refusals.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use switchml_control as control;
use tonic::Status;

use crate::hosts::Hosts;
use crate::refusals::{Reason, Refusals};
use crate::secret::Secret;
use crate::tls::ServerTls;
use crate::tokens::TokenKeys;

/// The control plane's rules for clients. By default there are none.
pub struct Guard {
    /// The commit that the program was built from.
    pub commit: &'static str,
    /// Connections are by TLS.
    pub tls: Option<ServerTls>,
    /// Ranks join with tokens that are signed with one of these.
    pub tokens: Option<TokenKeys>,
    /// Ranks join with this.
    pub secret: Option<Secret>,
    /// The present use of the control plane by each host.
    pub hosts: Arc<Hosts>,
    /// Counts of refusals.
    pub refusals: Refusals,
    /// When counting began: at the daemon's start.
    pub since: Instant,
}

impl Default for Guard {
    fn default() -> Self {
        let (tls, tokens, secret, hosts, refusals) = Default::default();
        Self { commit: "unknown", tls, tokens, secret, hosts, refusals, since: Instant::now() }
    }
}

impl Guard {
    /// Whether it trusts everybody.
    pub fn is_open(&self) -> bool {
        self.tls.is_none() && self.tokens.is_none() && self.secret.is_none()
    }

    /// The rules and refusals, as operators see them.
    pub(crate) fn status(&self) -> control::StatusReply {
        let security = control::Security {
            tls: self.tls.is_some(),
            client_certificates: self.tls.as_ref().is_some_and(ServerTls::asks_for_certificates),
            tokens: self.tokens.is_some(),
            certificate_expires: self.tls.as_ref().and_then(ServerTls::expires),
        };
        control::StatusReply {
            refusals: self.refusals.list(),
            uptime_ms: self.since.elapsed().as_millis() as u64,
            security: Some(security),
            commit: self.commit.to_owned(),
            ..Default::default()
        }
    }

    /// A rank from this host joins a job.
    ///
    /// # Errors
    ///
    /// `RESOURCE_EXHAUSTED` if too many have joined from this host.
    pub(crate) fn admit_join(&self, from: IpAddr) -> Result<(), Status> {
        self.hosts.join(from, Instant::now()).map_err(|why| {
            self.refusals.refuse(Reason::TooManyJoins, from, "Join", why);
            Status::resource_exhausted(why.to_string())
        })
    }
}
