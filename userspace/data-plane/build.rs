//! Builds the BPF programs that the daemon embeds.

use std::process::ExitCode;

#[cfg(feature = "xdp")]
fn main() -> ExitCode {
    switchml_bpf_build::build("xdp-aggregator", &["trace"], &["xdp-aggregator", "protocol"])
}

/// The library alone has none.
#[cfg(not(feature = "xdp"))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}
