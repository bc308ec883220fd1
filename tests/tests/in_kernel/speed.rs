//! Nanoseconds a packet, of the program alone. `cargo test -p switchml-rack --test in_kernel --release speed -- --ignored
//! --nocapture`

use std::time::Duration;
use switchml_protocol::job::Job;
use switchml_protocol::outcome::Outcome;
use switchml_rack::can_build_racks;

use crate::kernel::{Kernel, job, member};
use crate::packet::{AGGREGATOR_PORT, Envelope, JOB, Packet};

/// Every rank but the first and the last makes a middle contribution.
const RANKS: u16 = 64;
const ROUNDS: u32 = 200;

fn median(mut durations: Vec<Duration>) -> Duration {
    durations.sort();
    durations[durations.len() / 2]
}

/// A packet a run, because a packet that comes again is no contribution; so the cost of a run itself, that of a packet that
/// is passed on at once, is measured beside and taken off.
#[test]
#[ignore = "a measurement, for a quiet machine"]
fn speed() {
    if !can_build_racks("speed") {
        return;
    }
    for lanes in [64, 256, 352, 768] {
        let mut kernel = Kernel::with_job(u32::from(RANKS));
        kernel.set_job(JOB, &Job { slots: 1, ..job(u32::from(RANKS)) });
        (0..RANKS).for_each(|rank| kernel.set_member(JOB, rank, &member(rank)));
        let values: Vec<u32> = (0..lanes).collect();
        let (mut passed, mut middle, mut started, mut completed) = (vec![], vec![], vec![], vec![]);
        for round in 0..ROUNDS {
            for rank in 0..RANKS {
                let packet = Packet::contribution(rank, 0, round, &values);
                let other = Envelope { destination_port: AGGREGATOR_PORT + 1, ..packet.request() };
                passed.push(kernel.run(&other.bytes(&packet.bytes())).duration);
                let duration = kernel.run(&packet.frame()).duration;
                match rank {
                    0 => started.push(duration),
                    rank if rank == RANKS - 1 => completed.push(duration),
                    _ => middle.push(duration),
                }
            }
        }
        assert_eq!(kernel.counters()[Outcome::Added as usize], u64::from(ROUNDS) * u64::from(RANKS - 2));
        let run = median(passed);
        let [started, middle, completed] =
            [started, middle, completed].map(|of| median(of).saturating_sub(run).as_nanos());
        println!(
            "{lanes:3} lanes: first {started:4} ns, middle {middle:4} ns, last {completed:4} ns ({} ns a run taken off)",
            run.as_nanos()
        );
    }
}
