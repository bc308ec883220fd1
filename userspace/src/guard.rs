//! Who may talk to the control plane, and what became of those who may not.

use crate::refusals::Refusals;
use crate::tls::ServerTls;
use crate::tokens::TokenKey;

/// What the control plane asks of those who connect. By default nothing.
#[derive(Default)]
pub struct Guard {
    /// Connections are by TLS.
    pub tls: Option<ServerTls>,
    /// Ranks join with tokens that are signed with this.
    pub tokens: Option<TokenKey>,
    /// What was refused.
    pub refusals: Refusals,
}

impl Guard {
    /// Whether it believes everybody.
    pub fn is_open(&self) -> bool {
        self.tls.is_none() && self.tokens.is_none()
    }
}
