//! Options and the files that they name, looked through without a daemon.

use switchml_cli::say;
use switchml_data_plane::xdp;
use switchml_userspace::tokens::TokenKeys;

use super::{check_exposure, guard, parent_tls};
use crate::cli::{DataPlaneKind, Options, SecurityOptions};

/// Says that a daemon would take these options, and warns as it would.
pub fn check(options: &Options) -> anyhow::Result<()> {
    let security = &options.security;
    if makes_files(security) {
        // The daemon will make the certificate itself; only the token keys can be checked.
        TokenKeys::read(&security.token_keys)?;
    } else {
        check_exposure(&guard(security)?, options.control)?;
    }
    if options.parent.is_some() {
        parent_tls(security)?;
    }
    if options.data_plane == DataPlaneKind::Xdp {
        xdp::check_interfaces(&options.interfaces)?;
    }
    say!("the options are valid");
    Ok(())
}

/// Whether the daemon would make a certificate and write it to files.
fn makes_files(security: &SecurityOptions) -> bool {
    let files = security.tls_cert.iter().chain(&security.tls_key);
    security.tls_self_signed && files.clone().count() > 0 && !files.into_iter().any(|f| f.exists())
}
