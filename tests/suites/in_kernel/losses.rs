//! Packets that the programs lose on purpose, for tests (rule 24.15).

use aya::EbpfLoader;
use aya::programs::{ProgramError, ProgramInfo, SchedClassifier, Xdp};
use switchml_data_plane::xdp::verifier::check;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::root::slot::Slot;
use switchml_rack::needs_racks;

use switchml_test_support::frame::Packet;
use switchml_test_support::kernel::table::Expect::Drop;
use switchml_test_support::kernel::{FIRST_SLOT, Kernel};

/// All of 2^32 random numbers are below this.
const ALL: u64 = 1 << 32;

#[test]
fn a_lost_packet_leaves_no_trace_but_its_count() {
    needs_racks!();
    let packet = Packet::contribution(0, 0, 0, &[3; 32]);
    for mut kernel in [Kernel::that_loses(ALL), Kernel::combiner_that_loses(16, ALL)] {
        kernel.open_job(2);
        kernel.expect(&packet, &Drop(Outcome::LostForTests));
        assert_eq!(kernel.slot(FIRST_SLOT).slot, Slot::default());
    }
    let mut kernel = Kernel::that_loses(0);
    kernel.open_job(2);
    kernel.expect(&packet, &Drop(Outcome::Started));
}

/// The verifier takes all programs with losses, and takes these out of those that lose nothing.
#[test]
fn programs_that_lose_nothing_have_no_code_for_it() {
    needs_racks!();
    for object in [switchml_data_plane::xdp_object(), switchml_data_plane::xdp_trace_object()] {
        let without = sizes(object, 0);
        let with = sizes(object, ALL / 20);
        assert!(without.iter().zip(&with).all(|(without, with)| without < with), "{with:?}");
    }
}

/// Bytes of each program, as the verifier leaves it.
fn sizes(object: &[u8], lose_below: u64) -> Vec<u32> {
    let mut object = EbpfLoader::new()
        .override_global("LOSE_BELOW", &lose_below, true)
        .load(object)
        .expect("the maps are created");
    let size = |info: Result<ProgramInfo, ProgramError>| {
        info.expect("the verifier takes it").size_translated().expect("root may know")
    };
    let names = ["switchml", "switchml_combiner", "switchml_bundle", "switchml_combiner_bundle"];
    names
        .map(|name| {
            let program = object.program_mut(name).expect("a program");
            match <&mut Xdp>::try_from(&mut *program) {
                Ok(xdp) => size(check(|| xdp.load()).and_then(|()| xdp.info())),
                Err(_) => {
                    let tc: &mut SchedClassifier = program.try_into().expect("for tc");
                    size(check(|| tc.load()).and_then(|()| tc.info()))
                }
            }
        })
        .into()
}
