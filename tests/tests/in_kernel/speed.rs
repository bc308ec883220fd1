//! Nanoseconds a packet, of the program alone and warm.
//!
//! `cargo test --release -p switchml-rack --test in_kernel speed -- --nocapture`, on a quiet machine. What it checks is
//! that what it times is what it says.

use switchml_protocol::outcome::Outcome;
use switchml_rack::can_build_racks;

use crate::driver::Driver;
use crate::kernel::Kernel;
use crate::packet::{AGGREGATOR_PORT, Envelope, MAX, MAX_I16, Packet, SUM, SUM_I16};

const REPEAT: u32 = 5_000;
/// The best of this many, for whatever else the machine does only ever makes it slower.
const RUNS: u32 = 20;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

fn nanoseconds(driver: &Driver, frame: &[u8], verdict: u32) -> u32 {
    let run = |_| {
        let (duration, result) = driver.run(frame, REPEAT).expect("the test run");
        assert_eq!(result, verdict);
        duration
    };
    (0..RUNS).map(run).min().unwrap()
}

/// A middle contribution can be made once only. So a driver takes its rank out of the slot before each run; its own cost,
/// measured with a packet that is passed on at once, is taken off.
#[test]
fn speed() {
    if !can_build_racks("speed") {
        return;
    }
    for (op, name) in [(SUM, "sum"), (MAX, "max"), (SUM_I16, "sum of i16"), (MAX_I16, "max of i16")] {
        for lanes in [64, 256, 352, 768] {
            let kernel = Kernel::with_job(3);
            let driver = Driver::new(&kernel).expect("the driver loads");
            let values: Vec<u32> = (0..lanes).collect();
            let packet = |rank| Packet { op, ..Packet::contribution(rank, 0, 0, &values) };
            kernel.run(&packet(0).frame());
            let other = Envelope { destination_port: AGGREGATOR_PORT + 1, ..packet(1).request() };
            let passed = nanoseconds(&driver, &other.bytes(&packet(1).bytes()), XDP_PASS);
            let added_ns = nanoseconds(&driver, &packet(1).frame(), XDP_DROP);
            let added = kernel.counters()[Outcome::Added as usize];
            assert_eq!(added, u64::from(REPEAT) * u64::from(RUNS), "every run is a middle contribution");
            println!("{name:10} {lanes:3} lanes: {:4} ns ({passed} ns taken off)", added_ns - passed);
        }
    }
}
