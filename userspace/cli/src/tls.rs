//! Options of programs that connect to an aggregator.

use std::path::PathBuf;

use clap::Args;

/// Heading of these options in `--help`.
pub const HEADING: &str = "TLS and access";

/// How an aggregator that speaks TLS is known, and what is shown to it.
#[derive(Args, Clone, Debug)]
pub struct TlsOptions {
    /// SHA-256 fingerprint of the aggregator's certificate, sha256:…: connections use TLS then
    /// [env: SWITCHML_TLS_FINGERPRINT]
    #[arg(long, help_heading = HEADING, value_name = "FINGERPRINT", conflicts_with = "tls_ca")]
    pub tls_fingerprint: Option<String>,
    /// Certificates, in PEM, of the CAs that sign the aggregator's: connections use TLS then [env:
    /// SWITCHML_TLS_CA]
    #[arg(long, help_heading = HEADING, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// Certificate of this side, in PEM, for an aggregator that asks for one [env:
    /// SWITCHML_TLS_CERT]
    #[arg(long, help_heading = HEADING, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, in PEM [env: SWITCHML_TLS_KEY]
    #[arg(long, help_heading = HEADING, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}
