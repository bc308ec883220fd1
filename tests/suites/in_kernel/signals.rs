//! Signals that come while the verifier checks a program.

use std::ffi::c_int;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{scope, sleep};
use std::time::Duration;

use aya::EbpfLoader;
use aya::programs::Xdp;
use nix::sys::pthread::{pthread_kill, pthread_self};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use switchml_data_plane::xdp::verifier::check;
use switchml_rack::needs_racks;

extern "C" fn nothing(_: c_int) {}

/// They end the check, and the one after it, in which aya wants to hear why.
#[test]
fn signals_cost_time_and_not_the_program() {
    needs_racks!();
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.expect("a handler");
    let mut object = EbpfLoader::new().load(switchml_data_plane::xdp_object()).expect("maps");
    let program: &mut Xdp = object.program_mut("switchml").expect("a program").try_into().unwrap();
    let (loader, [has_failed, is_over]) = (pthread_self(), [const { AtomicBool::new(false) }; 2]);
    scope(|scope| {
        scope.spawn(|| {
            while !has_failed.load(Relaxed) && !is_over.load(Relaxed) {
                pthread_kill(loader, Signal::SIGUSR1).expect("a signal");
                sleep(Duration::from_millis(1));
            }
        });
        let checked = check(|| program.load().inspect_err(|_| has_failed.store(true, Relaxed)));
        is_over.store(true, Relaxed);
        checked.expect("the verifier takes the program");
    });
    assert!(has_failed.into_inner(), "no signal came while the verifier checked");
}
