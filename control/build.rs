//! Compiles the .proto file without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["switchml.proto"], ["proto"])?;
    let has_grpc = std::env::var_os("CARGO_FEATURE_GRPC").is_some();
    tonic_prost_build::configure()
        .build_client(has_grpc)
        .build_server(has_grpc)
        // What is printed for debugging gets into logs and bug reports: see lib.rs.
        .skip_debug(["switchml.v1.MemberId", "switchml.v1.Assigned"])
        .compile_fds(files)?;
    Ok(())
}
