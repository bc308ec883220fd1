use super::*;

fn findings(text: &str) -> Vec<String> {
    circles(&Modules::parse(text).edges()).iter().map(ToString::to_string).collect()
}

fn circle(line: usize, names: &str) -> String {
    format!(
        "lib.rs:{line}: modules import each other in a circle, {names}; they may import in \
         one direction only"
    )
}

#[test]
fn three_modules_in_a_circle() {
    let text = "mod a {
            use crate::b::{self, c::C};
            struct A;
        }
        mod b {
            pub mod c { pub struct C; fn f() -> super::super::d::D { todo!() } }
        }
        mod d {
            pub struct D;
            fn f() { println!(\"{}\", crate::a::A); }
        }
        mod e { use super::{a, b}; }";
    assert_eq!(findings(text), [circle(2, "a -> b -> d -> a")]);
    // Without one of the imports there is no circle.
    assert_eq!(findings(&text.replace("crate::a::A", "1")), [""; 0]);
}

#[test]
fn modules_below_others() {
    let text = "mod p {
            mod a { use super::b::B; }
            mod b { pub struct B; mod c { use crate::p::a; } }
        }";
    assert_eq!(findings(text), [circle(2, "p::a -> p::b -> p::a")]);
}

#[test]
fn a_reexport_is_of_the_module_that_defines() {
    let text = "pub use a::A;
        pub use b::*;
        mod a { use crate::B; pub struct A; }
        mod b { use crate::A; pub struct B; }";
    assert_eq!(findings(text), [circle(3, "a -> b -> a")]);
}

#[test]
fn modules_and_those_in_them_are_one_and_tests_do_not_count() {
    let text = "use a::A;
        pub struct Root;
        mod a {
            use super::Root;
            use crate::Root as R;
            pub struct A(super::Root);
            mod inner { use super::A; }
            use inner::X;
        }
        mod b {
            use crate::a::A;
            pub struct B;
        }
        mod c {
            #[cfg(test)] use crate::b::B;
            #[cfg(test)] mod tests { use crate::{b::B, d::D}; }
        }
        mod d { use crate::c; use std::c::d; use core::a::b; }";
    assert_eq!(findings(text), [""; 0]);
}
