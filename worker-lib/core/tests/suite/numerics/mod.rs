//! The numerics against exact rational arithmetic: checks what the module's documentation promises,
//! with code that shares nothing with it.

mod bytes;
mod cluster;
mod dithered;
mod exact;
mod exponent;
mod fixed;
mod ordered;
mod packed;
mod residual;
mod robust;
mod small;
mod special;
