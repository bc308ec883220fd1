//! The numerics against exact rational arithmetic: what the module's documentation promises,
//! checked by means that share nothing with it.

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
