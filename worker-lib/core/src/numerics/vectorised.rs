//! Loops for each vector unit.

/// Compiles a function's body for each vector unit worth having, and picks one at run time.
/// Functions that it calls must be inlined.
macro_rules! vectorised {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)? = $body:expr;)*) => {$(
        #[multiversion::multiversion(targets(
            "x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx512vbmi2",
            "x86_64+avx2",
        ))]
        fn $name($($arg: $type),*) $(-> $ret)? {
            $body($($arg),*)
        }
    )*};
}
pub(super) use vectorised;
