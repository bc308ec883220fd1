//! Refusals at the control plane: counted by reason, and logged now and then.

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use switchml_control as control;
use tracing::warn;

use crate::throttle::Throttle;

/// Why something was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A connection does not begin by TLS.
    NoTls,
    /// TLS failed for another reason; the client may not trust this daemon's certificate.
    Handshake,
    /// A client has no certificate.
    NoClientCertificate,
    /// A client's certificate is not one that is asked for.
    WrongClientCertificate,
    /// A connection to a public address, which came later than the daemon, without TLS.
    PublicAddress,
    /// A rank joins without a job token.
    NoToken,
    /// The token is not signed with this daemon's key.
    ForgedToken,
    /// The token has expired.
    ExpiredToken,
    /// The token is for other jobs.
    TokenOfOtherJobs,
    /// The job is another tenant's.
    OtherTenant,
    /// The tenant would exceed its quota.
    OverQuota,
    /// A rank joins whose place is taken.
    TakenRank,
    /// The names are too long, or the rank does not fit its job otherwise.
    WrongJoin,
    /// The rank begins a job, and too many jobs wait for ranks.
    TooManyWaiting,
    /// A member's request does not carry its secret.
    NoMember,
    /// A message is longer than any that is read.
    TooLong,
    /// A host has as many connections as it may.
    TooManyConnections,
    /// Too many ranks have joined from this host within a minute.
    TooManyJoins,
    /// A client that is no rank has sent more requests than its host may within a minute.
    TooManyRequests,
    /// A client takes back more requests than its host may within a minute.
    TooManyResets,
    /// A client says too little before its first request, or does not answer later.
    Silent,
}

/// All reasons, in this order: their names and descriptions.
const REASONS: [(&str, &str); 21] = [
    ("no_tls", "connections without TLS"),
    ("tls_handshake", "connections whose TLS handshake failed"),
    ("no_client_certificate", "connections without a client certificate"),
    ("wrong_client_certificate", "connections whose certificate is not valid, or from another CA"),
    ("public_address", "connections to a public address, without TLS"),
    ("no_token", "joins without a job token"),
    ("forged_token", "joins with a job token that is not signed with this aggregator's key"),
    ("expired_token", "joins with a job token that has expired"),
    ("token_of_other_jobs", "joins with a job token for jobs of other names"),
    ("other_tenant", "joins of a job that another tenant has started"),
    ("over_quota", "joins beyond the quota of their tenant"),
    ("taken_rank", "joins as a rank that is there already"),
    ("wrong_join", "joins with names, numbers or addresses that no job has, or not this one"),
    ("too_many_waiting", "joins that would start a job while too many wait for ranks"),
    ("no_member", "requests without the secret of a member"),
    ("too_long", "requests with a message that is too long"),
    ("too_many_connections", "connections beyond those that one address may have"),
    ("too_many_joins", "joins beyond those that one address may make in a minute"),
    (
        "too_many_requests",
        "connections that were closed because one address sent too many requests",
    ),
    ("too_many_resets", "connections that were closed because requests were cancelled too often"),
    ("silent", "connections that were closed because their client did not send what it had to"),
];

/// Counts of refusals since the daemon was started.
#[derive(Default)]
pub struct Refusals {
    counts: [AtomicU64; REASONS.len()],
    lines: [Mutex<Throttle>; REASONS.len()],
}

impl Refusals {
    /// Something of `peer`'s was refused: counts it, and logs it if it is time for a line.
    pub fn refuse(&self, reason: Reason, peer: IpAddr, what: impl Display, why: impl Display) {
        self.count(reason);
        let mut lines = self.lines[reason as usize].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(times) = lines.pass(Instant::now()) {
            warn!("{what} from {peer} refused: {why} ({times} refused since this was last logged)");
        }
    }

    /// Counts a refusal that is not worth a line of the log.
    pub fn count(&self, reason: Reason) {
        self.counts[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// All counts, as in a status.
    pub fn list(&self) -> Vec<control::Refusal> {
        let counts = REASONS.iter().zip(&self.counts);
        let refusals = counts.map(|((reason, help), times)| control::Refusal {
            reason: (*reason).to_owned(),
            help: (*help).to_owned(),
            times: times.load(Ordering::Relaxed),
        });
        refusals.collect()
    }
}
