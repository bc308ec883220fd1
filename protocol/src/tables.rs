//! One table for each kind of number in packets. All other code that knows these numbers is made
//! from the tables, by the macros here, or by `cargo xtask gen` for P4 and Python.
//!
//! | numbers | table |
//! | --- | --- |
//! | kinds, operators, flags | [`crate::wire::header`] |
//! | what a data plane can do | [`crate::capabilities`] |
//! | outcomes with their counters and help texts, REJECT reasons | [`crate::outcome`] |
//!
//! A test compares them with the tables of `docs/spec`.

/// An enum of numbers on the wire: each row has a variant, its number, and its name in the
/// specification.
macro_rules! numbers {
    (
        $(#[$about:meta])+
        pub enum $Numbers:ident: $repr:ident {
            $($(#[$doc:meta])+ $variant:ident = $number:literal, $name:literal;)+
        }
    ) => {
        $(#[$about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr($repr)]
        pub enum $Numbers {
            $($(#[$doc])+ $variant = $number,)+
        }

        impl $Numbers {
            /// All variants, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The variant with this number on the wire.
            #[inline(always)]
            pub const fn from_wire(number: $repr) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// The variant's name in the specification.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

/// Bits of a byte: each row has a name and the bit's number.
macro_rules! bits {
    ($($(#[$doc:meta])+ $name:ident = $bit:literal;)+) => {
        $($(#[$doc])+ pub const $name: u8 = 1 << $bit;)+

        /// All bits, with their names.
        pub const ALL: &[(&str, u8)] = &[$((stringify!($name), $name),)+];
    };
}
