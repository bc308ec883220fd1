//! The ways to average gradients that are timed side by side.

use super::Backend;
use super::bits::COMPRESSED;

/// A way to average gradients.
pub struct Way {
    pub name: &'static str,
    pub backend: Backend,
    pub arguments: &'static [&'static str],
}

/// The ways to compare; the first is the baseline. PowerSGD makes calls in callbacks, whose order
/// is fixed only with a single bucket.
pub const WAYS: [Way; 6] = [
    Way { name: "Gloo", backend: Backend::Gloo, arguments: &[] },
    Way { name: "switchml", backend: Backend::Switchml, arguments: &[] },
    Way {
        name: "switchml, 16 bits",
        backend: Backend::Switchml,
        arguments: &["--compression", "fixed16"],
    },
    Way { name: "switchml, 8 bits", backend: Backend::Switchml, arguments: &COMPRESSED },
    Way { name: "Gloo, bf16", backend: Backend::Gloo, arguments: &["--compression", "bf16"] },
    Way {
        name: "Gloo, PowerSGD",
        backend: Backend::Gloo,
        arguments: &["--compression", "powersgd", "--bucket-cap-mb", "1000"],
    },
];
