//! Builds the BPF programs that the daemon embeds.

use std::process::ExitCode;

fn main() -> ExitCode {
    switchml_bpf_build::build("xdp-aggregator", &["trace"], &["xdp-aggregator", "protocol"])
}
