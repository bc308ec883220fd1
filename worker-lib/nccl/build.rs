//! How the library is linked.

fn main() {
    // NCCL closes it with its last communicator. Threads of the worker library may be on their last
    // instructions then, and what Rust keeps for a thread of NCCL's is dropped when that ends.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
