//! Who may talk to the control plane, and what became of those who may not.

use crate::refusals::Refusals;
use crate::tls::ServerTls;

/// What the control plane asks of those who connect. By default nothing.
#[derive(Default)]
pub struct Guard {
    /// Connections are by TLS.
    pub tls: Option<ServerTls>,
    /// What was refused.
    pub refusals: Refusals,
}
