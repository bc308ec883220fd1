//! The XDP programs, as the build script compiled them: ELF objects with BTF, aligned for loaders.

/// The XDP program.
pub fn xdp_object() -> &'static [u8] {
    static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/xdp-aggregator"));
    OBJECT
}

/// The XDP program with tracing: a line for each packet.
pub fn xdp_trace_object() -> &'static [u8] {
    static OBJECT: &[u8] =
        aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/xdp-aggregator-trace"));
    OBJECT
}
