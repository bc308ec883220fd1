//! How the library is linked.

fn main() {
    // The library stays loaded after NCCL closes it with its last communicator: threads of the
    // worker library may still be in their last instructions, and thread-local data of NCCL's
    // threads is dropped when these end.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
