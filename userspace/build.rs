//! Builds the XDP program that the daemon embeds.

use std::process::ExitCode;

fn main() -> ExitCode {
    switchml_bpf_build::build("xdp-aggregator", &["xdp-aggregator", "protocol"])
}
