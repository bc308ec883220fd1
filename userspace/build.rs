//! Builds the BPF programs that the daemon embeds.

use std::process::ExitCode;

#[cfg(feature = "daemon")]
fn main() -> ExitCode {
    switchml_bpf_build::build("xdp-aggregator", &["trace"], &["xdp-aggregator", "protocol"])
}

/// The library alone has none.
#[cfg(not(feature = "daemon"))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}
