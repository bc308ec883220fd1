//! Signals that come while the verifier checks a program.

use std::ffi::c_int;
use std::thread::{scope, sleep};
use std::time::Duration;

use aya::EbpfLoader;
use aya::programs::Xdp;
use nix::sys::pthread::{pthread_kill, pthread_self};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use switchml_rack::needs_racks;
use switchml_userspace::data_plane::xdp::verifier::check;

extern "C" fn nothing(_: c_int) {}

/// The first one ends the check; the second one ends the check in which aya wants to hear why.
#[test]
fn signals_cost_time_and_not_the_program() {
    needs_racks!();
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.expect("a handler");
    let mut object = EbpfLoader::new().load(switchml_userspace::xdp_object()).expect("maps");
    let program: &mut Xdp = object.program_mut("switchml").expect("a program").try_into().unwrap();
    let loader = pthread_self();
    scope(|scope| {
        scope.spawn(move || {
            for _ in 0..3 {
                sleep(Duration::from_millis(5));
                pthread_kill(loader, Signal::SIGUSR1).expect("a signal");
            }
        });
        check(|| program.load()).expect("the verifier takes the program");
    });
}
